"""Inference requests with a binary tail: each input gets its own part of the tail, whole and in order.

The first two bytes of an input are the length of the JSON header.
"""

import json
import re
from collections.abc import Hashable
from random import Random
from typing import Any

from fuzz.mutation import mutate_bytes
from fuzz.target import Target
from fuzz.targets.infer_json import TOKENS, UnclearError, decoded, read_json
from fuzz.targets.infer_json import restructure as restructure_json
from naiad.core.datatype import DataType
from naiad.core.errors import InferError
from naiad.core.model import ModelMetadata
from naiad.core.tensor import TensorSpec
from naiad.protocol.json.infer.binary import decode_raw
from naiad.protocol.json.infer.infer import InferJsonDecoder

_RAW_MODELS = [
    ModelMetadata(name="m", versions=["1"], platform="", inputs=[TensorSpec("A", datatype, shape)], outputs=[])
    for datatype in (DataType.FP32, DataType.BYTES, DataType.INT8)
    for shape in ((-1, 4), (-1, -1), (-1, -1, -1), (-1, 0))
]


def check(data: bytes) -> Hashable:
    """Decode as a request with a tail, twice with the same decoder, and as raw bodies of several models."""
    length, body = int.from_bytes(data[:2], "big"), data[2:]
    decoder = InferJsonDecoder(cached_headers=4)
    outcomes = [decoded(decoder, "1", form, length) for form in (body, memoryview(body), bytearray(body))]
    first = outcomes[0]
    for other in outcomes[1:]:
        assert (first[0] is None) == (other[0] is None)
        assert first[1:] == other[1:], (first, other)
    _check_raw(body)
    header, text, tensors = first
    if header is None:
        return re.sub(r"[^a-z ]", "", text)[:60]
    assert len(tensors) == len(header.inputs)
    try:
        tree = read_json(body[:length])
    except UnclearError:
        return "unclear"
    _check_parts(tree, body[length:], tensors)
    return len(tensors), bool(text), sum(map(bool, tensors))


def _check_parts(tree: Any, tail: bytes, tensors: list[bytes]) -> None:
    """Compare the inputs' data with the parts of the tail that the JSON gives them."""
    position = 0
    for entry, tensor in zip(tree["inputs"], tensors, strict=True):
        parameters = entry.get("parameters") or {}
        if "data" not in entry and "binary_data_size" in parameters:
            size = parameters["binary_data_size"]
            assert tensor == tail[position : position + size]
            assert len(tensor) == size
            position += size
    assert position == len(tail)


def _check_raw(body: bytes) -> None:
    for metadata in _RAW_MODELS:
        for batching in (False, True):
            try:
                header, _, data = decode_raw("m", "1", body, metadata, batching=batching)
            except InferError:
                continue
            assert len(data) == len(header.inputs) == 1
            assert all(dim >= 0 for dim in header.inputs[0].shape)


def restructure(data: bytes, random: Random) -> bytes:
    """Change the header or the tail, with the length of the header mended."""
    length = int.from_bytes(data[:2], "big")
    text, tail = data[2 : 2 + length], data[2 + length :]
    if random.random() < 0.6:
        text = restructure_json(text, random)
    else:
        tail = mutate_bytes(tail, random)
    return _join(text, tail)


def _join(text: bytes, tail: bytes) -> bytes:
    return min(len(text), 0xFFFF).to_bytes(2, "big") + text + tail


def seeds() -> list[bytes]:
    """Return requests with tails, one with inline data as well."""

    def entry(name: str, size: int | None) -> dict[str, object]:
        made: dict[str, object] = {"name": name, "shape": [size or 1], "datatype": "UINT8"}
        return {**made, "data": [7]} if size is None else {**made, "parameters": {"binary_data_size": size}}

    found = []
    for sizes in ((3,), (1, 2), (0,), (None, 4), (300, None, 2)):
        tree = {"id": "x", "inputs": [entry(f"I{i}", size) for i, size in enumerate(sizes)]}
        tail = bytes(range(256)) * 2
        for separators in ((",", ":"), (", ", ": ")):
            found.append(_join(json.dumps(tree, separators=separators).encode(), tail[: sum(s or 0 for s in sizes)]))
    return found


TARGET = Target("infer_binary", check, seeds, TOKENS, restructure)
