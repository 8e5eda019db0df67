import pytest

from naiad.wire.http2 import frames as wire
from naiad.wire.http2.client_connection import ClientConnection
from naiad.wire.http2.connection_limits import Http2Limits
from naiad.wire.http2.frames import Http2Code, Http2Error, frame, goaway, rst_stream
from naiad.wire.http2.headers import encode_fields
from naiad.wire.preface import PREFACE
from support.http2_pair import REQUEST_BLOCK, RESPONSE_BLOCK, ClientRecorder, Exchange, Pair
from support.http2_peer import RecordingSink, data_frame, settings_frame, split_frames

SMALL = Http2Limits(frame_bytes=16_384, stream_window_bytes=65_535, connection_window_bytes=65_535)


class HandMade:
    """A client whose server is written by hand."""

    def __init__(self, settings=None):
        self.recorder = ClientRecorder()
        self.client = ClientConnection(self.recorder, Http2Limits())
        self.receive(settings_frame(settings or {}))
        self.frames()

    def receive(self, data):
        self.client.receive_data(data, 1)

    def frames(self):
        return list(split_frames(b"".join(self.client.output.take()).removeprefix(PREFACE)))

    def request(self, *, ends_stream=True):
        exchange = Exchange()
        self.client.open(exchange, REQUEST_BLOCK, ends_stream=ends_stream)
        return exchange


def head_frame(stream_id, fields, *, end=False):
    return frame(wire.HEADERS, 4 | (1 if end else 0), stream_id, encode_fields(fields))


def test_opening_is_preface_and_settings_without_push():
    client = ClientConnection(ClientRecorder(), Http2Limits())
    sent = b"".join(client.output.take())
    assert sent.startswith(PREFACE)
    kind, _, _, payload = next(split_frames(sent.removeprefix(PREFACE)))
    assert kind == wire.SETTINGS
    assert dict(wire.SETTING.iter_unpack(payload))[wire.SETTING_ENABLE_PUSH] == 0


def test_request_and_response_pass():
    pair = Pair()
    exchange = pair.open(b"hello")
    pair.settle()
    assert exchange.head.status == 200
    assert exchange.head.field(b"content-type") == b"application/grpc"
    assert (bytes(exchange.body), exchange.ending, exchange.trailers) == (b"hello", "end", ((b"grpc-status", b"0"),))
    assert not pair.client.streams
    assert not pair.server.streams


def test_small_body_is_one_frame_that_ends():
    peer = HandMade()
    exchange = peer.request(ends_stream=False)
    peer.client.output.send_body(exchange, (b"ab", b"c"))
    assert peer.frames()[1:] == [(wire.DATA, wire.FLAG_END_STREAM, 1, b"abc")]
    assert peer.client.output.window == wire.DEFAULT_WINDOW - 3


def test_whole_requests_take_the_server_fast_path():
    pair = Pair()
    for _ in range(3):
        pair.open(b"hello")
        pair.settle()
    assert pair.sink.one_piece == 2


def test_repeated_responses_are_decoded_once():
    pair = Pair()
    heads = []
    for _ in range(2):
        exchange = pair.open(b"x")
        pair.settle()
        heads.append(exchange.head)
    assert heads[0] is heads[1]


def test_large_bodies_pass_small_windows():
    pair = Pair(SMALL, SMALL)
    bodies = [bytes([number]) * 400_000 for number in range(5)]
    exchanges = [pair.open(body) for body in bodies]
    pair.settle()
    assert [bytes(each.body) for each in exchanges] == bodies
    assert pair.client.output.queued_bytes == pair.server.output.queued_bytes == 0


def test_streams_have_odd_ascending_ids():
    pair = Pair()
    assert [pair.open().id for _ in range(3)] == [1, 3, 5]


def test_server_limits_open_streams():
    pair = Pair(server_limits=Http2Limits(concurrent_streams=2), server_sink=RecordingSink())
    pair.settle()
    pair.open()
    assert pair.client.can_open
    pair.open()
    assert not pair.client.can_open
    with pytest.raises(RuntimeError, match="can_open"):
        pair.open()


def test_cancelled_stream_is_reset_and_silent():
    pair = Pair()
    exchange = pair.open(b"x")
    pair.client.cancel(exchange)
    pair.settle()
    assert exchange.ending is None
    assert not pair.client.streams
    assert not pair.server.streams
    pair.open(b"more")
    pair.settle()


def test_reset_by_server_ends_the_stream():
    peer = HandMade()
    exchange = peer.request()
    peer.receive(rst_stream(1, Http2Code.REFUSED_STREAM))
    assert exchange.ending == ("reset", Http2Code.REFUSED_STREAM)
    assert not peer.client.streams


def test_goaway_returns_unprocessed_requests():
    peer = HandMade()
    first, second = peer.request(), peer.request()
    peer.receive(goaway(1, Http2Code.NO_ERROR))
    assert first.ending is None
    assert second.ending == ("reset", Http2Code.REFUSED_STREAM)
    assert not peer.client.can_open
    peer.receive(head_frame(1, ((b":status", b"200"),), end=True))
    assert first.ending == "end"
    assert peer.recorder.goaway_codes == [Http2Code.NO_ERROR]


def test_draining_server_completes_open_requests():
    pair = Pair()
    exchange = pair.open(b"x")
    pair.carry(pair.client, pair.server)
    pair.server.start_drain()
    pair.settle()
    assert exchange.ending == "end"
    assert pair.server.is_drained
    assert pair.client.is_retired


def test_ping_is_acknowledged():
    peer = HandMade()
    peer.receive(frame(wire.PING, 0, 0, b"12345678"))
    assert peer.frames() == [(wire.PING, wire.FLAG_ACK, 0, b"12345678")]


def test_interim_responses_are_skipped():
    peer = HandMade()
    exchange = peer.request()
    peer.receive(head_frame(1, ((b":status", b"103"),)) + head_frame(1, ((b":status", b"204"),), end=True))
    assert (exchange.head.status, exchange.ending) == (204, "end")


def test_early_response_stops_the_request():
    peer = HandMade({wire.SETTING_INITIAL_WINDOW_SIZE: 10})
    exchange = peer.request(ends_stream=False)
    peer.client.output.send_data(exchange, (bytes(100),))
    peer.client.output.send_end(exchange)
    peer.frames()
    peer.receive(head_frame(1, ((b":status", b"413"),), end=True))
    assert exchange.ending == "end"
    # The rest of the body waited for its window; it is dropped with the stream.
    peer.receive(frame(wire.WINDOW_UPDATE, 0, 1, (100).to_bytes(4, "big")))
    assert wire.DATA not in [kind for kind, *_ in peer.frames()]
    assert peer.client.output.queued_bytes == 0
    assert not peer.client.streams


def test_early_response_resets_an_open_request():
    peer = HandMade()
    exchange = peer.request(ends_stream=False)
    peer.frames()
    peer.receive(head_frame(1, ((b":status", b"200"),), end=True))
    assert exchange.ending == "end"
    assert peer.frames() == [(wire.RST_STREAM, 0, 1, int(Http2Code.CANCEL).to_bytes(4, "big"))]


@pytest.mark.parametrize(
    "data",
    [
        data_frame(1, b"body before the head"),
        head_frame(1, ((b":status", b"20"),)),
        head_frame(1, ((b"grpc-status", b"0"),)),
        head_frame(1, ((b":status", b"101"),)),
        head_frame(1, ((b":status", b"100"),), end=True),
        head_frame(1, ((b":status", b"200"), (b"content-length", b"5")), end=True),
        head_frame(1, ((b":status", b"200"), (b"connection", b"close"))),
        head_frame(1, ((b":status", b"200"), (b"content-length", b"2"))) + data_frame(1, b"abc", end=True),
        head_frame(1, ((b":status", b"200"),)) + head_frame(1, ((b"grpc-status", b"0"),)),
        head_frame(1, ((b":status", b"200"),)) + head_frame(1, ((b":status", b"200"),), end=True),
    ],
)
def test_malformed_responses_break_their_stream(data):
    peer = HandMade()
    exchange, other = peer.request(), peer.request()
    peer.receive(data)
    assert exchange.ending == ("broken", Http2Code.PROTOCOL_ERROR)
    assert other.ending is None
    peer.receive(frame(wire.HEADERS, 5, 3, RESPONSE_BLOCK))
    assert other.ending == "end"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (settings_frame({wire.SETTING_ENABLE_PUSH: 1}), "ENABLE_PUSH"),
        (frame(wire.PUSH_PROMISE, 4, 1, bytes(8)), "PUSH_PROMISE"),
        (head_frame(5, ((b":status", b"200"),)), "idle stream 5"),
        (rst_stream(5, 0), "idle stream 5"),
        (frame(wire.HEADERS, 4, 2, b""), "HEADERS on stream 2"),
        (frame(wire.HEADERS, 4, 1, b"\xff"), "COMPRESSION_ERROR"),
    ],
)
def test_errors_of_the_server_end_the_connection(data, words):
    peer = HandMade()
    peer.request()
    with pytest.raises(Http2Error, match=words):
        peer.receive(data)
    assert peer.frames()[-1][0] == wire.GOAWAY
    assert not peer.client.can_open


@pytest.mark.parametrize(
    ("data", "words"), [(b"HTTP/1.1 400 Bad Request\r\n", "HTTP/1"), (b"\x15\x03\x01\x00\x02\x02\x16\x00\x00", "TLS")]
)
def test_other_protocols_are_named(data, words):
    client = ClientConnection(ClientRecorder(), Http2Limits())
    with pytest.raises(Http2Error, match=words):
        client.receive_data(data, 1)


def test_spaces_around_grpc_messages_are_removed():
    peer = HandMade()
    exchange = peer.request()
    peer.receive(frame(wire.HEADERS, 4, 1, RESPONSE_BLOCK))
    peer.receive(head_frame(1, ((b"grpc-status", b"3"), (b"grpc-message", b" no ")), end=True))
    assert exchange.trailers == ((b"grpc-status", b"3"), (b"grpc-message", b"no"))
