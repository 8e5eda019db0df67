"""Python models on interpreters of their own: requirements files, virtual environments, archives, other Pythons."""

import io
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient

from support.long_run import is_long
from support.model_repository import write_model

pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning"), pytest.mark.timeout(400)]

QUICK_PIP = {"PIP_NO_COMPILE": "1"}
"""Python compiles what a model imports, which of numpy is a small part."""
_TELLER = """
import os, sys
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        found = [np.__version__, "%d.%d" % sys.version_info[:2], sys.prefix, os.environ.get("PYTHONPATH", "")]
        tensor = pb_utils.Tensor("FOUND", np.array([text.encode() for text in found], dtype=np.object_))
        return [pb_utils.InferenceResponse([tensor]) for _ in requests]
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def write_teller(root: Path, name: str, environment: str, **parameters: str) -> Path:
    given = {"EXECUTION_ENV_PATH": environment, **parameters} if environment else parameters
    text = "".join(f'parameters {{ key: "{k}" value {{ string_value: "{v}" }} }}\n' for k, v in given.items())
    config = f"""
      backend: "python" max_batch_size: 0
      input [ {{ name: "IN" data_type: TYPE_FP32 dims: [ 1 ] optional: true }} ]
      output [ {{ name: "FOUND" data_type: TYPE_STRING dims: [ 4 ] }} ]
      {text}
    """
    write_model(root, name, config, {"1/model.py": _TELLER})
    return root / name


def environment_of(server, name: str) -> list[str]:
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        return [element.decode() for element in client.infer(name, []).as_numpy("FOUND")]


VERSIONS = {"old": "1.26.4"} | ({"new": "2.2.6"} if is_long() else {})
"""Versions of numpy in environments of models. CI makes one, beside the server's own environment with another one."""


def test_two_models_with_two_versions_of_one_package(tmp_path: Path, start_server, cache: Path) -> None:
    assert np.__version__ not in VERSIONS.values()
    root = tmp_path / "models"
    for name, requirement in VERSIONS.items():
        directory = write_teller(root, name, "$$TRITON_MODEL_DIRECTORY/requirements.txt")
        (directory / "requirements.txt").write_text(f"numpy=={requirement}\n")
    write_teller(root, "own", "")
    environment = {"NAIAD_CACHE": str(cache), **QUICK_PIP}
    first = start_server(root, environment=environment)
    first.wait_ready(timeout_s=300)
    for name, version in {**VERSIONS, "own": np.__version__}.items():
        assert environment_of(first, name)[0] == version
    assert environment_of(first, "old")[2].startswith(str(cache))
    assert environment_of(first, "old")[3] == ""
    assert environment_of(first, "own")[2] == sys.prefix
    log = first.log_text()
    assert "model 'old': pip: Successfully installed numpy-1.26.4" in log, log
    assert "model 'old' runs on Python 3" in log
    assert "with numpy 1.26.4 of" in log
    first.stop()
    second = start_server(root, environment=environment)
    second.wait_ready()
    assert environment_of(second, "old")[0] == "1.26.4"
    assert "preparing the environment" not in second.log_text()


def other_python() -> str:
    """Return an interpreter of another minor version, "" when there is none."""
    places = [Path.home() / ".pyenv" / "versions", Path("/opt/python"), Path("/usr/bin"), Path("/usr/local/bin")]
    found = [p for place in places for p in (*place.glob("3.*/bin/python3"), *place.glob("python3.[0-9]*"))]
    for path in sorted(found, reverse=True):
        question = "import sys, venv, ensurepip; print(*sys.version_info[:2])"
        done = subprocess.run([path, "-c", question], capture_output=True, text=True, check=False)
        version = tuple(map(int, done.stdout.split())) if done.returncode == 0 else ()
        if (3, 8) <= version <= (3, 12) and version != sys.version_info[:2]:
            return str(path)
    return ""


@pytest.mark.long
def test_another_version_of_python(tmp_path: Path, start_server, cache: Path) -> None:
    python = other_python()
    if not python:
        pytest.skip("no other Python here")
    root = tmp_path / "models"
    directory = write_teller(root, "other", "requirements.txt", EXECUTION_ENV_PYTHON=python)
    (directory / "requirements.txt").write_text("numpy<2\n")
    server = start_server(root, environment={"NAIAD_CACHE": str(cache), **QUICK_PIP})
    server.wait_ready(timeout_s=300)
    numpy, version, *_ = environment_of(server, "other")
    assert numpy.startswith("1.")
    assert version != "{}.{}".format(*sys.version_info[:2])


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A virtual environment with numpy, and the archive of it."""
    home = tmp_path_factory.mktemp("packed") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    (packages,) = home.glob("lib/python*/site-packages")
    without_tests = shutil.ignore_patterns("tests", "__pycache__")
    for each in Path(np.__file__).parents[1].glob("numpy*"):  # the package, its libraries, its metadata
        shutil.copytree(each, packages / each.name, ignore=without_tests)
    archive = home.with_name("env.tar.gz")
    with tarfile.open(archive, "w:gz", compresslevel=1) as opened:
        opened.add(home, ".")
    return home, archive


@pytest.mark.long
def test_a_directory_and_an_archive(tmp_path: Path, start_server, cache: Path, packed) -> None:
    home, archive = packed
    root = tmp_path / "models"
    write_teller(root, "directory", str(home))
    write_teller(root, "archive", str(archive))
    server = start_server(root, environment={"NAIAD_CACHE": str(cache)})
    server.wait_ready(timeout_s=120)
    assert environment_of(server, "directory")[2:] == [str(home), ""]
    _, _, prefix, path = environment_of(server, "archive")
    assert prefix.startswith(str(cache))
    assert path == ""


def hostile_archive(path: Path, name: str) -> Path:
    with tarfile.open(path, "w:gz") as opened:
        member = tarfile.TarInfo(name)
        member.size = 4
        opened.addfile(member, io.BytesIO(b"evil"))
    return path


def test_unusable_environments_are_reported(tmp_path: Path, start_server, cache: Path) -> None:
    root = tmp_path / "models"
    write_teller(root, "absent", "/nowhere/env.tar.gz")
    write_teller(root, "outside", str(hostile_archive(tmp_path / "outside.tar.gz", "../../evil")))
    write_teller(root, "absolute", str(hostile_archive(tmp_path / "absolute.tar.gz", f"{tmp_path}/evil")))
    (tmp_path / "broken.tar.gz").write_bytes(b"\x1f\x8b\x08nothing")
    write_teller(root, "broken", str(tmp_path / "broken.tar.gz"))
    empty = tmp_path / "empty"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", empty], check=True)
    write_teller(root, "no_numpy", str(empty))
    (tmp_path / "nothing").mkdir()
    write_teller(root, "no_python", str(tmp_path / "nothing"))
    directory = write_teller(root, "no_such", "requirements.txt")
    (directory / "requirements.txt").write_text("a-package-that-does-not-exist==1\n")
    server = start_server(
        root,
        "--exit-on-error=false",
        "--model-load-thread-count=8",
        # Without an index pip refuses a package at once; with one it would ask for it again and again.
        environment={"NAIAD_CACHE": str(cache), "PIP_NO_INDEX": "1"},
    )
    server.wait_started(timeout_s=200)
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        reasons = {row.name: row.reason for row in client.get_model_repository_index().models}
    assert "/nowhere/env.tar.gz does not exist" in reasons["absent"]
    assert "outside.tar.gz cannot be unpacked" in reasons["outside"]
    assert "absolute.tar.gz cannot be unpacked" in reasons["absolute"]
    assert not (tmp_path / "evil").exists()
    assert "broken.tar.gz cannot be unpacked" in reasons["broken"]
    assert "add numpy to the environment" in reasons["no_numpy"]
    assert "has no bin/python" in reasons["no_python"]
    assert "requirements.txt; the log of the server has its output" in reasons["no_such"]
    assert "a-package-that-does-not-exist" not in reasons["no_such"]
    assert "a-package-that-does-not-exist" in server.log_text()
