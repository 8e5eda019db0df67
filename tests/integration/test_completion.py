"""Tab completion, in the real shells: bash, and zsh and fish where they are installed."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from naiad.cli.verbs import VERBS
from naiad.options.flags import all_flags

SOURCE = Path(__file__).parents[2] / "src"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(SOURCE)}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the script of each shell, and files to complete."""
    directory = tmp_path_factory.mktemp("completion")
    for shell in ("bash", "zsh", "fish"):
        command = [sys.executable, "-m", "naiad", "completion", shell]
        done = subprocess.run(command, capture_output=True, env=ENVIRONMENT, check=True, text=True)
        (directory / f"script.{shell}").write_text(done.stdout)
    (directory / "resnet.onnx").touch()
    (directory / "my models").mkdir()
    return directory


def run_shell(directory: Path, *command: str) -> list[str]:
    done = subprocess.run(command, capture_output=True, cwd=directory, text=True, timeout=60, check=True)
    assert done.stderr == ""
    return done.stdout.splitlines()


def bash(directory: Path, *words: str) -> list[str]:
    """Return the completions of the last word, as readline asks for them."""
    line = " ".join(map(shlex.quote, ("naiad", *words)))
    program = f"source script.bash; COMP_WORDS=({line}); COMP_CWORD={len(words)}; _naiad; "
    program += "printf '%s\\n' \"${COMPREPLY[@]}\""
    return sorted(filter(None, run_shell(directory, "bash", "-c", program)))


def fish(directory: Path, line: str) -> list[str]:
    program = f"source script.fish; complete -C {shlex.quote(line)}"
    return sorted(each.partition("\t")[0] for each in run_shell(directory, "fish", "-c", program))


CASES = [
    (["ser"], ["serve"]),
    (["serve", "--http-po"], ["--http-port"]),
    (["serve", "--log-format", ""], ["ISO8601", "default", "json"]),
    (["serve", "--model-control-mode", "e"], ["explicit"]),
    (["serve", "--exit-on-error", "f"], ["false"]),
    (["serve", "--http-port", ""], []),
    (["serve", "res"], ["resnet.onnx"]),
    (["serve", "--model-repository", "my"], ["my models"]),
    (["check", "--strict"], ["--strict-model-config"]),
    (["completion", "z"], ["zsh"]),
    (["key", "n"], ["new"]),
]


@pytest.mark.parametrize(("words", "expected"), CASES)
def test_bash_completes(directory: Path, words: list[str], expected: list[str]) -> None:
    assert bash(directory, *words) == expected


@pytest.mark.parametrize("value", [["="], ["=", "ex"]])
def test_bash_completes_values_after_equals_sign(directory: Path, value: list[str]) -> None:
    found = bash(directory, "serve", "--model-control-mode", *value)
    assert found == (["explicit"] if value[1:] else ["explicit", "none", "poll"])


def test_bash_completes_every_verb_and_flag(directory: Path) -> None:
    assert bash(directory, "") == sorted(VERBS)
    assert set(bash(directory, "serve", "--")) == {f"--{flag.name}" for flag in all_flags()} | {
        "--help",
        "--help-all",
    }


def test_bash_registers_function(directory: Path) -> None:
    assert run_shell(directory, "bash", "-c", "source script.bash; complete -p naiad") == ["complete -F _naiad naiad"]


@pytest.mark.skipif(not shutil.which("zsh"), reason="zsh is not installed")
def test_zsh_registers_function(directory: Path) -> None:
    program = (
        "autoload -U compinit; compinit -D; source ./script.zsh; echo ${_comps[naiad]}; "
        "COMP_WORDS=(naiad serve --log-format I); COMP_CWORD=3; emulate -L ksh; _naiad; echo ${COMPREPLY[@]}"
    )
    # zsh itself selects the words that begin with `I`.
    assert run_shell(directory, "zsh", "-fc", program) == ["_bash_complete -F _naiad", "default ISO8601 json"]


@pytest.mark.skipif(not shutil.which("fish"), reason="fish is not installed")
@pytest.mark.parametrize(("words", "expected"), [case for case in CASES if case[1] != ["my models"]])
def test_fish_completes(directory: Path, words: list[str], expected: list[str]) -> None:
    assert fish(directory, " ".join(["naiad", *words])) == expected
