"""`naiad graph` of a repository and of a running server, as a list and as Mermaid."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from naiad.cli.explain import flowchart
from support.ensemble_models import tensor, write_ensemble
from support.model_repository import write_python_add_sub
from support.server_process import ServerProcess, serving

STEPS = [
    ("python_add_sub", {"INPUT0": "A", "INPUT1": "B"}, {"OUTPUT0": "sum", "OUTPUT1": "difference"}),
    ("python_add_sub", {"INPUT0": "sum", "INPUT1": "difference"}, {"OUTPUT0": "C"}),
]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("graph")
    write_python_add_sub(root)
    write_ensemble(root, "twice", [tensor("A"), tensor("B")], [tensor("C")], STEPS)
    return root


@pytest.fixture(scope="module")
def server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("log") / "log", f"--model-repository={repository}") as running:
        yield running


LIST = """\
in   A FP32[16]
in   B FP32[16]
step python_add_sub (python)
       INPUT0 <- A
       INPUT1 <- B
       OUTPUT0 -> sum
       OUTPUT1 -> difference
step python_add_sub (python)
       INPUT0 <- sum
       INPUT1 <- difference
       OUTPUT0 -> C
out  C FP32[16]
"""


def test_list_of_repository_and_of_server_are_same(
    repository: Path, server: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    assert flowchart.run(["twice", "--model-repository", str(repository)]) == 0
    assert capsys.readouterr().out == LIST
    assert flowchart.run(["twice", "--url", server.http_url]) == 0
    assert capsys.readouterr().out == LIST


def test_mermaid_is_printed_with_every_name(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert flowchart.run(["twice", "--model-repository", str(repository), "--mermaid"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "flowchart LR"
    assert sum('["python_add_sub<br/>python"]' in line for line in lines) == 2
    for part in ('(["A FP32[16]"])', '(["C FP32[16]"])', '-- "sum" -->', '-- "difference" -->'):
        assert part in "\n".join(lines)


@pytest.mark.parametrize("flags", [[], ["--mermaid"]])
def test_output_file_has_what_would_be_printed(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    arguments = ["twice", "--model-repository", str(repository), *flags]
    assert flowchart.run(arguments) == 0
    printed = capsys.readouterr().out
    path = tmp_path / "twice.txt"
    assert flowchart.run([*arguments, "--output", str(path)]) == 0
    assert capsys.readouterr().out == f"written to {path}\n"
    assert path.read_text() == printed


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("python_add_sub", "naiad graph: model 'python_add_sub' is not an ensemble, so there is no graph to draw"),
        ("nothing", "naiad graph: no model 'nothing' in "),
    ],
)
def test_repository_that_cannot_be_drawn_is_reported(
    repository: Path, capsys: pytest.CaptureFixture[str], model: str, message: str
) -> None:
    assert flowchart.run([model, "--model-repository", str(repository)]) == 1
    assert capsys.readouterr().err.startswith(message)


def test_ensemble_that_cannot_load_is_reported_with_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_python_add_sub(tmp_path)
    steps = [("python_add_sub", {"INPUT0": "A", "INPUT1": "x"}, {"OUTPUT0": "C"})]
    write_ensemble(tmp_path, "broken", [tensor("A")], [tensor("C")], steps)
    assert flowchart.run(["broken", "--model-repository", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert "model 'broken' would not load" in error
    assert "config.pbtxt:" in error
    assert "'x'" in error


def test_model_unknown_to_server_is_reported(server: ServerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    assert flowchart.run(["nothing", "--url", server.http_url]) == 1
    assert "Request for unknown model: 'nothing' is not found" in capsys.readouterr().err


def test_unwritable_file_is_reported(repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "missing" / "twice.mmd"
    assert flowchart.run(["twice", "--model-repository", str(repository), "--output", str(path)]) == 1
    assert "cannot be written: No such file or directory" in capsys.readouterr().err
