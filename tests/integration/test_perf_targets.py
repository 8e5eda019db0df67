"""The targets of naiad perf against a real server."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from naiad.core.datatype import DataType
from naiad.core.request import RequestHeader
from naiad.core.tensor import TensorSpec, to_array, to_buffer
from naiad.tools.perf.perf_exchange import RequestTemplate
from naiad.tools.perf.perf_plan import Mode
from support.certificates import Certificates
from support.perf_targets import Sender, opened, run, template
from support.server_process import ServerProcess

ROWS = np.arange(8, dtype=np.float32).reshape(2, 4)
StartServer = Callable[..., ServerProcess]
URLS = ["http", "grpc"]


def url_of(server: ServerProcess, protocol: str) -> str:
    return f"{protocol}://{server.http_url if protocol == 'http' else server.grpc_url}"


async def check_identity(url: str, mode: Mode = Mode.UNARY, **fields: object) -> None:
    """Send requests of all variations, many at once."""
    async with opened(url, 8, mode, **fields) as target:
        sender = Sender(target, template("identity", ROWS))
        variations = ({}, {"request_id": "a"}, {"wants_timing": True}, {"request_id": "b", "sequence_id": 3})
        for ended in [sender.begin(wants_body=True, **each) for each in variations * 8]:
            exchange = await ended
            assert not exchange.failure, exchange.failure_message
            is_timed = exchange.wants_timing and mode is Mode.UNARY
            assert ("compute" in exchange.timing) is is_timed
            ((specs, data),) = exchange.body
            assert [spec.name for spec in specs] == ["OUTPUT0"]
            assert np.array_equal(to_array(specs[0], data[0]), ROWS)


@pytest.mark.parametrize("compression", ["none", "gzip", "deflate"])
@pytest.mark.parametrize("protocol", URLS)
def test_outputs_come_from_the_model(server: ServerProcess, protocol: str, compression: str) -> None:
    run(check_identity(url_of(server, protocol), compression=compression))


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_streams_carry_many_requests(server: ServerProcess, compression: str) -> None:
    run(check_identity(url_of(server, "grpc"), Mode.STREAM, compression=compression))


def test_decoupled_responses_are_timed(server: ServerProcess) -> None:
    values = {
        "IN": np.array([4, 2, 0, 1], np.int32),
        "DELAY": np.full(4, 5, np.uint32),
        "WAIT": np.zeros(1, np.uint32),
    }
    kinds = {"IN": DataType.INT32, "DELAY": DataType.UINT32, "WAIT": DataType.UINT32}
    specs = [TensorSpec(name, kinds[name], array.shape) for name, array in values.items()]
    request = RequestTemplate(RequestHeader(model_name="repeat", inputs=specs), [*map(to_buffer, values.values())])

    async def body() -> None:
        async with opened(url_of(server, "grpc"), 3, Mode.STREAM) as target:
            sender = Sender(target, request)
            for ended in [sender.begin(wants_body=True) for _ in range(3)]:
                exchange = await ended
                assert (exchange.failure, exchange.responses, len(exchange.gaps_ns)) == ("", 4, 3)
                assert [int.from_bytes(data[0], "little") for _, data in exchange.body] == [4, 2, 0, 1]
                assert exchange.end_ns - exchange.first_ns == sum(exchange.gaps_ns)

    run(body())


def test_stream_errors_fail_one_request(server: ServerProcess) -> None:
    async def body() -> None:
        async with opened(url_of(server, "grpc"), 1, Mode.STREAM) as target:
            exchange = await Sender(target, template("missing", ROWS)).send()
            assert exchange.failure == "unknown"
            assert "unknown model: 'missing'" in exchange.failure_message
            assert not (await Sender(target, template("identity", ROWS)).send()).failure

    run(body())


@pytest.mark.parametrize("has_binary_outputs", [True, False])
@pytest.mark.parametrize("has_binary_inputs", [True, False])
def test_json_and_binary_tensors(server: ServerProcess, has_binary_inputs: bool, has_binary_outputs: bool) -> None:
    url = url_of(server, "http")
    run(check_identity(url, has_binary_inputs=has_binary_inputs, has_binary_outputs=has_binary_outputs))


def test_tls_and_unix_sockets(tls_unix_server: ServerProcess, certificates: Certificates) -> None:
    https = f"https://{tls_unix_server.http_url}"
    run(check_identity(https, ca_file=str(certificates.root)))
    run(check_identity(https, verifies_peer=False))
    run(check_identity(f"grpc+{tls_unix_server.grpc_url.replace('unix:', 'unix://')}"))


@pytest.mark.parametrize("protocol", URLS)
def test_large_inputs_and_outputs(server: ServerProcess, protocol: str) -> None:
    array = np.arange(3 << 20, dtype=np.float32).reshape(1, -1)

    async def body() -> None:
        async with opened(url_of(server, protocol), 4) as target:
            sender = Sender(target, template("identity", array))
            for ended in [sender.begin(wants_body=True, request_id=str(i)) for i in range(4)]:
                exchange = await ended
                assert not exchange.failure, exchange.failure_message
                assert bytes(exchange.body[0][1][0]) == array.tobytes()

    run(body())


@pytest.mark.parametrize("protocol", URLS)
def test_errors_have_the_server_code(server: ServerProcess, protocol: str) -> None:
    async def body() -> None:
        async with opened(url_of(server, protocol)) as target:
            exchange = await Sender(target, template("missing", ROWS)).send()
            assert exchange.failure == "not_found"
            assert "unknown model: 'missing'" in exchange.failure_message
            exchange = await Sender(target, template("identity", ROWS, "WRONG")).send()
            assert exchange.failure == "invalid_arg"

    run(body())


@pytest.mark.parametrize("protocol", URLS)
def test_killed_server_ends_every_request(
    start_server: Callable[..., ServerProcess], repository: Path, protocol: str
) -> None:
    server = start_server(repository)
    server.wait_ready()

    async def body() -> None:
        async with opened(url_of(server, protocol), 16) as target:
            sender = Sender(target, template("slow_identity", ROWS))
            begun = [sender.begin() for _ in range(16)]
            server.process.kill()
            failures = [(await ended).failure for ended in begun]
            assert set(failures) <= {"connection", ""}
            assert "connection" in failures
            assert len(sender.ends) == 16

    run(body())
