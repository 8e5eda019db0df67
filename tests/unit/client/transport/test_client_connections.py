"""Connections of the client against servers that are written by hand."""

import asyncio
from contextlib import asynccontextmanager

import numpy as np
import pytest

from naiad.client import Client, ConnectionFailedError, ErrorCode, InferError, NotConnectedError, connecting
from naiad.client.connecting import Connector, parse_address
from naiad.client.transport.http1 import Http1Protocol
from naiad.wire.grpc import HEADER_BLOCK, OK_TRAILER_BLOCK
from naiad.wire.http1_client import Http1ClientLimits
from naiad.wire.http2.frames import DATA, HEADERS, Http2Code, frame, goaway, rst_stream
from support.http2_peer import settings_frame

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
ROW = {"INPUT0": np.zeros(1, np.float32)}


@asynccontextmanager
async def server_of(handle, scheme="http"):
    """A server that calls `handle(reader, writer)` for each connection; its address."""
    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def head_of(reader):
    return await reader.readuntil(b"\r\n\r\n")


def run(body):
    asyncio.run(asyncio.wait_for(body(), 30))


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://h", (False, False, "h", 8000, "", "h:8000")),
        ("https://h:1/", (False, True, "h", 1, "", "h:1")),
        ("grpc://[::1]", (True, False, "::1", 8001, "", "[::1]:8001")),
        ("grpcs://h:443", (True, True, "h", 443, "", "h:443")),
        ("http://Bücher.de", (False, False, "xn--bcher-kva.de", 8000, "", "xn--bcher-kva.de:8000")),
        ("grpc+unix:///run/a.sock", (True, False, "", 0, "/run/a.sock", "localhost")),
    ],
)
def test_addresses(url, expected):
    found = parse_address(url)
    assert (
        found.is_grpc,
        found.uses_tls,
        found.host,
        found.port,
        found.unix_path,
        found.authority,
    ) == expected


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:8000",
        "ftp://h",
        "http://",
        "http://h/v2",
        "http://h:99999",
        "http+unix://a/b",
        "http://h?a",
        f"http://{'a' * 64}.b",
        "http://a..b",
        "grpc://ü..b",
    ],
)
def test_wrong_addresses_are_named(url):
    with pytest.raises(InferError, match="is not the address of a server") as raised:
        Client(url)
    assert raised.value.code is ErrorCode.INVALID_ARG


def test_headers_are_checked():
    with pytest.raises(InferError, match="header field 'X-A'"):
        Client("http://h", headers={"X-A": "1\r\nX-B: 2"})


def test_missing_server_is_named():
    async def body():
        async with server_of(lambda reader, writer: None) as url:
            pass
        for scheme in ("http", "grpc"):
            async with Client(url.replace("http", scheme)) as client:
                with pytest.raises(ConnectionFailedError, match=f"no connection to {scheme}://127"):
                    await client.is_live()

    run(body)


def test_silent_server_meets_the_timeout():
    async def handle(reader, writer):
        await reader.read()
        writer.close()

    async def body():
        for scheme in ("http", "grpc"):
            async with server_of(handle, scheme) as url, Client(url) as client:
                with pytest.raises(InferError, match=r"no response from .* within 0\.05 s") as raised:
                    await client.is_live(timeout_s=0.05)
                assert raised.value.code is ErrorCode.DEADLINE_EXCEEDED

    run(body)


def test_kept_connection_that_closes_is_replaced():
    heads = []

    async def handle(reader, writer):
        heads.append(await head_of(reader))
        writer.write(OK)
        # The next request arrives and the connection closes without a response.
        await head_of(reader)
        writer.close()

    async def body():
        async with server_of(handle) as url, Client(url) as client:
            assert await client.is_live()
            assert await client.is_live()
        assert len(heads) == 2

    run(body)


def test_inference_is_not_sent_twice():
    count = 0

    async def handle(reader, writer):
        nonlocal count
        for _ in range(2):
            await head_of(reader)
            count += 1
            if count == 1:
                writer.write(OK)
        writer.close()

    async def body():
        async with server_of(handle) as url, Client(url) as client:
            assert await client.is_live()
            with pytest.raises(ConnectionFailedError, match="closed the connection before its response"):
                await client.infer("m", ROW)
        assert count == 2

    run(body)


def test_connection_limit_makes_requests_wait():
    open_count = most = 0

    async def handle(reader, writer):
        nonlocal open_count, most
        open_count += 1
        most = max(most, open_count)
        try:
            while True:
                await head_of(reader)
                await asyncio.sleep(0)
                writer.write(OK)
        except asyncio.IncompleteReadError:
            open_count -= 1
            writer.close()

    async def body():
        async with server_of(handle) as url, Client(url, max_connections=2) as client:
            assert all(await asyncio.gather(*[client.is_live() for _ in range(20)]))
        assert most == 2

    run(body)


@pytest.mark.parametrize(
    ("response", "code", "words"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 16\r\n\r\n" + b'{"error":"gone"}', ErrorCode.NOT_FOUND, "gone"),
        (b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 4\r\n\r\noops", ErrorCode.UNKNOWN, "oops"),
        (b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n", ErrorCode.UNAVAILABLE, "HTTP status 503"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", ErrorCode.INTERNAL, "not a JSON object"),
        (b"garbage\r\n\r\n", ErrorCode.UNAVAILABLE, "malformed HTTP response"),
        (OK[:20], ErrorCode.UNAVAILABLE, "closed the connection"),
    ],
)
def test_bad_http_responses_are_errors(response, code, words):
    async def handle(reader, writer):
        await head_of(reader)
        writer.write(response)
        await writer.drain()
        writer.close()

    async def body():
        async with server_of(handle) as url, Client(url) as client:
            with pytest.raises(InferError, match=words) as raised:
                await client.infer("m", ROW)
            assert raised.value.code is code

    run(body)


def test_closing_the_client_ends_its_calls():
    began = asyncio.Event()

    async def handle(reader, writer):
        await head_of(reader)
        began.set()
        await reader.read()
        writer.close()

    async def body():
        async with server_of(handle) as url:
            client = Client(url)
            call = asyncio.ensure_future(client.is_live())
            await began.wait()
            client.close()
            with pytest.raises(ConnectionFailedError):
                await call

    run(body)


@pytest.mark.parametrize("kept", [False, True])
def test_closing_the_client_ends_calls_that_wait(kept):
    count = 0

    async def handle(reader, writer):
        nonlocal count
        await head_of(reader)
        if kept and not count:
            writer.write(OK)
            await head_of(reader)
        count += 1
        await reader.read()
        writer.close()

    async def body():
        async with server_of(handle) as url:
            client = Client(url, max_connections=1)
            if kept:
                assert await client.is_live()
            calls = [asyncio.ensure_future(client.is_live()) for _ in range(3)]
            while not count:
                await asyncio.sleep(0)
            client.close()
            for result in await asyncio.gather(*calls, return_exceptions=True):
                assert isinstance(result, ConnectionFailedError)
            assert count == 1

    run(body)


# --- gRPC -----------------------------------------------------------------------------------------------------------


class GrpcServer:
    """A server of gRPC that responds to each request with the bytes of `respond(connection number, stream id)`."""

    def __init__(self, respond, settings=None):
        self.respond = respond
        self.settings = settings or {}
        self.connections = 0

    async def handle(self, reader, writer):
        self.connections += 1
        number = self.connections
        await reader.readexactly(24)
        writer.write(settings_frame(self.settings))
        while True:
            try:
                header = await reader.readexactly(9)
            except (asyncio.IncompleteReadError, ConnectionResetError):
                writer.close()
                return
            await reader.readexactly(int.from_bytes(header[:3], "big"))
            if header[3] == 0 and header[4] & 1:
                writer.write(self.respond(number, int.from_bytes(header[5:], "big")))


def live(stream_id):
    message = b"\0\0\0\0\2\x08\1"
    return (
        frame(HEADERS, 4, stream_id, HEADER_BLOCK)
        + frame(DATA, 0, stream_id, message)
        + frame(HEADERS, 5, stream_id, OK_TRAILER_BLOCK)
    )


def with_grpc(respond, body, settings=None, **options):
    async def all_of_it():
        server = GrpcServer(respond, settings)
        async with server_of(server.handle, "grpc") as url, Client(url, **options) as client:
            await body(client)
        return server.connections

    return asyncio.run(asyncio.wait_for(all_of_it(), 30))


def test_calls_share_a_connection():
    async def body(client):
        assert all(await asyncio.gather(*[client.is_live() for _ in range(50)]))

    assert with_grpc(lambda number, stream_id: live(stream_id), body) == 1


def test_stream_limit_opens_another_connection():
    async def body(client):
        assert all(await asyncio.gather(*[client.is_live() for _ in range(9)]))

    assert with_grpc(lambda number, stream_id: live(stream_id), body, {3: 1}, max_connections=3) == 3


def test_refused_call_is_sent_again():
    refused = []

    def respond(number, stream_id):
        if not refused:
            refused.append(stream_id)
            return rst_stream(stream_id, Http2Code.REFUSED_STREAM)
        return live(stream_id)

    async def body(client):
        assert await client.is_live()

    assert with_grpc(respond, body) == 1
    assert refused == [1]


@pytest.mark.parametrize("has_request", [False, True])
def test_server_that_speaks_first_is_named(has_request):
    async def handle(reader, writer):
        if has_request:
            await head_of(reader)
        writer.write(b"SSH-2.0-server\r\n")
        await writer.drain()

    async def body():
        async with server_of(handle) as url:
            protocol = await Connector(parse_address(url), None, 5).open(lambda: Http1Protocol(Http1ClientLimits()))
            if not has_request:
                await asyncio.sleep(0.1)
            with pytest.raises(ConnectionFailedError, match=r"malformed HTTP response|no request asked for"):
                await protocol.exchange([b"GET / HTTP/1.1\r\n\r\n"])

    run(body)


def test_reason_of_a_failed_connection_is_the_systems():
    tried = "[Errno 111] Connect call failed ('::1', 8000, 0, 0), [Errno 111] Connect call failed ('127.0.0.1', 8000)"
    assert connecting._reason(OSError(f"Multiple exceptions: {tried}")) == "Connection refused"
    assert connecting._reason(OSError(111, "Connect call failed ('127.0.0.1', 8000)")) == "Connection refused"
    assert connecting._reason(OSError(-2, "Name or service not known")) == "Name or service not known"


def test_response_that_is_not_json_is_shown():
    text = b"# metrics are at /metrics\n"

    async def handle(reader, writer):
        await head_of(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text))
        await head_of(reader)
        writer.write(b"HTTP/1.1 415 No\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text))

    async def body():
        async with server_of(handle) as url, Client(url) as client:
            with pytest.raises(InferError, match="is not JSON, but begins with '# metrics are at /metrics';"):
                await client.model_metadata("m")
            with pytest.raises(InferError, match=r"^# metrics are at /metrics$"):
                await client.model_metadata("m")

    run(body)


def test_goaway_moves_calls_to_another_connection():
    def respond(number, stream_id):
        return goaway(0, Http2Code.NO_ERROR) if number == 1 else live(stream_id)

    async def body(client):
        assert await client.is_live()
        assert await client.is_live()

    assert with_grpc(respond, body) == 2


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        (lambda stream_id: rst_stream(stream_id, Http2Code.CANCEL), ErrorCode.CANCELLED, "reset the call: CANCEL"),
        (lambda stream_id: rst_stream(stream_id, 99), ErrorCode.INTERNAL, "reset the call: 99"),
        (lambda stream_id: b"\0\0\1\7\0\0\0\0\0\0", ErrorCode.UNAVAILABLE, "GOAWAY is too short"),
        (lambda stream_id: live(stream_id).replace(b"\0\0\0\0\2", b"\1\0\0\0\2"), ErrorCode.INTERNAL, "compressed"),
        (lambda stream_id: live(stream_id).replace(b"\0\0\0\0\2", b"\0\0\0\0\3"), ErrorCode.INTERNAL, "complete"),
        (lambda stream_id: live(stream_id).replace(b"\0\0\0\0\2", b"\0\7\0\0\0"), ErrorCode.UNAVAILABLE, "larger"),
    ],
)
def test_bad_grpc_responses_are_errors(answer, code, words):
    async def body(client):
        with pytest.raises(InferError, match=words) as raised:
            await client.is_live()
        assert raised.value.code is code

    with_grpc(lambda number, stream_id: answer(stream_id), body, max_response_bytes=1000)


def test_server_of_http1_is_recognized():
    async def handle(reader, writer):
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        await reader.read()
        writer.close()

    async def body():
        async with server_of(handle, "grpc") as url, Client(url) as client:
            with pytest.raises(ConnectionFailedError, match="answers in HTTP/1"):
                await client.is_live()

    run(body)


def test_cancelled_call_resets_its_stream():
    resets = []

    async def handle(reader, writer):
        await reader.readexactly(24)
        writer.write(settings_frame({}))
        while not resets:
            header = await reader.readexactly(9)
            payload = await reader.readexactly(int.from_bytes(header[:3], "big"))
            if header[3] == 3:
                resets.append(int.from_bytes(payload, "big"))
        writer.close()

    async def body():
        async with server_of(handle, "grpc") as url, Client(url) as client:
            with pytest.raises(InferError, match=r"within 0\.05 s"):
                await client.is_live(timeout_s=0.05)
            while not resets:
                await asyncio.sleep(0.001)
        assert resets == [Http2Code.CANCEL]

    run(body)


def test_closing_the_client_ends_grpc_calls_that_wait():
    arrived = asyncio.Event()

    def respond(connection, stream_id):
        arrived.set()
        return b""

    async def body(client):
        calls = [asyncio.ensure_future(client.is_live()) for _ in range(3)]
        await arrived.wait()
        client.close()
        for result in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(result, ConnectionFailedError)

    assert with_grpc(respond, body, {3: 1}, max_connections=1) == 1


def test_closing_client_ends_grpc_call_that_connects():
    async def handle(reader, writer):
        await reader.readexactly(24)
        client.close()
        writer.write(settings_frame({}))
        await reader.read()
        writer.close()

    async def body():
        nonlocal client
        async with server_of(handle, "grpc") as url:
            client = Client(url)
            with pytest.raises(ConnectionFailedError, match="the client was closed"):
                await client.is_live()

    client = None
    run(body)


def test_message_too_large_leaves_no_call_open():
    class Huge(bytes):
        def __len__(self):
            return 1 << 32

    async def body(client):
        assert await client.is_live()
        (connection,) = client._calls._pool._connections
        with pytest.raises(ValueError, match="4294967296 bytes is too large"):
            await connection.call(b"", [Huge()])
        assert not connection.http2.streams

    with_grpc(lambda _, stream_id: live(stream_id), body)


def test_calls_that_wait_for_a_connection_fail_together():
    count = 0

    async def handle(reader, writer):
        nonlocal count
        count += 1
        await reader.read()  # and no SETTINGS
        writer.close()

    async def body():
        async with server_of(handle, "grpc") as url, Client(url, connect_timeout_s=0.1) as client:
            for result in await asyncio.gather(*(client.is_live() for _ in range(5)), return_exceptions=True):
                assert isinstance(result, NotConnectedError)
        assert count == 1

    run(body)


def test_renewed_calls_open_a_new_connection():
    async def body(client):
        assert await client.is_live()
        client._calls.renew()
        assert await client.is_live()

    assert with_grpc(lambda number, stream_id: live(stream_id), body) == 2
