"""Other implementations of HTTP/2 and gRPC on either side: h2load, curl, grpcio's client and grpcio's server."""

import contextlib
import itertools
import re
import shutil
import socket
import subprocess
import threading
from concurrent import futures

import grpc
import pytest

from naiad.protocol import service_pb2
from naiad.wire.grpc import MessageAssembler, encode_status_text
from naiad.wire.http2.connection_limits import Http2Limits
from naiad.wire.http2.hpack import RequestHeadDecoder
from support.http2_conversation import ECHO, STREAM, Conversation
from support.raw_http2 import DATA, HEADERS, Http2Peer, grpc_message
from support.server_process import ServerProcess

CALLS = 600
GRPC_HEADERS = ["content-type: application/grpc", "te: trailers"]
LIVE = "/inference.GRPCInferenceService/ServerLive"


class TestTools:
    """h2load and curl against a real server."""

    @pytest.mark.skipif(shutil.which("h2load") is None, reason="h2load is not installed")
    @pytest.mark.parametrize("streams", [1, 32])
    def test_h2load_gets_every_answer(self, server: ServerProcess, tmp_path, streams):
        body = tmp_path / "message"
        body.write_bytes(grpc_message(service_pb2.ServerLiveRequest().SerializeToString()))
        headers = [argument for header in GRPC_HEADERS for argument in ("-H", header)]
        command = ["h2load", "-n", str(CALLS), "-c", "4", "-m", str(streams), "-d", str(body), *headers]
        done = subprocess.run(
            [*command, f"http://{server.grpc_url}{LIVE}"], capture_output=True, text=True, timeout=60, check=True
        )
        assert f"{CALLS} succeeded, 0 failed, 0 errored, 0 timeout" in done.stdout
        assert f"status codes: {CALLS} 2xx" in done.stdout

    @pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
    def test_curl_makes_a_grpc_call(self, server: ServerProcess, tmp_path):
        answer, body = tmp_path / "answer", tmp_path / "message"
        body.write_bytes(grpc_message(b""))
        headers = [argument for header in GRPC_HEADERS for argument in ("-H", header)]
        command = [
            "curl",
            "-sS",
            "--http2-prior-knowledge",
            "--data-binary",
            f"@{body}",
            "-D",
            "-",
            "-o",
            str(answer),
        ]
        done = subprocess.run(
            [*command, *headers, f"http://{server.grpc_url}{LIVE}"],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        assert done.stdout.startswith("HTTP/2 200")
        assert re.search(r"^grpc-status: 0\r?$", done.stdout, re.MULTILINE)
        assert service_pb2.ServerLiveResponse.FromString(answer.read_bytes()[5:]).live


class Tap:
    """Passes bytes between a client and a port, and keeps them."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.from_client, self.from_server = bytearray(), bytearray()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        client, _ = self._listener.accept()
        with client, socket.create_connection(("127.0.0.1", self._port)) as server:
            back = threading.Thread(target=self._pass, args=(server, client, self.from_server))
            back.start()
            self._pass(client, server, self.from_client)
            back.join()

    @staticmethod
    def _pass(source: socket.socket, target: socket.socket, kept: bytearray) -> None:
        while data := source.recv(65_536):
            kept += data
            target.sendall(data)
        with contextlib.suppress(OSError):  # the other side may have gone already
            target.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Wait until both sides have closed."""
        self._thread.join(60)
        self._listener.close()


class EchoHandler(grpc.GenericRpcHandler):
    """A grpcio server's side of the paths that tests use, and one that fails."""

    def service(self, details):
        if details.method == ECHO:
            return grpc.unary_unary_rpc_method_handler(self._echo)
        if details.method == STREAM:
            return grpc.stream_stream_rpc_method_handler(lambda messages, context: messages)
        return grpc.unary_unary_rpc_method_handler(self._fail)

    @staticmethod
    def _echo(message, context):
        context.set_trailing_metadata((("x-size", str(len(message))),))
        return message

    @staticmethod
    def _fail(message, context):
        context.abort(grpc.StatusCode.NOT_FOUND, "kein Modell „größe“, 100 %")


@pytest.fixture(scope="module")
def grpcio_port():
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    running = grpc.server(futures.ThreadPoolExecutor(4), handlers=[EchoHandler()], options=options)
    port = running.add_insecure_port("127.0.0.1:0")
    running.start()
    yield port
    running.stop(None).wait()


class TestGrpcioServer:
    """Our ways of writing frames, gRPC messages and status texts, read and answered by grpcio's server."""

    @pytest.mark.parametrize("size", [0, 1, 5_000])
    def test_call_of_frames_written_by_hand(self, grpcio_port, size):
        with Http2Peer(f"127.0.0.1:{grpcio_port}") as peer:
            for stream_id in (1, 3, 5):
                answer = peer.call(stream_id, ECHO, b"m" * size)
                assert answer.body == grpc_message(b"m" * size)
                assert (answer.grpc_status, answer.fields["x-size"]) == (0, str(size))

    def test_status_text_is_escaped_as_grpcio_escapes_it(self, grpcio_port):
        with Http2Peer(f"127.0.0.1:{grpcio_port}") as peer:
            answer = peer.call(1, "/test.Service/Fail", b"")
        assert answer.grpc_status == 5
        assert answer.grpc_message == encode_status_text("kein Modell „größe“, 100 %").decode()

    def test_our_decoders_read_bytes_of_grpcio_server(self, grpcio_port):
        tap = Tap(grpcio_port)
        messages = [b"a", b"", b"b" * 40_000]
        with grpc.insecure_channel(f"127.0.0.1:{tap.port}") as channel:
            assert list(channel.stream_stream(STREAM)(iter(messages), timeout=60)) == messages
            assert channel.unary_unary(ECHO)(b"again", timeout=60) == b"again"
        tap.close()
        decoder, assembler = RequestHeadDecoder(Http2Limits()), MessageAssembler(2**20)
        fields, received = [], []
        for kind, payload in frames_of(bytes(tap.from_server)):
            if kind == HEADERS:
                fields += decoder.decode_fields(payload)
            elif kind == DATA:
                received += [bytes(message) for message in assembler.feed(memoryview(payload))]
        assert received == [*messages, b"again"]
        assert [value for name, value in fields if name == b"grpc-status"] == [b"0", b"0"]
        assert (b"x-size", b"5") in fields


def frames_of(data):
    """Yield type and payload of the frames in `data`."""
    while data:
        length = int.from_bytes(data[:3], "big")
        yield data[3], data[9 : 9 + length]
        data = data[9 + length :]


@pytest.fixture(scope="module")
def recorded(grpcio_port):
    """What a grpcio client sends in six calls."""
    tap = Tap(grpcio_port)
    with grpc.insecure_channel(f"127.0.0.1:{tap.port}") as channel:
        echo = channel.unary_unary(ECHO)
        for message in (b"", b"first", b"second", b"l" * 30_000):
            assert echo(message, timeout=30, metadata=(("x-name", "value"),)) == message
        compressed = b"c" * 2_000
        assert echo(compressed, timeout=30, compression=grpc.Compression.Gzip) == compressed
        assert list(channel.stream_stream(STREAM)(iter([b"x", b"y"]), timeout=60)) == [b"x", b"y"]
    tap.close()
    return bytes(tap.from_client)


class TestGrpcioClient:
    """The bytes of a grpcio client, recorded once and cut differently from how they came."""

    @pytest.mark.parametrize("piece_bytes", [0, 1, 7, 9, 1000])
    def test_answers_do_not_depend_on_the_pieces(self, recorded, piece_bytes):
        client = Conversation(piece_bytes, opened=False)
        client.send(recorded)
        bodies = [client_body(group) for group in by_stream(client.frames())]
        messages = [b"", b"first", b"second", b"l" * 30_000, b"c" * 2_000]
        assert bodies == [grpc_message(message) for message in messages] + [grpc_message(b"x") + grpc_message(b"y")]


def by_stream(frames):
    """Yield the DATA frames of each stream, streams in the order of their numbers."""
    data = sorted((each for each in frames if each.kind == DATA), key=lambda each: each.stream_id)
    for _, group in itertools.groupby(data, key=lambda each: each.stream_id):
        yield list(group)


def client_body(frames):
    return b"".join(each.payload for each in frames)
