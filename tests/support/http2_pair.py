"""A client's and a server's HTTP/2 connection that are connected by bytes, and what each has received."""

from naiad.wire.http2.client_connection import ClientConnection, ClientStream
from naiad.wire.http2.connection_limits import Http2Limits
from naiad.wire.http2.headers import encode_fields
from naiad.wire.http2.server_connection import ServerConnection
from support.http2_peer import RecordingSink

REQUEST_BLOCK = encode_fields(
    ((b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"h"), (b":path", b"/echo"))
)
RESPONSE_BLOCK = encode_fields(((b":status", b"200"), (b"content-type", b"application/grpc")))
TRAILER_BLOCK = encode_fields(((b"grpc-status", b"0"),))


class Exchange(ClientStream):
    """A request of a test and what has become of it."""

    __slots__ = ("body", "ending", "trailers")

    def __init__(self):
        super().__init__()
        self.body = bytearray()
        self.trailers = None
        self.ending = None


class ClientRecorder:
    """Keeps what arrives in the streams."""

    def __init__(self):
        self.goaway_codes = []

    def headers_received(self, stream):
        assert stream.head.status

    def body_received(self, stream, data):
        stream.body += data

    def end_received(self, stream, trailers):
        stream.ending = "end"
        stream.trailers = trailers

    def stream_reset(self, stream, code):
        stream.ending = ("reset", int(code))

    def stream_broken(self, stream, code):
        stream.ending = ("broken", int(code))

    def goaway_received(self, code):
        self.goaway_codes.append(code)


class EchoSink(RecordingSink):
    """A server that answers each request with its body, in one piece or with trailers in three."""

    def __init__(self):
        super().__init__()
        self.output = None

    def end_received(self, stream, trailers):
        super().end_received(stream, trailers)
        self.output.send_answer(
            stream, RESPONSE_BLOCK, (bytes(self.bodies[stream.id]),), len(self.bodies[stream.id]), TRAILER_BLOCK
        )


class Pair:
    """Both connections; `settle` carries bytes until neither side has any."""

    def __init__(self, client_limits=None, server_limits=None, server_sink=None):
        self.recorder = ClientRecorder()
        self.client = ClientConnection(self.recorder, client_limits or Http2Limits())
        self.sink = server_sink or EchoSink()
        self.server = ServerConnection(self.sink, server_limits or Http2Limits())
        self.sink.output = self.server.output
        self.now_ns = 1_000_000_000

    def open(self, body=b""):
        exchange = Exchange()
        self.client.open(exchange, REQUEST_BLOCK, ends_stream=not body)
        if body:
            self.client.output.send_body(exchange, (body,))
        return exchange

    def carry(self, source, target, sizes=()):
        """Give `target` what `source` has to send, cut into pieces of `sizes`, the rest as one piece."""
        source.output.pump()
        data = b"".join(bytes(piece) for piece in source.output.take())
        for size in sizes:
            target.receive_data(data[:size], self.now_ns)
            data = data[size:]
        target.receive_data(data, self.now_ns)

    def settle(self):
        for _ in range(10_000):
            self.carry(self.client, self.server)
            self.carry(self.server, self.client)
            if not self.client.output.frames and not self.server.output.frames:
                return
        raise AssertionError("both sides send without end")
