"""Engines of the fake TensorRT, and the CUDA runtime that their memory is in."""

import ctypes
import json
import shutil
import subprocess
from pathlib import Path

import pytest

SUPPORT = Path(__file__).resolve().parent


def tensor(name, mode, *shape, **fields):
    return {"name": name, "mode": mode, "shape": shape, **fields}


def engine(*profiles, **fields):
    """Return an engine OUT = 2 IN with a free first dimension; `profiles` are (least, most) rows."""
    return {
        "tensors": [tensor("IN", "INPUT", -1, 4), tensor("OUT", "OUTPUT", -1, 4, like="IN", factor=2)],
        "profiles": [{"IN": [[low, 4], [low, 4], [high, 4]]} for low, high in profiles or [(1, 8)]],
        **fields,
    }


def write_engine(model_dir, content):
    (model_dir / "1").mkdir(parents=True, exist_ok=True)
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    (model_dir / "1" / "model.plan").write_bytes(data)


def build_cudart(directory):
    """Compile the runtime into a directory; skips without a C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    library = directory / "libcudart.so"
    source = SUPPORT / "fake_cudart.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-pthread", "-o", library, source], check=True)
    return library


def allocation_count(library):
    return ctypes.CDLL(str(library)).fakeAllocationCount()
