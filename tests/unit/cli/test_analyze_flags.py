"""Mistakes in the command line of `naiad analyze`: errors name the argument and the fix."""

import importlib.util

import pytest

from naiad.cli.models.analyze import _Progress, run
from naiad.tools.analyze.search import SearchProgress


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "TARGET is missing; name a model repository, as in naiad analyze models"),
        (["missing"], "TARGET missing: no such folder; name a model repository, or add the --url of a server"),
        (["net.onnx"], "TARGET net.onnx is a file; copy it to models/net/1/model.onnx and name models/net"),
        (["empty"], "TARGET empty has no models; a repository has a folder of each: model/1/model.onnx"),
        (["--url", "localhost:1"], "TARGET is missing; name a model, as in naiad analyze resnet --url localhost:1"),
        (["full", "--mode", "fast"], "--mode has an unknown name 'fast'; use one of predict, brute, quick, optuna"),
        (["full", "--seconds", "long"], "--seconds"),
        (["full", "--time-limit", "soon"], "--time-limit is 'soon'; use a time, for example 10m"),
        (["full", "--concurrency", "abc"], "--concurrency "),
        (["full", "--report", "net.onnx/x"], "--report net.onnx/x cannot be written: net.onnx is a file"),
        (["full", "--output", "net.onnx/x"], "--output net.onnx/x cannot be written: net.onnx is a file"),
        (
            ["profile", "--model-repository", "full", "--profile-models", "model", "--export-path", "net.onnx/x"],
            "export_path net.onnx/x cannot be written: net.onnx is a file",
        ),
        (["models", "--capacity", "nan"], "--capacity is nan; use a number of requests/s above 0"),
        (["models", "--capacity", "-5"], "--capacity is -5; use a number of requests/s above 0"),
    ],
)
def test_mistake_names_argument_and_fix(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.onnx").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "full/model/1").mkdir(parents=True)
    assert run(arguments) == 2
    assert capsys.readouterr().err.startswith(f"naiad analyze: {message}")


def test_missing_charts_are_noticed_before_measuring(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full/model/1").mkdir(parents=True)
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find_spec(name))
    assert run(["full"]) == 1
    message = "naiad analyze: an HTML report needs matplotlib; pip install 'naiad[report]'"
    assert capsys.readouterr().err.strip() == message
    assert not (tmp_path / "analysis").exists()


def test_piped_progress_has_few_lines(capsys):
    progress = _Progress()
    for number in range(100):
        progress("net", SearchProgress(f"prediction of configuration {number} of 99", 1, 10, 0.0))
    progress("net", SearchProgress("comparison of the best", 2, 10, 0.0))
    assert len(capsys.readouterr().err.splitlines()) == 2
