"""ONNX Runtime reports nothing and leaves no files, unless the user turned its telemetry on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from naiad.backend.onnx import telemetry as onnx_telemetry
from support import onnx_models

_SESSION = """
import sys
from naiad.backend.onnx.library import onnxruntime
onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
"""


def test_session_leaves_no_telemetry_files(tmp_path: Path) -> None:
    model, home = tmp_path / "model.onnx", tmp_path / "home"
    model.write_bytes(onnx_models.add_sub())
    home.mkdir()
    environment = {name: value for name, value in os.environ.items() if name != onnx_telemetry.VARIABLE}
    environment |= {"HOME": str(home), "TMPDIR": str(home), "XDG_CACHE_HOME": ""}
    subprocess.run([sys.executable, "-c", _SESSION, str(model)], env=environment, check=True, timeout=60)
    assert [path for path in home.rglob("*") if not path.name.startswith("__pycache__")] == []


@pytest.mark.parametrize(("given", "expected"), [({}, "1"), ({onnx_telemetry.VARIABLE: "0"}, "0")])
def test_user_decides_about_telemetry(given: dict[str, str], expected: str) -> None:
    environment = dict(given)
    onnx_telemetry.turn_off(environment)
    assert environment[onnx_telemetry.VARIABLE] == expected
