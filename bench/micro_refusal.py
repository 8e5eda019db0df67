"""What a byte of a request costs to decode or to refuse: the figures of docs/security.md.

    PYTHONPATH=src python -m bench.micro_refusal

Prints, for each kind of document, nanoseconds of CPU for each byte that is decoded (of compressed ones each byte that
comes out); the least of some rounds.
"""

import functools
import json
import time
import zlib
from collections.abc import Callable, Sequence

from tritonclient.grpc.service_pb2 import ModelInferRequest

from naiad.core.errors import InferError
from naiad.core.request_limits import RequestLimits
from naiad.core.slices import finish
from naiad.protocol.grpc.infer import InferRequestDecoder
from naiad.protocol.json.infer import InferJsonDecoder

ROUNDS = 5
SHORT_BYTES = 60_000
LONG_BYTES = 8_000_000


def _limits(name: str, version: str) -> RequestLimits:
    return RequestLimits(name, 2, 2)


def _repeat(begin: str, piece: str, end: str, size: int) -> bytes:
    return (begin + piece * ((size - len(begin) - len(end)) // len(piece)) + end).encode()


def _tensor(datatype: str, element: str, size: int) -> bytes:
    count = size // (len(element) + 1)
    data = ",".join([element] * count)
    return f'{{"inputs":[{{"name":"A","datatype":"{datatype}","shape":[{count}],"data":[{data}]}}]}}'.encode()


def _json_documents(size: int) -> dict[str, bytes]:
    inputs = '{"inputs":['
    return {
        "objects": _repeat(inputs, "{},", "{}]}", size),
        "members": b'{"inputs":[],' + b",".join(b'"%d":1' % number for number in range(size // 9)) + b"}",
        "parameters": b'{"parameters":{' + b",".join(b'"%d":1' % n for n in range(size // 9)) + b'},"inputs":[]}',
        "nesting": b'{"inputs":' + b"[" * (size // 2) + b"]" * (size // 2) + b"}",
        "arrays of arrays": _repeat(inputs, "[],", "[]]}", size),
        "syntax error at the end": _tensor("FP32", "0.125", size)[:-1],
        "numbers": _tensor("FP32", "0.1234567", size),
        "one-digit numbers": _tensor("INT32", "1", size),
        "NaN": _tensor("FP32", "NaN", size),
        "booleans": _tensor("BOOL", "true", size),
        "strings of one character": _tensor("BYTES", '"x"', size),
        "strings of escapes": _tensor("BYTES", '"\\u00fc\\n"', size),
    }


def _decode_json(body: bytes) -> bool:
    """Decode a document as the server does; return whether it was accepted."""
    decoder = InferJsonDecoder(_limits)
    try:
        finish(decoder.decode_in_slices("m", "", body, None))
    except InferError:
        return False
    return True


def _grpc_documents(size: int) -> dict[str, bytes]:
    typed = {}
    contents: Sequence[tuple[str, str, Sequence[object]]] = (
        ("fp32_contents", "FP32", [1.0] * (size // 4)),
        ("int_contents", "INT32", [1] * size),
        ("bytes_contents", "BYTES", [b"x"] * (size // 3)),
    )
    for field, datatype, values in contents:
        request = ModelInferRequest(model_name="m")
        tensor = request.inputs.add(name="A", datatype=datatype, shape=[len(values)])
        getattr(tensor.contents, field).extend(values)
        typed[field] = request.SerializeToString()
    model = b"\x0a\x01m"
    return {
        "empty inputs": model + b"\x2a\x00" * (size // 2),
        "empty parameters": model + b"\x22\x00" * (size // 2),
        "empty outputs": model + b"\x32\x00" * (size // 2),
        "unknown fields": model + b"\xf8\x07\x01" * (size // 3),
        **typed,
    }


def _decode_grpc(message: bytes) -> bool:
    decoder = InferRequestDecoder(_limits)
    try:
        finish(decoder.decode_in_slices(message))
    except InferError:
        return False
    return True


def _ns_per_byte(work: Callable[[], object], size: int) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        began_ns = time.process_time_ns()
        work()
        best = min(best, time.process_time_ns() - began_ns)
    return best / size


def main() -> None:
    print(f"{'document':44} {'bytes':>9} {'outcome':>9} {'ns/byte':>8}")
    for size in (SHORT_BYTES, LONG_BYTES):
        for kind, documents, decode in (
            ("JSON", _json_documents(size), _decode_json),
            ("gRPC", _grpc_documents(size), _decode_grpc),
        ):
            for name, document in documents.items():
                outcome = "accepted" if decode(document) else "refused"
                cost = _ns_per_byte(functools.partial(decode, document), len(document))
                print(f"{kind + ', ' + name:44} {len(document):9} {outcome:>9} {cost:8.1f}", flush=True)
    for name, plain in (
        ("zeros", bytes(LONG_BYTES)),
        ("JSON of numbers", json.dumps([0.125] * (LONG_BYTES // 7)).encode()),
    ):
        compressed = zlib.compress(plain)
        cost = _ns_per_byte(functools.partial(zlib.decompress, compressed), len(plain))
        print(f"{'deflate, ' + name:44} {len(plain):9} {'accepted':>9} {cost:8.1f}")


if __name__ == "__main__":
    main()
