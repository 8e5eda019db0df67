"""ONNX Runtime is imported before processes are forked if models need it and a forked process can use it."""

import subprocess
import sys
from pathlib import Path

import pytest

from naiad.cluster.supervisor import supervisor
from naiad.options.options import ServerOptions
from naiad.server.process.shared_imports import import_for_models
from support.onnx_models import add_sub

_REAL = """
import importlib, os, sys
from pathlib import Path
from naiad.options.sources.command_line import parse_options
from naiad.server.process.shared_imports import import_for_models

def imports(*flags, environ={}):
    assert import_for_models(parse_options(flags), environ), flags
    return "onnxruntime" in sys.modules

onnx, other, fake = sys.argv[1:]
assert not imports(other) and not imports("/none/of/these") and not imports("s3://bucket/models")
assert not imports(onnx, "--model-control-mode=explicit")
assert not imports(onnx, "--model-load-policy=on-demand")
assert not imports(onnx, environ={"ORT_DISABLE_TELEMETRY": "0"})
config = next(Path(onnx).glob("*")) / "config.pbtxt"
for text in ('parameters { key: "isolation" value { string_value: "process" } }', 'backend: "openvino"'):
    config.write_text(text)
    assert not imports(onnx), text
config.write_text('backend: "onnxruntime"')
sys.path.insert(0, fake)
assert not imports(onnx)
sys.path.remove(fake)
importlib.invalidate_caches()
assert imports(onnx)
if not os.fork():
    import numpy as np
    import onnxruntime

    session = onnxruntime.InferenceSession(next(Path(onnx).glob("*/*/model.onnx")))
    inputs = {each.name: np.ones((1, 16), np.float32) for each in session.get_inputs()}
    os._exit(0 if (session.run(None, inputs)[0] == 2).all() else 1)
assert os.wait()[1] == 0
"""
_FAKE = """
import sys
from naiad.options.sources.command_line import parse_options
from naiad.server.process.shared_imports import import_for_models

sys.path.insert(0, sys.argv[2])
print(import_for_models(parse_options(sys.argv[1:2]), {}))
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    version = tmp_path / "models" / "add_sub" / "1"
    version.mkdir(parents=True)
    (version / "model.onnx").write_bytes(add_sub())
    return tmp_path / "models"


def package(folder: Path, library: str, code: str) -> Path:
    """Make a package that seems to be ONNX Runtime."""
    (folder / "onnxruntime" / "capi").mkdir(parents=True)
    (folder / "onnxruntime" / "__init__.py").write_text(code)
    (folder / "onnxruntime" / "capi" / library).touch()
    return folder


def run(code: str, *arguments: Path) -> str:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_forked_process_uses_the_imported_library(repository: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "python_model" / "1"
    other.mkdir(parents=True)
    (other / "model.py").touch()
    accelerated = package(tmp_path / "fake", "libonnxruntime_providers_cuda.so", "")
    run(_REAL, repository, tmp_path / "other", accelerated)


def test_process_with_threads_is_not_forked(repository: Path, tmp_path: Path) -> None:
    code = "import threading, time\nthreading.Thread(target=time.sleep, args=(9,), daemon=True).start()"
    fake = package(tmp_path / "fake", "libonnxruntime_providers_shared.so", code)
    assert run(_FAKE, repository, fake).split() == ["False"]


def test_library_that_ends_its_process_is_left(repository: Path, tmp_path: Path) -> None:
    fake = package(tmp_path / "fake", "libonnxruntime_providers_shared.so", "raise SystemExit('no AVX')")
    assert run(_FAKE, repository, fake).split() == ["True"]


def test_server_without_models_can_be_forked() -> None:
    assert import_for_models(ServerOptions())


def test_server_without_forks_starts_its_processes_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "fork_members", lambda count: pytest.fail("forked"))
    monkeypatch.setattr(supervisor, "run_to_status", lambda options, run: 5)
    assert supervisor.serve(ServerOptions(process_count=2), is_forking=False) == 5
