"""The HTTP/2 transport against real clients: grpcio, curl, the h2 package over a socket."""

import asyncio
import shutil
import socket
import subprocess
import threading
import time

import grpc
import h2.connection
import h2.events
import pytest

from naiad.frontend.http2.connection import Http2Server
from support.http2_peer import GRPC_FIELDS, OPENING, Peer

MIB = 2**20
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class EchoService:
    """Answers with the message: at once, later, never; one by one on a stream."""

    def __init__(self):
        self.cancelled = threading.Event()
        self.held = []
        self.turns_seen = 0
        """Turns of the loop since the first request that was long."""
        self.turns_before = []
        """Of each long request: how many of these turns were over before it."""

    def unary(self, call, message):
        method = call.path.rpartition("/")[2]
        if method == "Echo":
            call.respond((message,))
        elif method == "Later":
            asyncio.get_running_loop().call_later(0.05, call.respond, (bytes(message),))
        elif method == "Metadata":
            call.finish(9, trailers=[field for field in call.metadata if field[0].startswith(b"x-")])
        elif method == "Long":
            if not self.turns_before:
                self._count_turns()
            self.turns_before.append(self.turns_seen)
            time.sleep(0.002)
            call.respond((message,))
        elif method == "Never":
            self.held.append(call)
            call.on_cancel = lambda why: self.cancelled.set()
        else:
            call.finish(12, f"unknown méthod {method}, 100 %")

    def _count_turns(self):
        def count():
            self.turns_seen += 1
            loop.call_soon(count)

        loop = asyncio.get_running_loop()
        loop.call_soon(count)

    def message_began(self, call, beginning):
        pass

    def rejection(self, path):
        return None

    def is_streaming(self, path):
        return path.endswith("/Stream")

    def stream_message(self, call, message):
        call.send((message,))

    def stream_half_closed(self, call):
        call.finish(0)


class RunningServer:
    """A server on a loop in a thread."""

    def __init__(self):
        self.service = EchoService()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.call(self._start())

    async def _start(self):
        self.http2 = Http2Server(self.service, self.loop)
        self.listener = await self.loop.create_server(self.http2.protocol, "127.0.0.1", 0)
        self.port = self.listener.sockets[0].getsockname()[1]

    async def drain(self):
        self.listener.close()
        self.http2.drain()
        await asyncio.wait_for(self.http2.wait_closed(), 20)

    async def _stop(self):
        self.listener.close()
        self.http2.abort()
        await asyncio.wait_for(self.http2.wait_closed(), 20)

    def call(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(30)

    def stop(self):
        self.call(self._stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


@pytest.fixture
def server():
    running = RunningServer()
    yield running
    running.stop()


@pytest.fixture
def channel(server):
    with grpc.insecure_channel(f"127.0.0.1:{server.port}", options=OPTIONS) as channel:
        yield channel


def unary(channel, method):
    return channel.unary_unary(f"/test.Echo/{method}")


@pytest.mark.parametrize("method", ["Echo", "Later"])
@pytest.mark.parametrize("size", [0, 1, 16_379, 16_380, 70_000, 3 * MIB])
def test_grpc_unary(channel, method, size):
    message = bytes(range(256)) * (size // 256) + bytes(size % 256)
    for _ in range(3):
        assert unary(channel, method)(message, timeout=60) == message


def test_grpc_large_message_both_ways(channel):
    message = bytes(range(256)) * (64 * MIB // 256)
    assert unary(channel, "Echo")(message, timeout=60) == message


def test_grpc_many_calls_at_once(channel):
    echo = unary(channel, "Later")
    futures = [echo.future(str(i).encode(), timeout=60) for i in range(500)]
    assert [future.result() for future in futures] == [str(i).encode() for i in range(500)]


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_grpc_compressed_request(channel, compression):
    message = b"tensor" * 100_000
    assert unary(channel, "Echo")(message, compression=compression, timeout=60) == message


def test_grpc_status_text(channel):
    with pytest.raises(grpc.RpcError) as caught:
        unary(channel, "Nothing")(b"", timeout=60)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert caught.value.details() == "unknown méthod Nothing, 100 %"


def test_grpc_metadata(channel):
    call = unary(channel, "Metadata").with_call
    with pytest.raises(grpc.RpcError) as caught:
        call(b"", metadata=(("x-one", "1"), ("x-two-bin", b"\0\xff")), timeout=60)
    assert dict(caught.value.trailing_metadata()) == {"x-one": "1", "x-two-bin": b"\0\xff"}


def test_grpc_deadline_cancels_the_call(server, channel):
    with pytest.raises(grpc.RpcError) as caught:
        unary(channel, "Never")(b"", timeout=1.5)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert server.service.cancelled.wait(60)


def test_grpc_cancel_reaches_the_service(server, channel):
    future = unary(channel, "Never").future(b"")
    while not server.service.held:
        time.sleep(0.01)
    future.cancel()
    assert server.service.cancelled.wait(60)


def test_lost_connection_reaches_the_service(server):
    channel = grpc.insecure_channel(f"127.0.0.1:{server.port}")
    future = unary(channel, "Never").future(b"")
    while not server.service.held:
        time.sleep(0.01)
    channel.close()
    assert server.service.cancelled.wait(60)
    assert future.code() is grpc.StatusCode.CANCELLED


def test_grpc_cancel_storm_leaves_nothing(server, channel):
    never = unary(channel, "Never")
    for _ in range(20):
        futures = [never.future(b"") for _ in range(100)]
        for future in futures:
            future.cancel()
    assert unary(channel, "Echo")(b"still here", timeout=60) == b"still here"
    deadline = time.monotonic() + 60
    while any(connection._connection.streams for connection in server.http2.connections):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_grpc_stream(channel):
    messages = [b"a", b"", b"x" * 100_000, b"y" * 3 * MIB] * 3
    stream = channel.stream_stream("/test.Echo/Stream")
    assert list(stream(iter(messages), timeout=60)) == messages


def test_grpc_aio(server):
    async def talk():
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            echo = channel.unary_unary("/test.Echo/Echo")
            return await asyncio.gather(*(echo(str(i).encode(), timeout=60) for i in range(100)))

    assert asyncio.run(talk()) == [str(i).encode() for i in range(100)]


def test_drain_finishes_calls(server, channel):
    future = unary(channel, "Later").future(b"last", timeout=60)
    unary(channel, "Echo")(b"", timeout=60)
    server.call(server.drain())
    assert future.result() == b"last"
    assert server.http2.connection_count == 0


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_gets_protocol_of_port(server):
    url = f"http://127.0.0.1:{server.port}/v2"
    http2 = subprocess.run(
        ["curl", "-sS", "-i", "--http2-prior-knowledge", url], capture_output=True, text=True, timeout=30, check=True
    )
    assert http2.stdout.startswith("HTTP/2 415")
    http1 = subprocess.run(["curl", "-sS", "-i", url], capture_output=True, text=True, timeout=30, check=True)
    assert http1.stdout.startswith("HTTP/1.1 400")
    assert "gRPC" in http1.stdout


def test_h2_package_gets_large_answer_through_small_windows(server):
    body = bytes(range(256)) * 4096
    head = [(":method", "POST"), (":scheme", "http"), (":authority", "x"), (":path", "/test.Echo/Echo")]
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connected:
        peer = h2.connection.H2Connection()
        peer.initiate_connection()
        peer.send_headers(1, [*head, ("content-type", "application/grpc"), ("te", "trailers")])
        waiting = b"\0" + len(body).to_bytes(4, "big") + body
        expected, received, trailers = waiting, bytearray(), None
        while trailers is None:
            size = min(len(waiting), peer.local_flow_control_window(1), peer.max_outbound_frame_size)
            if size and (waiting or received == b""):
                peer.send_data(1, waiting[:size], end_stream=size == len(waiting))
                waiting = waiting[size:]
            connected.sendall(peer.data_to_send())
            if waiting and peer.local_flow_control_window(1):
                continue
            for event in peer.receive_data(connected.recv(65_536)):
                if isinstance(event, h2.events.DataReceived):
                    received += event.data
                    peer.acknowledge_received_data(event.flow_controlled_length, 1)
                elif isinstance(event, h2.events.TrailersReceived):
                    trailers = dict(event.headers)
        assert bytes(received) == expected
        assert trailers[b"grpc-status"] == b"0"


def test_turn_ends_before_all_connections_are_read(server):
    peers = [Peer() for _ in range(30)]
    sockets = [socket.create_connection(("127.0.0.1", server.port), timeout=60) for _ in peers]
    for connected in sockets:
        connected.sendall(OPENING)
        connected.recv(65_536)
    is_sent = threading.Event()
    server.loop.call_soon_threadsafe(is_sent.wait)
    fields = [(":path", "/test.Echo/Long") if name == ":path" else (name, value) for name, value in GRPC_FIELDS]
    for peer, connected in zip(peers, sockets, strict=True):
        connected.sendall(peer.request(1, b"\0\0\0\0\1x", fields))
    is_sent.set()
    for connected in sockets:
        answer = b""
        while b"grpc-status" not in answer:
            answer += connected.recv(65_536)
        connected.close()
    turns = server.service.turns_before
    assert len(turns) == len(peers)
    assert len(set(turns)) > 2, "what arrived at once was served in several turns, and responses left in between"


def test_garbage_closes_the_connection(server, channel):
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connected:
        connected.sendall(bytes(1000))
        while connected.recv(65_536):
            pass
    assert unary(channel, "Echo")(b"others go on", timeout=60) == b"others go on"
