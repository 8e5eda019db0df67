"""naiad's own client against a real server, over both protocols."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from naiad.cli.key import new_key
from naiad.client import Client, ErrorCode, InferError, RequestedOutput
from support.certificates import Certificates
from support.model_repository import write_identity
from support.server_process import ServerProcess

StartServer = Callable[..., ServerProcess]
ROWS = np.arange(8, dtype=np.float32).reshape(2, 4)
INTEGERS = [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
ARRAYS = {
    "bool": np.array([[True, False]]),
    **{
        f"{kind}{bits}": np.array([[1, 100]], f"{kind}{bits}") for kind in ("int", "uint") for bits in (8, 16, 32, 64)
    },
    **{f"fp{bits}": np.array([[-1.5, np.inf]], f"float{bits}") for bits in (16, 32, 64)},
    "bf16": np.array([[-1.5, 3e38]], ml_dtypes.bfloat16),
    "string": np.array([[b"a\xff", b""]], np.object_),
}


def url_of(protocol: str, server: ServerProcess) -> str:
    return f"http://{server.http_url}" if protocol == "http" else f"grpc://{server.grpc_url}"


@pytest.fixture(params=["http", "grpc"])
def url(request: pytest.FixtureRequest, server: ServerProcess) -> str:
    return url_of(request.param, server)


@asynccontextmanager
async def failing(code: ErrorCode, words: str) -> AsyncIterator[None]:
    with pytest.raises(InferError, match=words) as raised:
        yield
    assert raised.value.code is code


def run(call: Callable[[Client], object], url: str, **options: object) -> object:
    async def body() -> object:
        async with Client(url, timeout_s=60, **options) as client:
            return await call(client)

    return asyncio.run(body())


@pytest.mark.parametrize("name", ARRAYS)
def test_datatypes_survive(url: str, name: str) -> None:
    array = ARRAYS[name]
    result = run(lambda client: client.infer(f"identity_{name}", {"INPUT0": array}), url)
    assert result["OUTPUT0"].dtype == array.dtype
    assert (result["OUTPUT0"] == array).all()


def test_empty_and_large_arrays_survive(url: str) -> None:
    async def body(client: Client) -> None:
        for columns in (0, 5_000_000):
            array = np.full((1, columns), 7, np.float32)
            result = await client.infer("identity", {"INPUT0": array})
            assert np.array_equal(result["OUTPUT0"], array)

    run(body, url)


def test_result_has_id_version_and_chosen_outputs(url: str) -> None:
    async def body(client: Client) -> None:
        row = np.ones((1, 16), np.float32)
        result = await client.infer(
            "add_sub", {"INPUT0": row, "INPUT1": row}, outputs=["OUTPUT1"], version="1", request_id="an ä id"
        )
        assert (result.id, result.model_name, result.model_version, list(result)) == (
            "an ä id",
            "add_sub",
            "1",
            ["OUTPUT1"],
        )
        assert not result["OUTPUT1"].any()

    run(body, url)


def test_classification_returns_text(url: str) -> None:
    result = run(
        lambda client: client.infer(
            "identity", {"INPUT0": ROWS}, outputs=[RequestedOutput("OUTPUT0", classification=1)]
        ),
        url,
    )
    assert result["OUTPUT0"].ravel().tolist() == [b"3.000000:3", b"7.000000:3"]


def test_concurrent_calls_keep_their_responses(url: str) -> None:
    async def body(client: Client) -> None:
        arrays = [np.full((1, 4), number, np.float32) for number in range(300)]
        results = await asyncio.gather(*[client.infer("identity", {"INPUT0": array}) for array in arrays])
        assert [result["OUTPUT0"][0, 0] for result in results] == list(range(300))

    run(body, url, max_connections=3)


def test_questions_about_server_and_models(url: str) -> None:
    async def body(client: Client) -> None:
        assert await client.is_live()
        assert await client.is_ready()
        assert await client.is_model_ready("add_sub")
        assert await client.is_model_ready("add_sub", "1")
        assert not await client.is_model_ready("none")
        assert (await client.server_metadata()).name == "triton"
        metadata = await client.model_metadata("add_sub")
        assert [spec.name for spec in metadata.inputs] == ["INPUT0", "INPUT1"]
        assert metadata.inputs[0].shape == (-1, 16)
        assert (await client.model_config("add_sub")).max_batch_size == 32
        await client.infer("identity", {"INPUT0": ROWS})
        (row,) = await client.statistics("identity")
        assert row["inference_stats"]["success"]["count"] > 0
        assert {"add_sub", "identity"} <= {row["name"] for row in await client.statistics()}
        assert {"add_sub", "identity"} <= {entry.name for entry in await client.repository_index(only_ready=True)}

    run(body, url)


def test_explain_is_part_of_http(server: ServerProcess) -> None:
    assert run(lambda client: client.explain("add_sub"), url_of("http", server))["scheduler"] == "dynamic"
    with pytest.raises(InferError, match="http://"):
        run(lambda client: client.explain("add_sub"), url_of("grpc", server))


def test_errors_have_code_and_message(url: str) -> None:
    async def body(client: Client) -> None:
        async with failing(ErrorCode.NOT_FOUND, "'none'"):
            await client.infer("none", {"INPUT0": ROWS})
        async with failing(ErrorCode.INVALID_ARG, "FP64"):
            await client.infer("identity", {"INPUT0": ROWS.astype(np.float64)})
        async with failing(ErrorCode.INVALID_ARG, "input 'INPUT0' has dtype complex128"):
            await client.infer("identity", {"INPUT0": np.zeros((1, 4), np.complex128)})
        async with failing(ErrorCode.INVALID_ARG, "not allowed"):
            await client.load("identity")
        async with failing(ErrorCode.INVALID_ARG, "parameter 'p'|JSON"):
            await client.infer("identity", {"INPUT0": ROWS}, parameters={"p": 1 << 70})
        await client.infer("identity", {"INPUT0": ROWS})

    run(body, url)


def test_timeout_cancels_the_request(url: str) -> None:
    async def body(client: Client) -> None:
        async with failing(ErrorCode.DEADLINE_EXCEEDED, r"within 0\.05 s"):
            await client.infer("slow_identity", {"INPUT0": ROWS}, timeout_s=0.05)
        await client.infer("identity", {"INPUT0": ROWS})

    run(body, url)


def test_connections_are_reused(tmp_path: Path, start_server: StartServer) -> None:
    write_identity(tmp_path / "models")
    server = start_server(tmp_path / "models")
    server.wait_ready()

    for protocol in ("http", "grpc"):

        async def body(client: Client, protocol: str = protocol) -> None:
            for _ in range(20):
                await client.infer("identity", {"INPUT0": ROWS})
            metrics = await asyncio.to_thread(server.get, "/metrics", url=server.metrics_url)
            assert f'naiad_connections{{port="{protocol}"}} 1' in metrics.body.decode()

        run(body, url_of(protocol, server))


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_models_are_loaded_and_unloaded(tmp_path: Path, start_server: StartServer, protocol: str) -> None:
    write_identity(tmp_path / "models")
    server = start_server(tmp_path / "models", "--model-control-mode=explicit", "--allow-client-model-files=true")
    server.wait_ready()

    async def body(client: Client) -> None:
        assert not await client.is_model_ready("identity")
        await client.load("identity")
        assert await client.is_model_ready("identity")
        await client.unload("identity")
        assert not await client.is_model_ready("identity")
        config = '{"backend": "identity", "max_batch_size": 3}'
        await client.load("identity", config=config)
        assert (await client.model_config("identity")).max_batch_size == 3

    run(body, url_of(protocol, server))


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_client_follows_a_restarted_server(tmp_path: Path, start_server: StartServer, protocol: str) -> None:
    write_identity(tmp_path / "models")
    path = tmp_path / "naiad.sock"
    flags = (f"--{protocol}-address=unix:{path}", "--metrics-address=127.0.0.1")

    async def body(client: Client) -> None:
        for _ in range(2):
            server = start_server(tmp_path / "models", *flags)
            await asyncio.to_thread(server.wait_started)
            while not await client.is_ready():
                await asyncio.sleep(0.01)
            await client.infer("identity", {"INPUT0": ROWS})
            await asyncio.to_thread(server.stop)
        async with failing(ErrorCode.UNAVAILABLE, f"no connection to {protocol}"):
            await client.infer("identity", {"INPUT0": ROWS})

    run(body, f"{protocol}+unix://{path}")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, Certificates, str]]:
    """A server with TLS and an API key."""
    directory = tmp_path_factory.mktemp("guarded")
    certificates = Certificates(directory)
    write_identity(directory / "models")
    line, key = new_key("client", "inference")
    (directory / "keys").write_text(line)
    flags = [*certificates.flags("http"), *certificates.flags("grpc"), f"--api-key-file={directory / 'keys'}"]
    server = ServerProcess(directory / "log", f"--model-repository={directory / 'models'}", *flags)
    server.tls = certificates.client_context()
    try:
        server.wait_started()
        yield server, certificates, key
    finally:
        server.stop()


@pytest.mark.parametrize("protocol", ["https", "grpcs"])
def test_tls_and_api_key(guarded: tuple[ServerProcess, Certificates, str], protocol: str) -> None:
    server, certificates, key = guarded
    url = f"{protocol}://{server.http_url if protocol == 'https' else server.grpc_url}"
    tls, headers = certificates.client_context(), {"Authorization": f"Bearer {key}"}
    result = run(lambda client: client.infer("identity", {"INPUT0": ROWS}), url, tls=tls, headers=headers)
    assert np.array_equal(result["OUTPUT0"], ROWS)
    with pytest.raises(InferError, match="API key") as raised:
        run(lambda client: client.infer("identity", {"INPUT0": ROWS}), url, tls=tls)
    assert raised.value.code is ErrorCode.PERMISSION_DENIED
    with pytest.raises(InferError, match=r"(?i)certificate"):
        run(lambda client: client.is_live(), url)


def test_address_of_the_wrong_port_is_named(tmp_path: Path, server: ServerProcess) -> None:
    # The HTTP port serves gRPC too; the metrics port does not.
    with pytest.raises(InferError, match=r"HTTP/1|HTTP/2|closed"):
        run(lambda client: client.is_live(), f"grpc://{server.metrics_url}")


REPEAT = {
    "IN": np.array([4, 5, 6], np.int32),
    "DELAY": np.zeros(3, np.uint32),
    "WAIT": np.zeros(1, np.uint32),
}


def test_stream_yields_responses_of_decoupled_model(server: ServerProcess) -> None:
    async def use() -> list[int]:
        async with Client(url_of("grpc", server)) as client:
            results = client.infer_stream("repeat", REPEAT, request_id="mine", outputs=["OUT"])
            return [int(each["OUT"][0]) async for each in results if each.id == "mine" and list(each) == ["OUT"]]

    assert asyncio.run(use()) == [4, 5, 6]


def test_stream_left_early_cancels_request(server: ServerProcess) -> None:
    async def use() -> None:
        slow = {**REPEAT, "DELAY": np.array([0, 300, 0], np.uint32)}
        async with Client(url_of("grpc", server)) as client:
            async for _ in client.infer_stream("repeat", slow):
                break
            while True:
                (row,) = await client.statistics("repeat")
                if any(each["cancel"]["count"] for each in row["response_stats"].values()):
                    return
                await asyncio.sleep(0.05)

    asyncio.run(asyncio.wait_for(use(), 30))


def test_stream_reports_error_of_model(server: ServerProcess) -> None:
    async def use() -> None:
        async with Client(url_of("grpc", server)) as client:
            async for _ in client.infer_stream("repeat", {**REPEAT, "DELAY": np.zeros(2, np.uint32)}):
                pass

    with pytest.raises(InferError, match="expected IN and DELAY shape to match"):
        asyncio.run(use())


def test_stream_times_out_between_responses(server: ServerProcess) -> None:
    async def use() -> None:
        slow = {**REPEAT, "DELAY": np.array([0, 60_000, 0], np.uint32)}
        async with Client(url_of("grpc", server)) as client:
            async for _ in client.infer_stream("repeat", slow, timeout_s=0.2):
                pass

    with pytest.raises(InferError) as caught:
        asyncio.run(use())
    assert caught.value.code is ErrorCode.DEADLINE_EXCEEDED


def test_stream_over_http_is_unsupported(server: ServerProcess) -> None:
    async def use() -> None:
        async with Client(url_of("http", server)) as client:
            async for _ in client.infer_stream("repeat", REPEAT):
                pass

    with pytest.raises(InferError, match="gRPC only"):
        asyncio.run(use())
