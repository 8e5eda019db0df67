import pytest

import naiad
from naiad.cli.main import main


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    assert capsys.readouterr().out.strip() == naiad.__version__


def test_unknown_verb_is_an_error_that_lists_the_verbs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sreve"]) == 2
    error = capsys.readouterr().err
    assert "unknown verb 'sreve'" in error
    assert "serve" in error


def test_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "naiad VERB" in capsys.readouterr().out
    assert main([]) == 1


def test_serve_help_needs_no_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--help"]) == 0
    assert "--model-repository" in capsys.readouterr().out


def test_serve_answers_a_bad_flag_with_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--http-port=x"]) == 1
    assert "--http-port: 'x' is not an integer" in capsys.readouterr().err
