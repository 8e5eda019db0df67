import os
import signal
import subprocess
import sys
from collections.abc import Sequence

import pytest

import naiad
from naiad.cli import version
from naiad.cli.main import _import_verb, main
from naiad.cli.verbs import VERBS


@pytest.mark.parametrize("arguments", [["version"], ["--version"]])
def test_version_is_printed(capsys: pytest.CaptureFixture[str], arguments: Sequence[str]) -> None:
    assert main(arguments) == 0
    assert capsys.readouterr().out.strip() == naiad.__version__


def test_unknown_verb_has_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sreve"]) == 2
    error = capsys.readouterr().err
    assert error == "naiad: unknown verb 'sreve'; did you mean serve?\nnaiad --help lists the verbs.\n"


def test_dissimilar_verb_gets_no_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deploy"]) == 2
    error = capsys.readouterr().err
    assert "did you mean" not in error
    assert "explain" in error


def test_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--help"], ["-h"], ["help"]):
        assert main(arguments) == 0
        assert "naiad VERB" in capsys.readouterr().out


def test_verbs_are_apart_from_their_texts(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--help"])
    words = {line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith("  ")}
    assert words == set(VERBS)


def test_no_verb_is_a_wrong_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "naiad VERB" in capsys.readouterr().err


def test_serve_help_needs_no_model(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["serve", "--help"], ["help", "serve"]):
        assert main(arguments) == 0
        assert "--model-repository" in capsys.readouterr().out


@pytest.mark.parametrize("verb", ["check", "graph", "explain", "config", "demo", "key", "version"])
def test_every_verb_has_help(capsys: pytest.CaptureFixture[str], verb: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["help", verb])
    assert ended.value.code == 0
    assert f"usage: naiad {verb}" in capsys.readouterr().out


def test_serve_exits_with_1_for_bad_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--http-port=x"]) == 1
    assert "--http-port: 'x' is not an integer" in capsys.readouterr().err


def test_an_interrupt_ends_a_verb_without_a_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: Sequence[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(version, "run", interrupted)
    assert main(["version"]) == 128 + signal.SIGINT
    assert capsys.readouterr().err == "naiad: interrupted\n"


def test_a_full_disk_behind_the_output_is_named() -> None:
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "naiad", "version"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "naiad: the output could not be written: No space left on device\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check", "--jobs=many", "."], "argument --jobs: 'many' is not a number from 1 to 64"),
        (["check", "--jobs=65", "."], "argument --jobs: '65' is not a number from 1 to 64"),
        (["check", "--load-timeout-secs=soon", "."], "'soon' is not a number of seconds above 0"),
        (["check", "--load-timeout-secs=nan", "."], "'nan' is not a number of seconds above 0"),
    ],
)
def test_invalid_flag_value_is_named_with_fix(
    capsys: pytest.CaptureFixture[str], arguments: Sequence[str], message: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["graph", "explain"])
def test_missing_repository_is_reported(capsys: pytest.CaptureFixture[str], verb: str) -> None:
    assert main([verb, "m", "--model-repository=/no/such"]) == 1
    assert "--model-repository /no/such is not a directory" in capsys.readouterr().err


@pytest.mark.parametrize("own", [None, "26"])
def test_threads_of_numpy_wait_shortly(monkeypatch: pytest.MonkeyPatch, own: str | None) -> None:
    name = "OPENBLAS_THREAD_TIMEOUT"
    monkeypatch.delenv(name, raising=False)
    if own is not None:
        monkeypatch.setenv(name, own)
    seen: list[str | None] = []
    monkeypatch.setattr("importlib.import_module", lambda module: seen.append(os.environ.get(name)))
    _import_verb("version")
    assert seen == [own or "20"]
    assert os.environ.get(name) == own
