"""Real servers for integration tests: one that is shared, and a factory for tests that need their own."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support import onnx_models
from support import transport as transports
from support.certificates import Certificates
from support.model_repository import add_sub_config, write_identity, write_model, write_python_add_sub
from support.server_process import ServerProcess, serving
from support.transport import Transport, new_transport

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


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Certificates of a server and its clients."""
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def tls_unix_server(
    repository: Path, certificates: Certificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """A ready server over `repository` whose HTTP speaks TLS and whose gRPC listens on a Unix socket."""
    directory = tmp_path_factory.mktemp("tls-unix")
    flags = [f"--model-repository={repository}", f"--grpc-address=unix:{directory / 'grpc'}"]
    context = certificates.client_context()
    with serving(directory / "log", *flags, *certificates.flags("http"), tls=context) as running:
        yield running


@pytest.fixture(params=transports.PLAIN)
def transport(request: pytest.FixtureRequest) -> Iterator[Transport]:
    """Each transport of `server`, which a module may override.

    With `pytest.mark.parametrize("transport", transports.ALL, indirect=True)` also TLS and Unix sockets.
    """
    if request.param in transports.PLAIN:
        opened = new_transport(request.param, request.getfixturevalue("server"))
    else:
        names = ("tls_unix_server", "certificates")
        opened = new_transport(request.param, *[request.getfixturevalue(name) for name in names])
    yield opened
    opened.close()


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
