"""HTTP/2: chunking does not matter, no bytes do harm, windows are respected, the header cache changes nothing."""

from collections import deque
from contextlib import suppress
from itertools import pairwise

import hpack
from hypothesis import given, settings
from hypothesis import strategies as st

from naiad.wire.grpc import GrpcError, MessageAssembler
from naiad.wire.http2 import frames as wire
from naiad.wire.http2.connection_limits import Http2Limits
from naiad.wire.http2.frames import Http2Error, frame, window_update
from naiad.wire.http2.hpack import HeaderListTooLargeError, HpackError, RequestHeadDecoder
from support.http2_peer import GRPC_FIELDS, OPENING, Peer, data_frame, settings_frame, split_frames
from support.long_run import examples

LIMITS = Http2Limits(frame_bytes=16_384, stream_window_bytes=65_535, connection_window_bytes=65_535)
NAMES = st.sampled_from(["x-a", "x-b", "grpc-timeout", "user-agent"])
FIELDS = st.lists(st.tuples(NAMES, st.sampled_from(["1", "2", "3S", "x" * 50])), max_size=3)
SHAPES = ["one", "later", "window", "padded", "split", "trailers", "continued", "reset", "noise"]
LENGTHS = st.sampled_from([[], [], [("content-length", "3")]])


def request_of_shape(draw, shape, stream_id, encoder):
    """Return a request as bytes now and bytes later."""
    block = encoder.encode(GRPC_FIELDS + draw(FIELDS) + draw(LENGTHS))
    body = draw(st.one_of(st.just(b"abc"), st.binary(max_size=40)))
    head = frame(wire.HEADERS, 4, stream_id, block)
    whole = data_frame(stream_id, body, end=True)
    if shape == "later":  # as nghttp2 does: the request headers of several requests first
        return head, whole
    if shape == "window":  # as grpc-core does
        which, increment = draw(st.sampled_from([0, stream_id])), draw(st.sampled_from([0, 5, 2**31 - 1]))
        return head + window_update(which, increment) + whole, b""
    bytes_by_shape = {
        "one": head + whole,
        "continued": frame(1, 0, stream_id, block[:5]) + frame(wire.CONTINUATION, 4, stream_id, block[5:]) + whole,
        "padded": head + frame(wire.DATA, 9, stream_id, b"\x07" + body + bytes(7)),
        "split": head + data_frame(stream_id, body[:9]) + data_frame(stream_id, body[9:], end=True),
        "reset": head + data_frame(stream_id, body) + frame(wire.RST_STREAM, 0, stream_id, bytes(4)),
    }
    if shape == "trailers":
        return head + data_frame(stream_id, body) + frame(1, 5, stream_id, encoder.encode([("x-t", "1")])), b""
    return bytes_by_shape[shape], b""


@st.composite
def conversations(draw):
    """Bytes of a client that mostly follows the rules, and sometimes violates them."""
    encoder = hpack.Encoder()
    data, later = bytearray(OPENING), bytearray()
    for stream_id in range(1, 2 * draw(st.integers(1, 8)) + 1, 2):
        shape = draw(st.sampled_from(SHAPES))
        if shape == "noise":
            kind, flags, target = draw(st.integers(2, 12)), draw(st.integers(0, 255)), draw(st.integers(0, 9))
            data += frame(kind, flags, target, draw(st.binary(max_size=12)))
            continue
        now, then = request_of_shape(draw, shape, stream_id, encoder)
        data += now
        later += then
        if draw(st.booleans()):
            data += later
            later.clear()
    return bytes(data + later)


def play(data, cuts, postponed=()):
    """Return the results of a connection for `data` cut at `cuts`: calls, bodies, responses, error.

    The pieces with the indices `postponed` wait until the next one that does not.
    """
    peer = Peer(LIMITS, opened=False)
    error = None
    edges = [0, *sorted(cuts), len(data)]
    for index, (begin, end) in enumerate(pairwise(edges)):
        try:
            if index in postponed:
                peer.connection.postpone(data[begin:end])
                if end < len(data):
                    continue
                begin = end  # noqa: PLW2901
            peer.send(data[begin:end])
        except Http2Error as failure:
            error = failure.code
    calls = sorted(peer.sink.calls, key=lambda call: call[1])  # a stable sort: by stream, each in its order
    return calls, peer.sink.bodies, peer.raw(), error


@given(st.data())
@settings(max_examples=examples(300))
def test_cutting_changes_nothing(data):
    conversation = data.draw(conversations())
    cuts = data.draw(st.lists(st.integers(0, len(conversation)), max_size=20))
    assert play(conversation, cuts) == play(conversation, [])


@given(st.data())
@settings(max_examples=examples(200))
def test_postponing_changes_nothing(data):
    conversation = data.draw(conversations())
    cuts = data.draw(st.lists(st.integers(0, len(conversation)), max_size=20))
    postponed = data.draw(st.sets(st.integers(0, len(cuts))))
    assert play(conversation, cuts, postponed) == play(conversation, [])


@given(conversations())
@settings(max_examples=50)
def test_single_bytes_change_nothing(conversation):
    assert play(conversation, range(len(conversation))) == play(conversation, [])


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=5))
@settings(max_examples=examples(300))
def test_random_bytes_raise_nothing_else(data, cuts):
    play(OPENING + data, [cut for cut in cuts if cut <= len(data)])


@given(conversations(), st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), min_size=1, max_size=8))
@settings(max_examples=examples(300))
def test_spoilt_conversations_raise_nothing_else(conversation, spots):
    spoilt = bytearray(conversation)
    for position, byte in spots:
        spoilt[24 + position % (len(spoilt) - 24)] = byte
    play(bytes(spoilt), [])


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("answer"), st.integers(0, 3), st.integers(0, 150_000)),
        st.tuples(st.just("window"), st.integers(0, 4), st.integers(1, 100_000)),
        st.tuples(st.just("set_initial"), st.integers(0, 120_000), st.just(0)),
        st.tuples(st.just("reset"), st.integers(0, 3), st.just(0)),
    ),
    max_size=25,
)


class WindowedPeer:
    """Tracks the windows of four streams as grpc-core does, with sent and pending bytes of each."""

    ids = (1, 3, 5, 7)

    def __init__(self):
        self.peer = Peer()
        self.output = self.peer.connection.output
        self.peer.send(b"".join(self.peer.request(i) for i in self.ids))
        self.peer.frames()
        self.windows = dict.fromkeys((0, *self.ids), 65_535)
        self.initial = 65_535
        self.unacknowledged = deque()
        self.sent = dict.fromkeys(self.ids, b"")
        self.owed = dict.fromkeys(self.ids, b"")

    def answer(self, which, size):
        stream = self.peer.sink.streams[self.ids[which]]
        if not stream.is_local_closed:
            body = bytes((which + 1,)) * size
            self.owed[stream.id] += body
            self.output.send_data(stream, [body])

    def window(self, which, size):
        stream_id = (0, *self.ids)[which]
        self.windows[stream_id] += size
        self.peer.send(window_update(stream_id, size))

    def set_initial(self, size, _):
        self.unacknowledged.append(size)
        self.peer.send(settings_frame({wire.SETTING_INITIAL_WINDOW_SIZE: size}))

    def reset(self, which, _):
        self.peer.send(frame(wire.RST_STREAM, 0, self.ids[which], bytes(4)))

    def read(self):
        for kind, flags, stream_id, payload in split_frames(self.peer.raw()):
            if kind == wire.SETTINGS and flags & wire.FLAG_ACK:
                self._acknowledged(self.unacknowledged.popleft())
            elif kind == wire.DATA:
                self.windows[0] -= len(payload)
                self.windows[stream_id] -= len(payload)
                self.sent[stream_id] += payload
                assert self.windows[0] >= 0
                assert self.windows[stream_id] >= 0

    def _acknowledged(self, size):
        for i in self.ids:
            self.windows[i] += size - self.initial
        self.initial = size


@given(ACTIONS)
@settings(max_examples=examples(200))
def test_peer_windows_are_respected_and_used(actions):
    windowed = WindowedPeer()
    for action, which, size in actions:
        getattr(windowed, action)(which, size)
        windowed.read()
    streams, output = windowed.peer.connection.streams, windowed.output
    assert output.window == windowed.windows[0]
    assert output.queued_bytes == sum(stream.queued_bytes for stream in streams.values())
    for i in windowed.ids:
        sent, owed = windowed.sent[i], windowed.owed[i]
        assert owed.startswith(sent)
        if i in streams:
            assert len(sent) + streams[i].queued_bytes == len(owed)
            # Waiting data waits for a window.
            assert sent == owed or windowed.windows[0] == 0 or windowed.windows[i] <= 0


@given(st.lists(st.tuples(FIELDS, st.sampled_from(["request", "request", "trailers", "resize"])), max_size=20))
@settings(max_examples=examples(200))
def test_header_cache_gives_what_decoding_gives(steps):
    encoder, reference, decoder = hpack.Encoder(), hpack.Decoder(), RequestHeadDecoder(Http2Limits())
    for fields, step in steps:
        if step == "resize":
            encoder.header_table_size = 100 if encoder.header_table_size > 100 else 4096
        block = encoder.encode(fields if step == "trailers" else GRPC_FIELDS + fields)
        expected = tuple((bytes(name), bytes(value)) for name, value in reference.decode(block, raw=True))
        if step == "trailers":
            assert decoder.decode_fields(block) == expected
        else:
            head = decoder.decode(block)
            assert head.fields == tuple(field for field in expected if not field[0].startswith(b":"))
            assert head.path == GRPC_FIELDS[3][1]


def _size_updates(block):
    count = position = 0
    while position < len(block) and block[position] & 0xE0 == 0x20:
        count += 1
        is_long = block[position] & 0x1F == 0x1F
        position += 1
        while is_long and position < len(block):
            is_long = block[position] & 0x80
            position += 1
    return count


@given(st.binary(max_size=200))
@settings(max_examples=examples(500))
def test_header_decoder_agrees_with_hpack_package(block):
    try:
        expected = tuple((bytes(name), bytes(value)) for name, value in hpack.Decoder().decode(block, raw=True))
    except hpack.HPACKError:
        expected = None
    if _size_updates(block) > 2:
        expected = None  # RFC 7541 4.2; the package takes any number
    try:
        fields = RequestHeadDecoder(Http2Limits(header_fields=200)).decode_fields(block)
    except (HpackError, HeaderListTooLargeError):
        fields = None
    assert fields == expected


@given(st.lists(st.binary(max_size=30), max_size=6), st.lists(st.integers(0, 200), max_size=10))
def test_messages_survive_any_cutting(messages, cuts):
    data = b"".join(b"\0" + len(message).to_bytes(4, "big") + message for message in messages)
    edges = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    assembler = MessageAssembler(30)
    seen = []
    for begin, end in pairwise(edges):
        seen += assembler.feed(memoryview(data)[begin:end])
    assembler.finish()
    assert seen == messages


@given(st.lists(st.binary(max_size=40), max_size=5), st.sampled_from([None, b"gzip", b"deflate"]))
@settings(max_examples=examples(300))
def test_random_bodies_raise_grpc_errors_only(pieces, encoding):
    assembler = MessageAssembler(20, encoding)
    with suppress(GrpcError):
        for piece in pieces:
            for message in assembler.feed(memoryview(piece)):
                assert len(message) <= 20
        assembler.finish()


@given(conversations(), st.integers(1, 60))
@settings(max_examples=examples(200))
def test_slices_of_any_size_change_nothing(conversation, slice_bytes):
    expected = play(conversation, [])
    peer, error = Peer(LIMITS, opened=False), None
    peer.connection._unread.slice_bytes = slice_bytes
    try:
        peer.connection.receive_slice(conversation, peer.now_ns)
        while peer.connection.has_unread:
            peer.connection.receive_slice(b"", peer.now_ns)
    except Http2Error as failure:
        error = failure.code
    calls = sorted(peer.sink.calls, key=lambda call: call[1])
    assert (calls, peer.sink.bodies, error) == (expected[0], expected[1], expected[3])


REQUESTS = st.lists(st.tuples(st.binary(max_size=60), st.integers(0, 70_000)), min_size=1, max_size=6)


def _windows(peer):
    output, windows = peer.connection.output, peer.connection.windows
    return (
        output.window,
        output.queued_bytes,
        output.peer_window,
        windows.left_bytes,
        windows.received_bytes,
        {i: output.window_of(stream) for i, stream in peer.connection.streams.items()},
    )


@given(REQUESTS, st.integers(0, 200_000))
@settings(max_examples=examples(200))
def test_fast_and_slow_paths_charge_the_same_windows(requests, granted):
    """The same requests, whole or byte by byte, with responses by `send_answer` or by its parts."""
    fast, slow = Peer(LIMITS), Peer(LIMITS)
    head, trailers = b"\x88", b"\x88"
    for number, (body, size) in enumerate(requests):
        stream_id = 2 * number + 1
        for peer in (fast, slow):
            # The first block of a kind is not cached: open the stream of a request that repeats it.
            data = peer.request(stream_id, body)
            if granted:
                data = window_update(0, granted) + data
            for piece in [data] if peer is fast else [data[i : i + 1] for i in range(len(data))]:
                peer.send(piece)
        quick, stepwise = fast.sink.streams[stream_id], slow.sink.streams[stream_id]
        fast.connection.output.send_answer(quick, head, [bytes(size)], size, trailers)
        slow.connection.output.send_headers(stepwise, head)
        slow.connection.output._queue_data(stepwise, [bytes(size)])
        slow.connection.output.send_end(stepwise, trailers)
        assert _windows(fast) == _windows(slow)
    assert fast.sink.bodies == slow.sink.bodies


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5_000)), min_size=1, max_size=12))
def test_streamed_data_charges_windows_like_queued_data(pieces):
    fast, slow = Peer(LIMITS), Peer(LIMITS)
    for peer in (fast, slow):
        peer.send(b"".join(peer.request(i) for i in (1, 3, 5)))
    for which, size in pieces:
        stream_id = 2 * which + 1
        fast.connection.output.send_data(fast.sink.streams[stream_id], [bytes(size)])
        slow.connection.output._queue_data(slow.sink.streams[stream_id], [bytes(size)])
        fast.connection.output.take()
        slow.connection.output.take()
        assert _windows(fast) == _windows(slow)
