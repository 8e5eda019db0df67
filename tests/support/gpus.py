"""An NVML of our own, which a server finds in the place of the driver's."""

import shutil
import subprocess
from pathlib import Path

import pytest

_SOURCE = Path(__file__).with_name("fake_nvml.c")


def fake_nvml(directory: Path) -> dict[str, str]:
    """Compile it; return the environment in which it is found. Skips the test without `pynvml` or a compiler."""
    pytest.importorskip("pynvml")
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    directory.mkdir()
    subprocess.run([compiler, "-shared", "-fPIC", "-o", directory / "libnvidia-ml.so.1", _SOURCE], check=True)
    return {"LD_LIBRARY_PATH": str(directory)}
