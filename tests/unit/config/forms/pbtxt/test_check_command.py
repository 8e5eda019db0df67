import json
import os
from pathlib import Path

import pytest

from naiad.cli import config as config_verb
from naiad.cli.check import check
from naiad.config.forms.pbtxt.text_format import parse_pbtxt
from naiad.repository.stores.bare_files import BARE_MODELS

PYTHON_MODEL = 'backend: "python"\ninput { name: "I" data_type: TYPE_FP32 dims: 4 }\n'


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for name in ("good", "bad"):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "1" / "model.py").write_text("class TritonPythonModel: ...\n")
    (tmp_path / "bad" / "config.pbtxt").write_text(PYTHON_MODEL + "max_batch_sise: 4\n")
    return tmp_path


def test_check_prints_problems_and_fails(repository: Path, capsys: pytest.CaptureFixture[str]):
    assert check.run([str(repository)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        f"{repository}/bad/config.pbtxt:3:1: unknown field 'max_batch_sise' in ModelConfig; expected a field of "
        "ModelConfig; did you mean 'max_batch_size'?",
        "good: ok (python, version 1)",
        "1 error, 0 warnings in 2 models",
        f"No model was loaded; to load them: naiad check --load {repository}",
    ]


def test_check_names_directories_that_are_no_models(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (repository / "bad" / "config.pbtxt").unlink()
    (repository / "loop").symlink_to("loop")
    Path(os.fsdecode(os.fsencode(repository) + b"/caf\xe9")).mkdir()
    assert check.run([str(repository)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert f"{repository}/loop: the directory cannot be read: Too many levels of symbolic links" in lines
    assert any(line.startswith(f"{repository}/caf\\xe9: model name ") for line in lines)


def test_check_of_a_good_model_succeeds(repository: Path, capsys: pytest.CaptureFixture[str]):
    assert check.run([str(repository / "good")]) == 0
    assert "good: ok" in capsys.readouterr().out


def test_check_prints_json(repository: Path, capsys: pytest.CaptureFixture[str]):
    assert check.run([str(repository), "--json"]) == 1
    (row,) = json.loads(capsys.readouterr().out)
    assert row == {
        "model": "bad",
        "severity": "error",
        "file": f"{repository}/bad/config.pbtxt",
        "line": 3,
        "column": 1,
        "path": "max_batch_sise",
        "text": "max_batch_sise",
        "message": "unknown field 'max_batch_sise' in ModelConfig",
        "expected": "a field of ModelConfig",
        "suggestion": "max_batch_size",
    }


@pytest.mark.parametrize(("flag", "status"), [("--strict-model-config", 1), ("--strict-model-config=false", 0)])
def test_check_is_strict_when_asked(repository: Path, flag: str, status: int):
    assert check.run([str(repository / "good"), flag]) == status


def test_check_rejects_a_wrong_command_line(capsys: pytest.CaptureFixture[str]):
    for arguments in ([], ["x", "--strict-model-config=maybe"], ["x", "--nope"]):
        with pytest.raises(SystemExit) as raised:
            check.run(arguments)
        assert raised.value.code == 2
    assert "neither true nor false" in capsys.readouterr().err


def identity_model(root: Path) -> Path:
    (root / "echo.identity" / "1").mkdir(parents=True)
    (root / "echo.identity" / "1" / "x.bin").touch()
    return root / "echo.identity"


def test_config_init_prints_a_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert config_verb.run(["init", str(identity_model(tmp_path))]) == 0
    parsed = parse_pbtxt(capsys.readouterr().out)
    assert parsed.problems == []
    assert (parsed.config.name, parsed.config.backend) == ("echo.identity", "identity")


def test_config_init_writes_a_file_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    model = identity_model(tmp_path)
    target = tmp_path / "config.pbtxt"
    arguments = ["init", str(model), "--output", str(target)]
    assert config_verb.run(arguments) == 0
    assert config_verb.run(arguments) == 1
    assert "exists; --force replaces it" in capsys.readouterr().err
    assert config_verb.run([*arguments, "--force"]) == 0
    assert parse_pbtxt(target.read_text()).problems == []


def test_config_init_describes_onnx_file_as_served(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    infos = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 16]) for name in "AB"]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Neg", ["A"], ["B"])], "g", infos[:1], infos[1:])
    opset = onnx.helper.make_opsetid("", 13)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8), tmp_path / "neg.onnx")
    assert config_verb.run(["init", str(tmp_path / "neg.onnx")]) == 0
    config = parse_pbtxt(capsys.readouterr().out).config
    assert (config.name, config.backend, config.default_model_filename) == ("neg", "onnxruntime", "neg.onnx")
    assert config.max_batch_size == BARE_MODELS.max_batch_size
    assert [(tensor.name, list(tensor.dims)) for tensor in config.input] == [("A", [16])]


def test_config_init_reports_unknown_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "model.plan").write_bytes(b"ftrt")
    assert config_verb.run(["init", str(tmp_path / "m")]) == 0
    printed = capsys.readouterr()
    assert "pip install 'naiad[tensorrt]'" in printed.err
    assert parse_pbtxt(printed.out).config.backend == "tensorrt"


@pytest.mark.parametrize("content", [b"", b"\x08\x08\x3a\x40cut off"])
def test_config_init_fails_for_a_damaged_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes):
    pytest.importorskip("onnxruntime")
    (tmp_path / "net.onnx").write_bytes(content)
    assert config_verb.run(["init", str(tmp_path / "net.onnx")]) == 1
    assert "inputs and outputs could not be read from the model" in capsys.readouterr().err


def test_config_init_needs_one_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for name in ("a", "b"):
        (tmp_path / "r" / name).mkdir(parents=True)
    assert config_verb.run(["init", str(tmp_path / "r")]) == 1
    assert "name one of: a, b" in capsys.readouterr().err
    assert config_verb.run(["init", str(tmp_path / "nowhere")]) == 1


def test_check_names_links_without_target(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = repository / "good" / "1" / "model.py"
    model.unlink()
    model.symlink_to("/nowhere/model.py")
    (repository / "good" / "1" / "weights.bin").symlink_to("lost.bin")
    (repository / "good" / "2").symlink_to("gone")
    (repository / "good" / "notes").symlink_to("away.txt")
    assert check.run([str(repository / "good")]) == 1
    lines = capsys.readouterr().out.splitlines()
    place = f"{repository}/good"
    expected = "expected a file or a directory; copy the files that links lead to, too"
    assert (
        f"{place}/1/model.py: 'model.py' is a link to '/nowhere/model.py', which does not exist; {expected}" in lines
    )
    assert f"{place}/1/weights.bin: 'weights.bin' is a link to 'lost.bin', which does not exist; {expected}" in lines
    assert f"{place}/notes: warning: 'notes' is a link to 'away.txt', which does not exist; {expected}" in lines
    assert any(line.startswith(f"{place}/2: warning: version '2' is a link to 'gone', which does") for line in lines)
    assert lines[-2] == "2 errors, 2 warnings in 1 model"


def test_check_accepts_links_to_files(repository: Path) -> None:
    model = repository / "good" / "1" / "model.py"
    model.rename(repository / "shared.py")
    model.symlink_to(repository / "shared.py")
    (repository / "good" / "2").symlink_to("1")
    assert check.run([str(repository / "good")]) == 0


@pytest.mark.parametrize("has_other", [False, True])
def test_check_names_configuration_in_version(
    repository: Path, capsys: pytest.CaptureFixture[str], has_other: bool
) -> None:
    good = repository / "good"
    (good / "1" / "config.pbtxt").write_text(PYTHON_MODEL)
    if has_other:
        (good / "config.pbtxt").write_text(PYTHON_MODEL)
    (repository / "bad" / "config.pbtxt").unlink()
    assert check.run([str(repository)]) == 0
    out = capsys.readouterr().out
    assert f"{good}/1/config.pbtxt: warning: config.pbtxt of a version directory is not read; expected one" in out
    assert (f"which is the one that counts: {good}/config.pbtxt" in out) is has_other
