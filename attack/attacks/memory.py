"""Bodies that take memory: for models that do not exist, announced and never sent, or held back."""

import contextlib
import struct
import time

from attack.connection import GRPC_INFER, Http1Peer, Http2Peer
from attack.registry import GRPC, HTTP1, HTTP2, Limits, attack
from attack.target import Target
from naiad.wire.http2 import frames as wire

_NOTHING = "/v2/models/does_not_exist/infer"
_INFER = "/v2/models/floats/infer"
_MEBIBYTE = 1 << 20


@attack(HTTP1, HTTP2, GRPC, limits=Limits(cpu_s=3.0, peak_mib=32.0))
def bodies_for_unknown_models(target: Target) -> None:
    """Bodies of 100 MB for a model that does not exist, over fifteen connections."""
    with contextlib.ExitStack() as opened:
        peers = [opened.enter_context(target.peer()) for _ in range(15)]
        streams = [_begin(peer, _NOTHING, 100 * _MEBIBYTE) for peer in peers]
        for _ in target.rounds(100):
            for peer, stream_id in zip(peers, streams, strict=True):
                if peer.is_open:
                    _send(peer, stream_id, bytes(_MEBIBYTE))


@attack(HTTP1, HTTP2, limits=Limits(cpu_s=3.0, peak_mib=64.0))
def announced_bodies(target: Target) -> None:
    """Connections that announce a body of a gigabyte and send one byte of it."""
    with contextlib.ExitStack() as opened:
        for _ in target.rounds(500):
            peer = opened.enter_context(target.peer())
            _send(peer, _begin(peer, _INFER, 1 << 30), b"x")
        time.sleep(1.0)
        if not _is_served(target):
            raise RuntimeError("announced bodies took the room of a request that is sent")


@attack(GRPC, limits=Limits(cpu_s=3.0, peak_mib=64.0))
def announced_messages(target: Target) -> None:
    """Calls that announce a message of two gigabytes and send one byte of it."""
    with contextlib.ExitStack() as opened:
        for _ in target.rounds(500):
            peer = opened.enter_context(target.http2())
            stream_id, head = peer.open_stream(GRPC_INFER)
            peer.send(head + wire.frame(wire.DATA, 0, stream_id, b"\0\x7f\xff\xff\xff\x0a"))
        time.sleep(1.0)


def _begin(peer: Http1Peer | Http2Peer, path: str, length: int) -> int:
    """Send the head of a request with a body, and return its stream."""
    if isinstance(peer, Http1Peer):
        peer.send(peer.head(path, {"content-length": str(length), "inference-header-content-length": "100"}))
        return 0
    if peer.is_grpc:
        stream_id, head = peer.open_stream(GRPC_INFER)
        peer.send(head)
        model = path.split("/")[3].encode()
        peer.send_body(
            stream_id, struct.pack(">BI", 0, length) + b"\x0a%c%s\x2a\x00" % (len(model), model), ends=False
        )
        return stream_id
    fields = [(b"content-length", str(length).encode()), (b"inference-header-content-length", b"100")]
    stream_id, head = peer.open_stream(path, fields)
    peer.send(head)
    return stream_id


def _send(peer: Http1Peer | Http2Peer, stream_id: int, piece: bytes) -> None:
    """Send a piece of a body, until the server answers."""
    if isinstance(peer, Http1Peer):
        peer.send(piece)
    else:
        peer.send_body(stream_id, piece, ends=False, most_s=5.0)


def _is_served(target: Target) -> bool:
    """Return whether a request with a body is read and answered; without a key that answer is 401."""
    with target.http1() as peer:
        text = b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,20000],"data":[' + b"1," * 19_999 + b"1]}]}"
        return peer.request(_INFER, text) in (200, 401)
