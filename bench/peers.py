"""The servers under comparison: how each is installed into its own environment, configured and started.

Every peer serves the same add/sub model (two FP32[16] inputs, sum and difference). `Peer.start` returns a running
server with its process, so that the load scripts can charge CPU time to the whole process tree.
"""

import argparse
import contextlib
import ctypes
import http.client
import json
import os
import runpy
import shutil
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from bench.process_tree import processes

HERE = Path(__file__).resolve().parent
PEERS_DIR = HERE / ".peers"
_START_TIMEOUT_S = 120
_ONNX_BACKEND = Path("onnxruntime", "libtriton_onnxruntime.so")


def free_ports(count: int) -> list[int]:
    """Return ports that are free on loopback at this moment."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def backends_directory(text: str) -> Path:
    """Return the directory of Triton backends that a flag names. Raises ArgumentTypeError without ONNX Runtime's."""
    directory = Path(text).resolve()
    if not (directory / _ONNX_BACKEND).is_file():
        message = f"{text} has no file {_ONNX_BACKEND}; docs/benchmarks.md says how to make such a directory"
        raise argparse.ArgumentTypeError(message)
    return directory


def make_venv(directory: Path) -> None:
    """Make an empty virtual environment with pip in it."""
    command = [sys.executable, "-m", "venv", "--clear"]
    done = subprocess.run([*command, str(directory)], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    # Debian ships venv without ensurepip: there this environment's pip installs pip.
    subprocess.run([*command, "--without-pip", str(directory)], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(directory / "bin" / "python"), "install", "-q", "pip"]
    subprocess.run(pip, check=True)


@dataclass
class Running:
    """A started server."""

    name: str
    process: "subprocess.Popen[bytes]"
    http_port: int
    grpc_port: int
    startup_s: float
    log: Path = field(default_factory=Path)
    metrics_port: int = 0

    def stop(self) -> None:
        """End the server that `start` started, politely first, and all that it leaves behind."""
        if self.process.poll() is not None:
            return
        children = processes(self.process.pid)[1:]
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()


class Peer:
    """A server that can be installed and started."""

    name = ""
    requirements: Sequence[str] = ()

    @property
    def venv(self) -> Path:
        """The environment of this peer."""
        return PEERS_DIR / self.name

    @property
    def python(self) -> Path:
        """The interpreter of this peer's environment."""
        return self.venv / "bin" / "python"

    def install(self) -> None:
        """Create the environment once."""
        marker = self.venv / ".installed"
        if marker.exists() and marker.read_text() == repr(list(self.requirements)):
            return
        make_venv(self.venv)
        subprocess.run([str(self.python), "-m", "pip", "install", "-q", *self.requirements], check=True)
        self.prepare()
        marker.write_text(repr(list(self.requirements)))

    def prepare(self) -> None:
        """Finish the installation; nothing by default."""

    def command(self, repository: Path, work: Path, ports: Sequence[int]) -> tuple[list[str], dict[str, str]]:
        """Return the command line and extra environment; `ports` are HTTP, gRPC and metrics."""
        raise NotImplementedError

    def version(self) -> str:
        """Return the installed version of the peer's main package."""
        code = "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))"
        command = [str(self.python), "-c", code, self.package]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    @property
    def package(self) -> str:
        """The package whose version names this peer."""
        return self.requirements[0]

    def start(self, repository: Path, work: Path) -> Running:
        """Start the server on free loopback ports and wait until it is ready."""
        work.mkdir(parents=True, exist_ok=True)
        ports = free_ports(3)
        command, extra = self.command(repository, work, ports)
        log = work / f"{self.name}.log"
        began = time.monotonic()
        with log.open("wb") as sink:
            # The peers have packages of their own, so no path of this process may reach them.
            environment = {**os.environ, "PYTHONPATH": "", **extra}
            process = subprocess.Popen(command, env=environment, stdout=sink, stderr=subprocess.STDOUT)
        running = Running(self.name, process, ports[0], ports[1], 0.0, log, ports[2])
        try:
            while not _is_ready(ports[0]):
                if process.poll() is not None:
                    raise RuntimeError(f"{self.name} exited with {process.returncode}:\n{log.read_text()[-2000:]}")
                if time.monotonic() - began > _START_TIMEOUT_S:
                    raise RuntimeError(
                        f"{self.name} is not ready after {_START_TIMEOUT_S} s:\n{log.read_text()[-2000:]}"
                    )
                time.sleep(0.01)
            running.startup_s = time.monotonic() - began
        except BaseException:
            running.stop()
            raise
        return running


def _is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
    try:
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


class Naiad(Peer):
    """naiad, from this checkout or another one, in the environment that runs the benchmark."""

    name = "naiad"

    def __init__(self, *flags: str, checkout: Path = HERE.parent, name: str = "naiad") -> None:
        self.flags = flags
        self.name = name
        self.source = checkout / "src"

    def install(self) -> None:
        """Use the running environment."""

    def version(self) -> str:
        """Return the version of the checkout."""
        files = [self.source / "naiad" / "core" / "version.py", self.source / "naiad" / "__init__.py"]
        # A checkout to compare with may be older than the first file.
        return str(runpy.run_path(str(next(file for file in files if file.is_file())))["__version__"])

    def command(self, repository: Path, work: Path, ports: Sequence[int]) -> tuple[list[str], dict[str, str]]:
        """Start `naiad serve`."""
        http_port, grpc_port, metrics_port = map(str, ports)
        command = [sys.executable, "-m", "naiad", "serve", "--model-repository", str(repository)]
        command += ["--http-address", "127.0.0.1", "--grpc-address", "127.0.0.1"]
        command += ["--http-port", http_port, "--grpc-port", grpc_port, "--metrics-port", metrics_port]
        return [*command, *self.flags], {"PYTHONPATH": str(self.source)}


class _OrtApiBase(ctypes.Structure):
    """What every ONNX Runtime library returns first."""

    _fields_ = [("get_api", ctypes.c_void_p), ("get_version_string", ctypes.CFUNCTYPE(ctypes.c_char_p))]


class Triton(Peer):
    """Real Triton with its Python backend, as the PyPI wheel `nvidia-pytriton` carries it.

    `backends` is a directory with a backend for ONNX Runtime, which the wheel lacks.
    """

    name = "triton"
    # Triton's Python stub returns empty tensors with numpy 2 in its environment.
    requirements = ("nvidia-pytriton", "numpy<2")

    def __init__(self, backends: Path | None = None) -> None:
        self.backends = backends

    @property
    def home(self) -> Path:
        """Where the wheel unpacks the server."""
        (found,) = self.venv.glob("lib/python*/site-packages/pytriton/tritonserver")
        return found

    def prepare(self) -> None:
        """Put the stub of this interpreter beside the backend, where Triton looks for it."""
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        stub = self.home / "python_backend_stubs" / version / "triton_python_backend_stub"
        target = self.home / "backends" / "python" / "triton_python_backend_stub"
        shutil.copy(stub, target)
        for program in (target, self.home / "bin" / "tritonserver"):
            program.chmod(0o755)

    def onnxruntime_version(self) -> str:
        """Return the version of the ONNX Runtime beside the given backend, empty if none is there."""
        found = sorted(self.backends.glob("onnxruntime/libonnxruntime.so*")) if self.backends else []
        if not found:
            return ""
        base = ctypes.CDLL(str(found[0])).OrtGetApiBase
        base.restype = ctypes.POINTER(_OrtApiBase)
        return str(base().contents.get_version_string().decode())

    def link_backends(self, target: Path) -> Path:
        """Link the wheel's backend and the given one into `target`, because the server takes one directory."""
        target.mkdir()
        for directory, name in ((self.home / "backends", "python"), (self.backends, "onnxruntime")):
            if directory is not None:
                (target / name).symlink_to(directory / name)
        return target

    def command(self, repository: Path, work: Path, ports: Sequence[int]) -> tuple[list[str], dict[str, str]]:
        """Start `tritonserver`."""
        http_port, grpc_port, metrics_port = map(str, ports)
        command = [str(self.home / "bin" / "tritonserver"), f"--model-repository={repository}"]
        # Its tables of information would hide the reason of a failed start at the end of the log.
        command += ["--log-info=false", f"--backend-directory={self.link_backends(work / 'backends')}"]
        command += ["--http-address", "127.0.0.1", "--grpc-address", "127.0.0.1"]
        command += ["--http-port", http_port, "--grpc-port", grpc_port, "--metrics-port", metrics_port]
        packages = self.home.parent.parent
        environment = {
            "PATH": f"{self.venv / 'bin'}:{os.environ['PATH']}",
            "VIRTUAL_ENV": str(self.venv),
            "PYTHONPATH": str(packages),
            "LD_LIBRARY_PATH": f"{packages / 'nvidia_pytriton.libs'}:{self.home / 'external_libs'}",
        }
        return command, environment


class MLServer(Peer):
    """Seldon's MLServer with a Python runtime; its HTTP is JSON only."""

    name = "mlserver"
    requirements = ("mlserver", "numpy<2")

    def command(self, repository: Path, work: Path, ports: Sequence[int]) -> tuple[list[str], dict[str, str]]:
        """Write a model folder and start `mlserver`."""
        home = work / "mlserver"
        home.mkdir(parents=True, exist_ok=True)
        (home / "runtime.py").write_text(
            textwrap.dedent(
                """
                import numpy as np
                from mlserver import MLModel
                from mlserver.codecs import NumpyCodec
                from mlserver.types import InferenceRequest, InferenceResponse

                class AddSub(MLModel):
                    async def load(self) -> bool:
                        return True

                    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
                        a, b = (NumpyCodec.decode_input(tensor) for tensor in payload.inputs)
                        return InferenceResponse(
                            model_name=self.name,
                            outputs=[
                                NumpyCodec.encode_output("OUTPUT0", a + b),
                                NumpyCodec.encode_output("OUTPUT1", a - b),
                            ],
                        )
                """
            )
        )
        for model in ("add_sub", "add_sub_py"):
            (home / model).mkdir(exist_ok=True)
            settings = {
                "name": model,
                "implementation": "runtime.AddSub",
                "inputs": [{"name": name, "datatype": "FP32", "shape": [1, 16]} for name in ("INPUT0", "INPUT1")],
                "outputs": [{"name": name, "datatype": "FP32", "shape": [1, 16]} for name in ("OUTPUT0", "OUTPUT1")],
            }
            (home / model / "model-settings.json").write_text(json.dumps(settings))
        server = {"host": "127.0.0.1", "http_port": ports[0], "grpc_port": ports[1], "metrics_port": ports[2]}
        (home / "settings.json").write_text(json.dumps({**server, "parallel_workers": 0, "debug": False}))
        return [str(self.venv / "bin" / "mlserver"), "start", str(home)], {"PYTHONPATH": str(home)}


class FastApi(Peer):
    """What teams write by hand: FastAPI and uvicorn, JSON, the model called in the handler."""

    name = "fastapi"
    requirements = ("fastapi", "uvicorn[standard]", "onnxruntime", "numpy")

    def command(self, repository: Path, work: Path, ports: Sequence[int]) -> tuple[list[str], dict[str, str]]:
        """Write an application that speaks the same JSON for the repository's ONNX models and start uvicorn."""
        (work / "fastapi_app.py").write_text(
            textwrap.dedent(
                """
                import os
                from pathlib import Path

                import numpy as np
                import onnxruntime
                from fastapi import FastAPI, Request

                app = FastAPI()
                options = onnxruntime.SessionOptions()
                options.intra_op_num_threads = 1
                sessions = {
                    path.parent.parent.name: onnxruntime.InferenceSession(path, options)
                    for path in Path(os.environ["REPOSITORY"]).glob("*/1/model.onnx")
                }

                @app.get("/v2/health/ready")
                def ready() -> dict:
                    return {}

                @app.post("/v2/models/{model}/infer")
                async def infer(model: str, request: Request) -> dict:
                    body = await request.json()
                    feed = {t["name"]: np.array(t["data"], np.float32).reshape(t["shape"]) for t in body["inputs"]}
                    session = sessions[model]
                    names = [o.name for o in session.get_outputs()]
                    values = session.run(names, feed)
                    return {
                        "model_name": model,
                        "outputs": [
                            {"name": n, "datatype": "FP32", "shape": list(v.shape), "data": v.ravel().tolist()}
                            for n, v in zip(names, values)
                        ],
                    }
                """
            )
        )
        command = [str(self.venv / "bin" / "uvicorn"), "fastapi_app:app", "--host", "127.0.0.1"]
        command += ["--port", str(ports[0]), "--log-level", "warning", "--app-dir", str(work)]
        return command, {"REPOSITORY": str(repository)}


ALL: dict[str, type[Peer]] = {peer.name: peer for peer in (Naiad, Triton, MLServer, FastApi)}
