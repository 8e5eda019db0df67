"""What a path of the command line may be."""

import os
from pathlib import Path

import pytest

from naiad.core.errors import InferError
from naiad.repository.open_repository import open_path


def test_path_without_a_model_is_described(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.onnx")
    (tmp_path / "loop.onnx").symlink_to("loop.onnx")
    (tmp_path / "gone.onnx").symlink_to("nowhere.onnx")
    found = {
        "missing.onnx": "no such file or directory; give a model file",
        "pipe.onnx": "neither a file nor a directory; give",
        "loop.onnx": "a link that leads to no file or directory; give",
        "gone.onnx": "a link that leads to no file or directory; give",
    }
    for name, text in found.items():
        with pytest.raises(InferError, match=f"{name}: {text}"):
            open_path(tmp_path / name)
