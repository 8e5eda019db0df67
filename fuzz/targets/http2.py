"""HTTP/2 frames into the gRPC frontend: the same effect however the bytes are cut, and every account in order."""

from collections.abc import Hashable, Sequence
from random import Random
from typing import NamedTuple

import hpack

from fuzz.fakes import Loop, Transport
from fuzz.mutation import cut, mutate_bytes, mutate_pieces
from fuzz.target import Target
from naiad.core.tensor import Buffer
from naiad.frontend.context import GrpcCall
from naiad.frontend.http2.connection import Http2Server
from naiad.wire.http2.connection_limits import Http2Limits
from naiad.wire.http2.frames import (
    CONTINUATION,
    DATA,
    GOAWAY,
    HEADERS,
    PING,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
)
from naiad.wire.preface import PREFACE

_LIMITS = Http2Limits(
    frame_bytes=2**14,
    stream_window_bytes=65_535,
    connection_window_bytes=65_535,
    header_list_bytes=4096,
    concurrent_streams=4,
    message_bytes=100_000,
    queued_bytes=100_000,
    resets_burst=50,
    control_frames_burst=50,
)
_OPENING = PREFACE + frame(SETTINGS, 0, 0)
_PATHS = ("/s/Echo", "/s/Hold", "/s/Stream")


class _Service:
    def __init__(self) -> None:
        self.seen: list[tuple[str, bytes]] = []

    def unary(self, call: GrpcCall, message: Buffer) -> None:
        self.seen.append((call.path, bytes(message)))
        if call.path != "/s/Hold":
            call.respond((message,))

    def message_began(self, call: object, beginning: object) -> None:
        """Refuse nothing."""

    def rejection(self, path: str) -> None:
        """Answer every path."""

    def is_streaming(self, path: str) -> bool:
        return path == "/s/Stream"

    def stream_message(self, call: GrpcCall, message: Buffer) -> None:
        self.seen.append((call.path, bytes(message)))
        call.send((message,))

    def stream_half_closed(self, call: GrpcCall) -> None:
        call.finish(0)

    def stream_writable(self, call: GrpcCall) -> None:
        """Nothing waits."""

    stream_draining = stream_writable


class _Outcome(NamedTuple):
    seen: list[tuple[str, bytes]]
    frames: list[bytes]
    is_closed: bool
    window: int


_ENHANCE_YOUR_CALM = (11).to_bytes(4, "big")


def _play(pieces: Sequence[bytes]) -> _Outcome:
    loop, transport, service = Loop(), Transport(), _Service()
    protocol = Http2Server(service, loop, _LIMITS).protocol()
    protocol.connection_made(transport)
    for piece in pieces:
        if piece and not transport.is_closed:
            protocol.data_received(piece)
    loop.run()
    output = protocol.output
    streams = protocol._connection.streams
    assert output.queued_bytes == sum(stream.queued_bytes for stream in streams.values())
    assert len(streams) <= _LIMITS.concurrent_streams
    assert output.window >= 0
    written = bytes(transport.written)
    outcome = _Outcome(sorted(service.seen), _sorted_frames(written), transport.is_closed, output.window)
    protocol.connection_lost(None)
    assert not streams
    assert not protocol._flow.collecting_bytes
    assert not protocol._flow.reserved_bytes
    return outcome


def _frames(data: bytes) -> list[bytes]:
    frames = []
    position = 0
    while position < len(data):
        size = 9 + int.from_bytes(data[position : position + 3], "big")
        frames.append(data[position : position + size])
        position += size
    return frames


def _sorted_frames(written: bytes) -> list[bytes]:
    """Return what was sent by stream: answers to different streams may change places."""
    frames = _frames(written)
    assert all(len(each) == 9 + int.from_bytes(each[:3], "big") for each in frames)
    return sorted(frames, key=lambda each: each[5:9])


def _depends_on_pieces(outcome: _Outcome) -> bool:
    """Tell whether a request was answered before its end, or the connection ended in peace before the input did.

    Also where the peer was told to calm down: answers that have left earn it more control frames.
    """
    early = (RST_STREAM, bytes(4)), (GOAWAY, bytes(4)), (GOAWAY, _ENHANCE_YOUR_CALM)
    codes = [(each[3], each[9:13] if each[3] == RST_STREAM else each[13:17]) for each in outcome.frames]
    return any(each in codes for each in early)


def check(data: bytes) -> Hashable:
    """Play `data` as what a client sends after its preface."""
    whole = _OPENING + data
    outcome = _play([whole])
    pieces = _play(cut(whole, Random(len(data) * 31 + sum(data[:64]))))
    if not _depends_on_pieces(outcome) and not _depends_on_pieces(pieces):
        assert outcome == pieces, (outcome, pieces)
    return (
        outcome.is_closed,
        len(outcome.seen),
        tuple((each[3], each[4], each[9:13] if each[3] in (3, 7) else b"") for each in outcome.frames),
    )


def restructure(data: bytes, random: Random) -> bytes:
    """Change a frame, or the order of frames."""
    frames = _frames(data)
    if not frames or random.random() < 0.3:
        return b"".join(mutate_pieces(frames, random)) or _frame_of(random)
    at = random.randrange(len(frames))
    head, payload = bytearray(frames[at][:9].ljust(9, b"\0")), frames[at][9:]
    action = random.randrange(6)
    if action == 0:
        head[3] = random.randrange(11)
    elif action == 1:
        head[4] ^= 1 << random.randrange(8)
    elif action == 2:
        head[5:9] = random.choice((0, 1, 2, 3, 5, 7, 9, 0x7FFFFFFF)).to_bytes(4, "big")
    elif action == 3:
        frames.insert(at, _frame_of(random))
    elif action == 4 and payload:
        middle = random.randrange(len(payload))
        rest = payload[middle:]
        payload = payload[:middle]
        kind = CONTINUATION if head[3] in (HEADERS, CONTINUATION) else head[3]
        frames.insert(at + 1, frame(kind, head[4], int.from_bytes(head[5:9], "big"), rest))
        head[4] &= ~(4 if head[3] == HEADERS else 1)
    else:
        payload = mutate_bytes(payload, random)
    head[:3] = len(payload).to_bytes(3, "big")
    frames[at] = bytes(head) + payload
    return b"".join(frames)


def _frame_of(random: Random) -> bytes:
    stream_id = random.choice((0, 1, 3, 5, 7, 9))
    return random.choice(
        (
            frame(WINDOW_UPDATE, 0, stream_id, random.choice((1, 100, 2**31 - 1, 0)).to_bytes(4, "big")),
            frame(SETTINGS, 0, 0, b"\0\4" + random.choice((0, 1, 100, 2**31 - 1)).to_bytes(4, "big")),
            frame(SETTINGS, 0, 0, b"\0\1\0\0\0\0\0\5\0\0\x40\0"),
            frame(PING, random.randrange(2), 0, bytes(8)),
            frame(RST_STREAM, 0, stream_id, b"\0\0\0\x08"),
            frame(PRIORITY, 0, stream_id, b"\0\0\0\1\x10"),
            frame(GOAWAY, 0, 0, bytes(8)),
            frame(DATA, random.choice((0, 1)), stream_id, b"\0\0\0\0\1x"),
            frame(DATA, random.choice((8, 9)), stream_id, b"\3\0\0\0\0\1xabc"),
            frame(CONTINUATION, 4, stream_id, b"\x82"),
        )
    )


def _framed(message: bytes) -> bytes:
    return b"\0" + len(message).to_bytes(4, "big") + message


def seeds() -> list[bytes]:
    """Return conversations of one to four requests."""
    found = []
    for path in _PATHS:
        encoder = hpack.Encoder()
        head = [(":method", "POST"), (":scheme", "http"), (":path", path), ("content-type", "application/grpc")]
        conversation = b""
        for stream_id in (1, 3, 5, 7):
            body = _framed(b"m" * (stream_id * 5000 if path == "/s/Echo" else 3))
            pieces = [body[i : i + 2**14] for i in range(0, len(body), 2**14)]
            conversation += frame(HEADERS, 4, stream_id, encoder.encode(head))
            conversation += b"".join(frame(DATA, int(piece is pieces[-1]), stream_id, piece) for piece in pieces)
            found.append(conversation)
        trailers = frame(HEADERS, 5, 9, encoder.encode([("x-trailer", "1")]))
        # To /s/Echo it is larger than a frame may be.
        body = _framed(b"m" * (35_000 if path == "/s/Echo" else 3))
        found.append(frame(HEADERS, 4, 9, hpack.Encoder().encode(head)) + frame(DATA, 0, 9, body) + trailers)
    # An answer that waits for a window, which then opens, or whose stream is reset.
    waiting = frame(SETTINGS, 0, 0, b"\0\4\0\0\0\1") + found[1]
    found.append(waiting + frame(WINDOW_UPDATE, 0, 1, b"\0\0\x10\0") + frame(SETTINGS, 0, 0, b"\0\4\0\0\0\0"))
    found.append(waiting + frame(RST_STREAM, 0, 1, b"\0\0\0\x08"))
    return found


TARGET = Target("http2", check, seeds, restructure=restructure, max_bytes=40_000)
