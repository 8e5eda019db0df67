"""`naiad new backend` writes a package that installs, passes its own tests and serves a model."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as httpclient

from support.server_process import SOURCE, ServerProcess


def run(*command: object, cwd: Path, path: str = "") -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(SOURCE), path]))}
    return subprocess.run(
        [sys.executable, "-m", *map(str, command)],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("work")
    done = run("naiad", "new", "backend", "my_frame", cwd=home)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("wrote naiad-my-frame\n")
    return home / "naiad-my-frame"


@pytest.fixture(scope="module")
def installed(package: Path) -> Path:
    """Install the package into a directory, without its dependencies and without a network."""
    if run("pip", "--version", cwd=package).returncode:
        pytest.skip("needs pip")
    target = package.parent / "packages"
    install = ("pip", "install", "--no-index", "--no-deps", "--no-build-isolation", "--target", target, package)
    done = run(*install, cwd=package)
    assert done.returncode == 0, done.stderr
    return target


def test_its_tests_pass(package: Path) -> None:
    done = run("pytest", "-q", "-p", "no:cacheprovider", cwd=package)
    assert done.returncode == 0, done.stdout
    assert "8 passed" in done.stdout


@pytest.mark.parametrize("isolation", ["", 'parameters { key: "isolation" value { string_value: "process" } }'])
def test_it_is_found_and_serves(
    package: Path, installed: Path, start_server: Callable[..., ServerProcess], tmp_path: Path, isolation: str
) -> None:
    model = tmp_path / "models" / "example"
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text((package / "models/example/config.pbtxt").read_text() + isolation)
    (model / "1" / "model.json").write_bytes((package / "models/example/1/model.json").read_bytes())
    path = os.pathsep.join([str(SOURCE), str(installed)])
    server = start_server(tmp_path / "models", environment={"PYTHONPATH": path})
    server.wait_ready()
    rows = np.arange(8, dtype=np.float32).reshape(2, 4)
    with httpclient.InferenceServerClient(server.http_url, network_timeout=60) as client:
        tensor = httpclient.InferInput("INPUT", [2, 4], "FP32")
        tensor.set_data_from_numpy(rows)
        np.testing.assert_array_equal(client.infer("example", [tensor]).as_numpy("OUTPUT"), rows * 3)


def test_files_are_never_overwritten(package: Path) -> None:
    again = run("naiad", "new", "backend", "my_frame", cwd=package.parent)
    assert again.returncode == 1
    assert again.stderr == ("naiad new: naiad-my-frame exists and is not empty; choose another with --directory\n")
