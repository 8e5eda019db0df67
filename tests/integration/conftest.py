"""Real servers for integration tests: one that is shared, and a factory for tests that need their own."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

from support import onnx_models
from support.model_repository import add_sub_config, write_identity, write_model, write_python_add_sub
from support.server_process import ServerProcess, serving

IDENTITY_DATATYPES = (
    "BOOL",
    *(f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)),
    "FP16",
    "FP32",
    "FP64",
    "BF16",
    "STRING",
)

StartServer = Callable[..., ServerProcess]


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of models that every datatype and backend can be tried on.

    `add_sub` (ONNX, batches dynamically up to 32), `python_add_sub`, `identity` (FP32), `identity_<datatype>` in
    lower case, `slow_identity`, which takes 500 ms, and `repeat`, which is decoupled.
    """
    root = tmp_path_factory.mktemp("models")
    config = add_sub_config("onnxruntime", max_batch_size=32, extra="dynamic_batching { }")
    write_model(root, "add_sub", config, {"1/model.onnx": onnx_models.add_sub()})
    write_python_add_sub(root)
    write_identity(root)
    for datatype in IDENTITY_DATATYPES:
        write_identity(root, f"identity_{datatype.lower()}", datatype=datatype)
    write_model(root, "repeat", 'backend: "repeat"\n')
    write_identity(root, "slow_identity", parameters={"execute_delay_ms": "500"})
    return root


@pytest.fixture(scope="session")
def server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A ready server over `repository`; tests must leave it as it is."""
    with serving(tmp_path_factory.mktemp("server") / "log", f"--model-repository={repository}") as running:
        yield running


@pytest.fixture(params=["http", "grpc"])
def protocol(request: pytest.FixtureRequest, server: ServerProcess) -> tuple[ModuleType, str]:
    """tritonclient's module for a protocol, and the server's address for it."""
    if request.param == "http":
        return httpclient, server.http_url
    return grpcclient, server.grpc_url


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[StartServer]:
    """A function `(repository, *flags, environment=None)` that starts a server, which ends with the test.

    It does not wait for anything; a repository of None gives no --model-repository.
    """
    started: list[ServerProcess] = []

    def start(repository: Path | None, *flags: str, environment: dict[str, str] | None = None) -> ServerProcess:
        where = [] if repository is None else [f"--model-repository={repository}"]
        log = tmp_path / f"server-{len(started)}.log"
        started.append(ServerProcess(log, *where, *flags, environment=environment))
        return started[-1]

    yield start
    for running in started:
        running.stop()
