"""The backend of docs/backends.md as a package of its own: installed by pip, found by its entry point, served."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as httpclient

from support.model_repository import write_model
from support.server_process import SOURCE

PAGE = Path(__file__).parents[2] / "docs" / "backends.md"
CONFIG = """
backend: "doubler"
max_batch_size: 4
input [ { name: "INPUT0", data_type: TYPE_FP32, dims: [ 3 ] } ]
output [ { name: "OUTPUT0", data_type: TYPE_FP32, dims: [ 3 ] } ]
"""
_INFO = "naiad_doubler-1.0.dist-info"


def write_wheel(folder: Path) -> Path:
    """Write the wheel that a build of the documented package makes."""
    text = PAGE.read_text()
    (code,) = re.findall(r"```python\n(from collections.*?)```", text, re.DOTALL)
    ((section, line),) = re.findall(r'\[project\.entry-points\."([\w.]+)"\]\n(.*)\n', text)
    files = {
        "naiad_doubler.py": code,
        f"{_INFO}/METADATA": "Metadata-Version: 2.1\nName: naiad-doubler\nVersion: 1.0\n",
        f"{_INFO}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{_INFO}/entry_points.txt": f"[{section}]\n" + line.replace('"', "") + "\n",
    }
    files[f"{_INFO}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{_INFO}/RECORD"])
    wheel = folder / "naiad_doubler-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return wheel


def test_it_is_found_and_serves(tmp_path: Path, start_server) -> None:
    pip = [sys.executable, "-m", "pip"]
    if subprocess.run([*pip, "--version"], capture_output=True, check=False).returncode:
        pytest.skip("needs pip")
    packages = tmp_path / "packages"
    install = ["install", "--no-index", "--no-deps", "--target", packages, write_wheel(tmp_path)]
    subprocess.run([*pip, *install], check=True, capture_output=True, timeout=120)
    write_model(tmp_path / "models", "twice", CONFIG, {"1/factor.txt": "2"})
    write_model(tmp_path / "models", "broken", CONFIG, {"1/other.txt": "2"})
    path = os.pathsep.join([str(SOURCE), str(packages)])
    server = start_server(tmp_path / "models", "--exit-on-error=false", environment={"PYTHONPATH": path})
    server.wait_started()
    array = np.array([[1, 2, 3]], np.float32)
    with httpclient.InferenceServerClient(server.http_url, network_timeout=60) as client:
        tensor = httpclient.InferInput("INPUT0", [1, 3], "FP32")
        tensor.set_data_from_numpy(array)
        np.testing.assert_array_equal(client.infer("twice", [tensor]).as_numpy("OUTPUT0"), array * 2)
        index = {row["name"]: row for row in client.get_model_repository_index()}
    assert "model 'broken': there is no file" in index["broken"]["reason"]
    check = [sys.executable, "-m", "naiad", "check", str(tmp_path / "models" / "twice")]
    done = subprocess.run(
        check, capture_output=True, text=True, timeout=60, check=False, env={**os.environ, "PYTHONPATH": path}
    )
    assert (done.returncode, done.stdout.split()[0]) == (0, "twice:"), done.stdout
