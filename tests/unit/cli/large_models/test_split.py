"""The command line of `naiad split`."""

import sys
from pathlib import Path

import pytest

from naiad.cli.large_models import split


def test_missing_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith("naiad.tools.split.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "onnx", None)
    path = tmp_path / "model.onnx"
    path.touch()
    assert split.run([str(path), "--stages=2"]) == 1
    assert "package 'onnx' is missing; pip install 'naiad[split]'" in capsys.readouterr().err


def test_wrong_devices_are_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        split.run([str(tmp_path), "--stages=2", "--devices=gpu"])
    assert "use cpu, or numbers of GPUs" in capsys.readouterr().err
