"""The servers under comparison: how each is installed into its own environment, configured and started.

Every peer serves the same add/sub model (two FP32[16] inputs, sum and difference). `Peer.start` returns a running
server with its process, so that the load scripts can charge CPU time to the whole process tree.
"""

import os
import shutil
import socket
import subprocess
import sys
import textwrap
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
PEERS_DIR = HERE / ".peers"


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


@dataclass
class Running:
    """A started server."""

    name: str
    process: "subprocess.Popen[bytes]"
    http_port: int
    grpc_port: int
    startup_s: float
    models: Sequence[str]
    http_path: str = "/v2/models/{model}/infer"
    binary: bool = True
    log: Path = field(default_factory=Path)

    def stop(self) -> None:
        """End the server that `start` started, politely first."""
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


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
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(self.venv)], check=True)
        subprocess.run([str(self.python), "-m", "pip", "install", "-q", *self.requirements], check=True)
        self.prepare()
        marker.write_text(repr(list(self.requirements)))

    def prepare(self) -> None:
        """Finish the installation; nothing by default."""

    def command(self, repository: Path, work: Path, ports: Sequence[int]) -> tuple[list[str], dict[str, str]]:
        """Return the command line and extra environment; `ports` are HTTP, gRPC and metrics."""
        raise NotImplementedError

    def start(
        self, repository: Path, work: Path, models: Sequence[str], ready_path: str = "/v2/health/ready"
    ) -> Running:
        """Start the server on free loopback ports and wait until it is ready."""
        work.mkdir(parents=True, exist_ok=True)
        ports = free_ports(3)
        command, extra = self.command(repository, work, ports)
        log = work / f"{self.name}.log"
        began = time.monotonic()
        with log.open("wb") as sink:
            process = subprocess.Popen(command, env={**os.environ, **extra}, stdout=sink, stderr=subprocess.STDOUT)
        url = f"http://127.0.0.1:{ports[0]}{ready_path}"
        while True:
            if process.poll() is not None:
                raise RuntimeError(f"{self.name} exited with {process.returncode}:\n{log.read_text()[-2000:]}")
            if time.monotonic() - began > 120:
                process.kill()
                raise RuntimeError(f"{self.name} was not ready within 120 s:\n{log.read_text()[-2000:]}")
            try:
                with urllib.request.urlopen(url, timeout=1) as answer:
                    if answer.status == 200:
                        break
            except OSError:
                time.sleep(0.01)
        return Running(self.name, process, ports[0], ports[1], time.monotonic() - began, models, log=log)


class Naiad(Peer):
    """naiad, from this checkout, in the environment that runs the benchmark."""

    name = "naiad"

    def install(self) -> None:
        """Use the running environment."""

    def command(self, repository: Path, work: Path, ports: Sequence[int]) -> tuple[list[str], dict[str, str]]:
        """Start `naiad serve`."""
        http, grpc, metrics = map(str, ports)
        command = [sys.executable, "-m", "naiad", "serve", "--model-repository", str(repository)]
        command += ["--http-address", "127.0.0.1", "--grpc-address", "127.0.0.1"]
        command += ["--http-port", http, "--grpc-port", grpc, "--metrics-port", metrics]
        return command, {"PYTHONPATH": str(HERE.parent / "src")}


class Triton(Peer):
    """Real Triton with its Python backend, as the PyPI wheel `nvidia-pytriton` carries it."""

    name = "triton"
    # Triton's Python stub returns empty tensors with numpy 2 in its environment.
    requirements = ("nvidia-pytriton", "numpy<2")

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

    def command(self, repository: Path, work: Path, ports: Sequence[int]) -> tuple[list[str], dict[str, str]]:
        """Start `tritonserver`."""
        http, grpc, metrics = map(str, ports)
        command = [str(self.home / "bin" / "tritonserver"), f"--model-repository={repository}"]
        command += [f"--backend-directory={self.home / 'backends'}"]
        command += ["--http-address", "127.0.0.1", "--grpc-address", "127.0.0.1"]
        command += ["--http-port", http, "--grpc-port", grpc, "--metrics-port", metrics]
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
        (home / "model-settings.json").write_text('{"name": "add_sub", "implementation": "runtime.AddSub"}')
        (home / "settings.json").write_text(
            f'{{"host": "127.0.0.1", "http_port": {ports[0]}, "grpc_port": {ports[1]}, "metrics_port": {ports[2]}, '
            '"parallel_workers": 0, "debug": false}'
        )
        return [str(self.venv / "bin" / "mlserver"), "start", str(home)], {"PYTHONPATH": str(home)}


class FastApi(Peer):
    """What teams write by hand: FastAPI and uvicorn, JSON, the model called in the handler."""

    name = "fastapi"
    requirements = ("fastapi", "uvicorn[standard]", "onnxruntime", "numpy")

    def command(self, repository: Path, work: Path, ports: Sequence[int]) -> tuple[list[str], dict[str, str]]:
        """Write an application that speaks the same JSON and start uvicorn."""
        (work / "fastapi_app.py").write_text(
            textwrap.dedent(
                f"""
                import numpy as np
                import onnxruntime
                from fastapi import FastAPI, Request

                app = FastAPI()
                options = onnxruntime.SessionOptions()
                options.intra_op_num_threads = 1
                session = onnxruntime.InferenceSession({str(repository / "add_sub" / "1" / "model.onnx")!r}, options)

                @app.get("/v2/health/ready")
                def ready() -> dict:
                    return {{}}

                @app.post("/v2/models/add_sub/infer")
                async def infer(request: Request) -> dict:
                    body = await request.json()
                    feed = {{
                        t["name"]: np.array(t["data"], np.float32).reshape(t["shape"]) for t in body["inputs"]
                    }}
                    names = [o.name for o in session.get_outputs()]
                    values = session.run(names, feed)
                    return {{
                        "model_name": "add_sub",
                        "outputs": [
                            {{"name": n, "datatype": "FP32", "shape": list(v.shape), "data": v.ravel().tolist()}}
                            for n, v in zip(names, values)
                        ],
                    }}
                """
            )
        )
        command = [str(self.venv / "bin" / "uvicorn"), "fastapi_app:app", "--host", "127.0.0.1"]
        command += ["--port", str(ports[0]), "--log-level", "warning", "--app-dir", str(work)]
        return command, {}


ALL: dict[str, type[Peer]] = {peer.name: peer for peer in (Naiad, Triton, MLServer, FastApi)}
