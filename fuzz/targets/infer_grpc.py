"""ModelInferRequest messages: what google.protobuf makes of them, whatever was decoded before.

An input is two messages: the length of the first in two bytes, then both.
"""

import re
from collections.abc import Hashable
from random import Random
from typing import NamedTuple

from google.protobuf.message import DecodeError

from fuzz.mutation import mutate_bytes, mutate_pieces
from fuzz.target import Target
from naiad.core.errors import InferError
from naiad.core.request import RequestedOutput, RequestHeader, SharedMemoryRegion
from naiad.core.slices import finish
from naiad.core.tensor import Buffer, TensorSpec
from naiad.protocol.grpc.header import to_header_and_data
from naiad.protocol.grpc.infer import InferRequestDecoder
from naiad.protocol.grpc.walk import encode_varint
from naiad.protocol.service_pb2 import ModelInferRequest


class _Request(NamedTuple):
    model_name: str
    model_version: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[RequestedOutput, ...]
    parameters: tuple[tuple[str, str], ...]
    numbers: tuple[int | str, ...]
    wants_empty_final: bool
    shared_memory: tuple[tuple[str, SharedMemoryRegion], ...]
    request_id: str
    data: tuple[bytes, ...]


_Outcome = tuple[Hashable, ...]
"""A `_Request`, or "error" and what it was refused with."""


def _of_header(header: RequestHeader, request_id: str, data: list[Buffer]) -> _Request:
    return _Request(
        header.model_name,
        header.model_version,
        header.inputs,
        header.outputs,
        tuple((name, repr(value)) for name, value in sorted(header.parameters.items())),
        (header.priority, header.timeout_us, header.sequence_id, header.sequence_start, header.sequence_end),
        header.wants_empty_final,
        tuple(header.shared_memory.items()),
        request_id,
        tuple(map(bytes, data)),
    )


def _decode(decoder: InferRequestDecoder, message: Buffer) -> _Outcome:
    try:
        return _of_header(*decoder.decode(message))
    except InferError as error:
        return "error", error.code, error.message


def _reference(message: bytes) -> _Outcome:
    """Decode with google.protobuf alone."""
    try:
        request = ModelInferRequest.FromString(message)
    except DecodeError:
        return ("error",)
    try:
        contents = {i: [tensor.contents.SerializeToString()] for i, tensor in enumerate(request.inputs)}
        header, data = finish(to_header_and_data(request, request.raw_input_contents, contents))
    except InferError as error:
        return "error", error.code, error.message
    return _of_header(header, request.id, data)


def _has_too_much(outcome: _Outcome) -> bool:
    """Tell whether an input has more data than its shape says: decoding stops there, and the engine refuses it."""
    if not isinstance(outcome, _Request):
        return False
    pairs = zip(outcome.inputs, outcome.data, strict=True)
    return any(spec.byte_size and len(data) > spec.byte_size for spec, data in pairs)


def check(data: bytes) -> Hashable:
    """Decode both messages in turn with one decoder, each also alone and as google.protobuf reads it."""
    size = int.from_bytes(data[:2], "big")
    first, second = data[2 : 2 + size], data[2 + size :]
    decoder = InferRequestDecoder()
    for message in (first, second, first, second, first):
        expected = _reference(message)
        found = _decode(decoder, message)
        assert _has_too_much(found) or found[: len(expected)] == expected, (found, expected)
        assert _decode(InferRequestDecoder(), memoryview(message)) == found
    outcome = _reference(second)
    if not isinstance(outcome, _Request):
        return re.sub(r"[^a-z ]", "", str(outcome[-1]))[:60]
    counts = len(outcome.inputs), len(outcome.outputs), len(outcome.parameters), len(decoder._headers)
    return counts, outcome.numbers, outcome.wants_empty_final, outcome.shared_memory


def _fields(data: bytes) -> list[bytes] | None:
    """Return the fields of a message, None when it is none."""
    fields = []
    position = 0
    while position < len(data):
        start = position
        tag, position = _varint(data, position)
        kind = tag & 7
        if kind == 0:
            _, position = _varint(data, position)
        elif kind == 2:
            size, position = _varint(data, position)
            position += size
        else:
            position += {1: 8, 5: 4}.get(kind, len(data))
        if position > len(data) or not tag >> 3:
            return None
        fields.append(data[start:position])
    return fields


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(data) and shift < 64:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, position
    return 0, len(data) + 1


def _change(message: bytes, random: Random, depth: int = 0) -> bytes:
    """Change the order of fields, or the inside of one with its length mended."""
    fields = _fields(message)
    if not fields or depth > 4:
        return mutate_bytes(message, random)
    if random.random() < 0.4:
        return b"".join(mutate_pieces(fields, random))
    at = random.randrange(len(fields))
    tag, position = _varint(fields[at], 0)
    if tag & 7 == 2:
        _, position = _varint(fields[at], position)
        content = _change(fields[at][position:], random, depth + 1)
        fields[at] = encode_varint(tag) + encode_varint(len(content)) + content
    else:
        value = random.choice((0, 1, 2**31, 2**63, 2**64 - 1, random.randrange(300)))
        fields[at] = encode_varint(tag & ~7) + encode_varint(value)
    return b"".join(fields)


def restructure(data: bytes, random: Random) -> bytes:
    """Change one of the two messages, or make them equal, which the cache must notice."""
    size = int.from_bytes(data[:2], "big")
    messages = [data[2 : 2 + size], data[2 + size :]]
    action = random.randrange(4)
    if action == 0:
        messages[random.randrange(2)] = random.choice(messages)
    messages[action % 2] = _change(messages[action % 2], random)
    return _join(*messages)


def _join(first: bytes, second: bytes) -> bytes:
    return len(first).to_bytes(2, "big") + first + second


def seeds() -> list[bytes]:
    """Return pairs of requests: raw and typed contents, parameters, shared memory, large and small."""
    raw = ModelInferRequest(model_name="add_sub", model_version="1", id="request 7")
    raw.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 4])
    raw.inputs.add(name="INPUT1", datatype="INT8", shape=[4])
    raw.outputs.add(name="OUTPUT0").parameters["classification"].int64_param = 2
    raw.raw_input_contents.extend((bytes(16), bytes(4)))
    other = ModelInferRequest()
    other.CopyFrom(raw)
    other.id = "request 8 is longer"
    typed = ModelInferRequest(model_name="m")
    typed.inputs.add(name="A", datatype="INT32", shape=[3]).contents.int_contents.extend((1, -2, 3))
    typed.inputs.add(name="B", datatype="BYTES", shape=[1]).contents.bytes_contents.append(b"text")
    shared = ModelInferRequest(model_name="m")
    region = shared.inputs.add(name="A", datatype="FP64", shape=[2]).parameters
    region["shared_memory_region"].string_param = "r"
    region["shared_memory_byte_size"].int64_param = 16
    for name, value in (("sequence_id", 5), ("priority", 1), ("timeout", 9), ("custom", -1)):
        shared.parameters[name].int64_param = value
    shared.parameters["sequence_start"].bool_param = True
    shared.parameters["text"].string_param = "x"
    large = ModelInferRequest(model_name="m", id="l")
    large.inputs.add(name="A", datatype="UINT8", shape=[3000])
    large.raw_input_contents.append(bytes(3000))
    messages = [each.SerializeToString() for each in (raw, other, typed, shared, large)]
    return [_join(a, b) for a in messages for b in messages]


TARGET = Target("infer_grpc", check, seeds, restructure=restructure, max_bytes=8192)
