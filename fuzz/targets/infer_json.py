"""Inference requests as JSON: what a slow and plain reader makes of them, or an InferError where that refuses."""

import json
import math
import re
from collections.abc import Hashable, Mapping
from random import Random
from typing import Any

import numpy as np

from fuzz.mutation import mutate_bytes
from fuzz.target import Target
from naiad.core.datatype import DataType
from naiad.core.errors import InferError
from naiad.core.request import RequestHeader
from naiad.core.tensor import Buffer, decode_bytes_elements
from naiad.protocol.json.infer.infer import InferJsonDecoder

_SHORT_INFINITY = re.compile(r'("(?:[^"\\]|\\.)*")|\bInf\b')


Decoded = tuple[RequestHeader | None, str, list[bytes]]


class UnclearError(Exception):
    """A document that may be read in more than one way, as JSON leaves open."""


class RefusedError(Exception):
    """A document that must be refused."""


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise UnclearError
    return members


def read_json(text: bytes) -> Any:
    """Return the document. Raises RefusedError when it is none, UnclearError when members repeat."""
    try:
        decoded = _SHORT_INFINITY.sub(lambda match: match[1] or "Infinity", text.decode())
        tree = json.loads(decoded, object_pairs_hook=_members)
        json.dumps(tree, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise RefusedError from error
    return tree


def _elements(data: Any) -> list[Any]:
    if not isinstance(data, list):
        return [data]
    return [element for part in data for element in _elements(part)]


def _number(element: Any, datatype: DataType) -> Any:
    kind = datatype.numpy.kind
    if kind == "f":
        if type(element) not in (int, float):
            raise RefusedError
        try:
            wide = float(element)
        except OverflowError as error:
            raise RefusedError from error
        narrow = np.float64(wide).astype(datatype.numpy)
        if math.isfinite(wide) and not np.isfinite(narrow):
            raise RefusedError
        return narrow
    limits = np.iinfo(datatype.numpy)
    if type(element) is not int or not limits.min <= element <= limits.max:
        raise RefusedError
    return element


def _tensor(entry: Mapping[str, Any]) -> list[bytes] | bytes:
    """Return the bytes of an input's `data`; of BYTES the elements."""
    datatype = DataType(entry["datatype"])
    if not isinstance(entry["data"], list):
        raise RefusedError
    elements = _elements(entry["data"])
    if len(elements) != math.prod(entry["shape"]):
        raise RefusedError
    if datatype is DataType.BYTES:
        if not all(type(element) is str for element in elements):
            raise RefusedError
        return [element.encode() for element in elements]
    if datatype is DataType.BOOL:
        if not all(type(element) is bool for element in elements):
            raise RefusedError
        return bytes(elements)
    if datatype in (DataType.FP16, DataType.BF16):
        raise RefusedError
    with np.errstate(over="ignore"):
        return np.array([_number(element, datatype) for element in elements], datatype.numpy).tobytes()


def decoded(decoder: InferJsonDecoder, version: str, body: Buffer, length: int | None) -> Decoded:
    """Return header, request id and data of a request; of one that is refused no header and why."""
    try:
        header, request_id, tensors = decoder.decode("m", version, body, length)
    except InferError as error:
        return None, f"{error.code}{error.message}", []
    return header, request_id, [bytes(tensor) for tensor in tensors]


def check(data: bytes) -> Hashable:
    """Decode with both readers; twice, since the second time memory and memos of the first are used again."""
    decoder = InferJsonDecoder(cached_headers=4)
    first = decoded(decoder, "", data, None)
    if first[0] is not None:
        first[0].admission = first  # as the engine notes it; only admitted headers are remembered
    second = decoded(decoder, "", data, None)
    assert (first[0] is None) == (second[0] is None)
    assert first[1:] == second[1:]
    header, text, tensors = first
    try:
        tree = read_json(data)
    except UnclearError:
        return "unclear"
    except RefusedError:
        assert header is None, "accepted what is no JSON"
        return text[:40]
    if header is None:
        _check_refusal(tree, text)
        return re.sub(r"[^a-z ]", "", text)[:60]
    entries = tree["inputs"]
    assert [spec.name for spec in header.inputs] == [entry["name"] for entry in entries]
    assert text == tree.get("id", "")
    for spec, entry, tensor in zip(header.inputs, entries, tensors, strict=True):
        assert list(spec.shape) == entry["shape"]
        if "data" not in entry:
            assert tensor == b""
            continue
        expected = _tensor(entry)
        if isinstance(expected, list):
            assert decode_bytes_elements(tensor) == expected
        elif tensor != expected:  # NaN may have several bit patterns
            dtype = spec.datatype.numpy
            assert np.array_equal(np.frombuffer(tensor, dtype), np.frombuffer(expected, dtype), equal_nan=True)
    return tuple((spec.datatype, len(tensor) > 64) for spec, tensor in zip(header.inputs, tensors, strict=True))


def _check_refusal(tree: Any, message: str) -> None:
    """Fail when a request was refused that consists of nothing but good inputs."""
    if not isinstance(tree, dict) or set(tree) != {"inputs"} or not isinstance(tree["inputs"], list):
        return
    for entry in tree["inputs"]:
        if not isinstance(entry, dict) or set(entry) != {"name", "shape", "datatype", "data"}:
            return
        shape = entry["shape"]
        if not isinstance(entry["name"], str) or entry["datatype"] not in [each.value for each in DataType]:
            return
        if not isinstance(shape, list) or not all(type(dim) is int and 0 <= dim < 2**63 for dim in shape):
            return
        try:
            _tensor(entry)
        except RefusedError:
            return
    raise AssertionError(f"refused a good request: {message}")


def restructure(data: bytes, random: Random) -> bytes:
    """Change one value or number of the document."""
    spots = list(re.finditer(rb"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null|NaN|Infinity|\"[^\"]*\"", data))
    if not spots:
        return mutate_bytes(data, random, TOKENS)
    spot = random.choice(spots)
    return data[: spot.start()] + random.choice(TOKENS) + data[spot.end() :]


TOKENS = tuple(
    rb"0 -0 1 -1 255 256 -129 65536 2147483648 -2147483649 9007199254740993 9223372036854775807 9223372036854775808 "
    rb"18446744073709551615 18446744073709551616 1e400 -1e400 3.4028235677973366e38 3.5e38 1e-320 0.1 1.0 1e2 NaN "
    rb'Infinity -Infinity Inf -Inf true false null "" "a" "\u00e9" "\ud800" "\ud83d\ude00" "\\" [] [[]] [1,2] {} '
    rb'"FP32" "FP64" "INT8" "UINT8" "INT64" "UINT64" "BOOL" "BYTES" "FP16" "BF16" "id" "inputs" "outputs" "data" '
    rb'"parameters" "shape" "datatype" "name" : , [ ] { } '.split()
)


def seeds() -> list[bytes]:
    """Return a request of every datatype, a nested one, and one with everything."""
    found = []
    special: dict[str, list[object]] = {"BOOL": [True, False], "BYTES": ["a", "é\n"]}
    for datatype in DataType:
        values = special.get(datatype.value, [1, 2])
        entry = {"name": "A", "shape": [2], "datatype": datatype.value, "data": values}
        found.append(json.dumps({"inputs": [entry]}).encode())
    nested = {"name": "A", "shape": [2, 2], "datatype": "FP32", "data": [[0.5, -1e30], [3, 4.25]]}
    full = {
        "id": "7",
        "parameters": {"sequence_id": 1, "sequence_start": True, "priority": 2, "custom": "x"},
        "inputs": [nested, {"name": "B", "shape": [1], "datatype": "INT8", "parameters": {"binary_data_size": 1}}],
        "outputs": [{"name": "C", "parameters": {"binary_data": True, "classification": 2}}],
    }
    region = {"shared_memory_region": "r", "shared_memory_byte_size": 4}
    shared = {"inputs": [{"name": "A", "shape": [1], "datatype": "FP32", "parameters": region}]}
    found += [json.dumps({"inputs": [nested]}).encode(), json.dumps(full).encode(), json.dumps(shared).encode()]
    return [*found, b'{"inputs":[{"name":"A","shape":[3],"datatype":"FP64","data":[NaN,Inf,-Infinity]}]}']


TARGET = Target("infer_json", check, seeds, TOKENS, restructure)
