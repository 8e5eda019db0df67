"""Mistakes in the command line of the verbs: one sentence, and the next command."""

import importlib

import pytest

from naiad.cli.main import main
from naiad.cli.parser import Parser, fail
from naiad.cli.verbs import VERBS

WITH_ARGUMENTS = [verb for verb in VERBS if verb not in ("serve", "version", "demo", "analyze")]


@pytest.mark.parametrize("verb", WITH_ARGUMENTS)
def test_missing_argument_names_next_command(verb, capsys):
    with pytest.raises(SystemExit):
        raise SystemExit(main([verb]))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith(f"naiad {verb}: ")
    assert len(lines) <= 2


def test_unknown_flag_has_a_suggestion(capsys):
    parser = Parser(prog="naiad perf")
    parser.add_argument("--concurrency-range")
    with pytest.raises(SystemExit):
        parser.parse_args(["--concurency-range", "1"])
    assert "--concurency-range 1; did you mean --concurrency-range?\n" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["check", "inspect", "graph", "explain", "rank", "split"])
def test_help_has_an_example(verb):
    parser = importlib.import_module(VERBS[verb][0]).make_parser()
    assert f"example: naiad {verb} " in parser.format_help()


@pytest.mark.parametrize("verb", ["graph", "explain"])
def test_directory_instead_of_name_names_the_command(verb, tmp_path, capsys):
    (tmp_path / "models" / "add").mkdir(parents=True)
    assert main([verb, f"{tmp_path}/models/add/"]) == 1
    assert f"naiad {verb} add --model-repository {tmp_path}/models\n" in capsys.readouterr().err


def test_missing_directory_of_ranks_is_named(tmp_path, capsys):
    assert main(["rank", str(tmp_path / "no"), "--node-rank", "1"]) == 1
    assert capsys.readouterr().err.startswith(f"naiad rank: {tmp_path}/no: no such directory")


def test_closed_reader_of_output_is_no_reason():
    with pytest.raises(BrokenPipeError):
        fail("naiad perf", BrokenPipeError(32, "Broken pipe"))


def test_address_for_a_repository_names_the_flag(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["export", "package", "http://localhost:8000"])
    assert "to send the model to a server: naiad export PACKAGE --push URL\n" in capsys.readouterr().err
