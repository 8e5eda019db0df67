"""Connections that are slow, idle, or do not read."""

import contextlib
import json
import struct
import time

import numpy as np

from attack.connection import GRPC_INFER, Http1Peer, Http2Peer
from attack.registry import GRPC, HTTP1, HTTP2, Limits, attack
from attack.target import Target
from naiad.wire.http2 import frames as wire

_INFER = "/v2/models/floats/infer"
_SLOW_S = 3.0


@attack(HTTP1, HTTP2, GRPC, limits=Limits(cpu_s=3.0))
def slow_heads(target: Target) -> None:
    """Connections that send a head one byte at a time (slowloris)."""
    with contextlib.ExitStack() as opened:
        peers = [opened.enter_context(target.peer()) for _ in range(target.count(500))]
        heads = [_head(peer) for peer in peers]
        _trickle(peers, heads)


@attack(HTTP1, HTTP2, GRPC, limits=Limits(cpu_s=3.0))
def slow_bodies(target: Target) -> None:
    """Connections that send a body one byte at a time."""
    with contextlib.ExitStack() as opened:
        peers = [opened.enter_context(target.peer()) for _ in range(target.count(500))]
        for peer in peers:
            peer.send(_head(peer))
        piece = b" " if target.protocol == "http1" else wire.frame(wire.DATA, 0, 1, b"\0")
        _trickle(peers, [piece * 100 for _ in peers], len(piece))


def _head(peer: Http1Peer | Http2Peer) -> bytes:
    if isinstance(peer, Http1Peer):
        return peer.head(_INFER, {"content-length": "1000000"})
    return peer.open_stream(GRPC_INFER if peer.is_grpc else _INFER)[1]


def _trickle(peers: "list[Http1Peer | Http2Peer]", contents: list[bytes], size: int = 1) -> None:
    end_s, position = time.monotonic() + _SLOW_S, 0
    while time.monotonic() < end_s:
        for peer, content in zip(peers, contents, strict=True):
            if peer.is_open and position < len(content):
                peer.send(content[position : position + size])
        position += size
        time.sleep(0.05)


@attack(HTTP1, HTTP2, GRPC, limits=Limits(cpu_s=4.0, peak_mib=100.0))
def idle_connections(target: Target) -> None:
    """Connections that are opened and left alone."""
    with contextlib.ExitStack() as opened:
        for _ in target.rounds(4000):
            opened.enter_context(target.peer())
        time.sleep(1.0)


@attack(HTTP1, HTTP2, GRPC, limits=Limits(cpu_s=10.0, peak_mib=512.0))
def unread_answers(target: Target) -> None:
    """Connections that ask for answers of a megabyte and read nothing."""
    values = np.ones(250_000, np.float32).tobytes()
    with contextlib.ExitStack() as opened:
        for _ in target.rounds(20):
            peer = opened.enter_context(target.peer())
            for _ in range(10):
                if not _ask_much(peer, values):
                    break
        time.sleep(1.0)


def _ask_much(peer: Http1Peer | Http2Peer, values: bytes) -> bool:
    """Send a request of a megabyte whose answer is as large; never read the socket for it."""
    header = json.dumps(
        {
            "inputs": [
                {
                    "name": "INPUT0",
                    "datatype": "FP32",
                    "shape": [1, len(values) // 4],
                    "parameters": {"binary_data_size": len(values)},
                }
            ],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    fields = {"inference-header-content-length": str(len(header))}
    if isinstance(peer, Http1Peer):
        length = len(header) + len(values)
        return peer.send(peer.head(_INFER, {"content-length": str(length), **fields}) + header + values, reads=False)
    body = header + values
    if peer.is_grpc:
        shape = b"\x01\x90\xa1\x0f"
        tensor = b"\x0a\x06INPUT0\x12\x04FP32\x1a" + bytes((len(shape),)) + shape
        message = b"\x0a\x06floats\x2a" + bytes((len(tensor),)) + tensor + b"\x3a" + _varint(len(values)) + values
        body = struct.pack(">BI", 0, len(message)) + message
    more = [(name.encode(), value.encode()) for name, value in fields.items()] if not peer.is_grpc else []
    stream_id, head = peer.open_stream(GRPC_INFER if peer.is_grpc else _INFER, more)
    peer.send(head, reads=False)
    # The peer's first window of 64 KiB stays as it is: the answer cannot leave.
    pieces = [body[start : start + 16_000] for start in range(0, len(body), 16_000)]
    frames = b"".join(
        wire.frame(wire.DATA, wire.FLAG_END_STREAM if piece is pieces[-1] else 0, stream_id, piece)
        for piece in pieces
    )
    return peer.send(frames, reads=False)


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number >= 128:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


@attack(HTTP1, limits=Limits(cpu_s=4.0))
def one_byte_chunks(target: Target) -> None:
    """A chunked body in chunks of one byte."""
    rounds = target.rounds(100)
    while next(rounds, None) is not None:
        with target.http1() as peer:
            peer.send(peer.head(_INFER, {"transfer-encoding": "chunked"}))
            while peer.send(b"1\r\nx\r\n" * 5000) and next(rounds, None) is not None:
                pass


@attack(HTTP1, limits=Limits(cpu_s=6.0))
def pipelined_requests(target: Target) -> None:
    """Requests without an end on one connection, none of which waits for an answer."""
    rounds = target.rounds(40)
    while next(rounds, None) is not None:
        with target.http1() as peer:
            request = peer.head("/v2/health/live", {}, method="GET")
            while peer.send(request * 500) and next(rounds, None) is not None:
                pass
