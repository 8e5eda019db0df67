"""Inference responses as HTTP bodies: a JSON header, data in it or in a binary tail after it.

Streamed responses are framed as lines of JSON or as server-sent events.
"""

import copy
import dataclasses
import struct
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import orjson

from naiad.core.datatype import DataType
from naiad.core.errors import internal
from naiad.core.request import RequestHeader
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.slices import Slices
from naiad.core.tensor import Buffer, TensorSpec
from naiad.protocol.json.tensor import encode_data, encode_long_data, number_struct


def as_line(text: Sequence[Buffer]) -> Sequence[Buffer]:
    """Return a JSON text as a line (application/x-ndjson)."""
    return (b"%s\n" % text[0],) if len(text) == 1 else (*text, b"\n")


def as_event(text: Sequence[Buffer]) -> Sequence[Buffer]:
    """Return a JSON text as the data of a server-sent event (text/event-stream)."""
    return (b"data: %s\n\n" % text[0],) if len(text) == 1 else (b"data: ", *text, b"\n\n")


Encoded: TypeAlias = tuple[Sequence[Buffer], int | None]

_dumps = orjson.dumps
_LAST = "infer_json.last"
LONG_BYTES = 64 * 1024
"""Outputs up to this size are written as JSON at once: a few milliseconds at most."""
_MEMO_LIMIT = 64
"""Distinct selections of outputs that are cached per response header."""


class _Plan:
    """Template of the responses with one header to requests with one selection of outputs."""

    __slots__ = ("binary", "frame", "head", "json", "prefixes", "request_header", "sizes", "unpacks", "without_data")

    def __init__(self, request_header: RequestHeader, header: ResponseHeader) -> None:
        self.request_header = request_header
        chosen = {output.name: output for output in request_header.outputs}
        # Triton: the request-wide flag applies only to outputs that are not listed.
        default = request_header.binary_output_default
        self.binary = [chosen[spec.name].binary if spec.name in chosen else default for spec in header.outputs]
        self.without_data = [
            spec.name in chosen and chosen[spec.name].shared_memory is not None for spec in header.outputs
        ]
        self.head = b'"model_name":%s,"model_version":%s' % (
            orjson.dumps(header.model_name),
            orjson.dumps(header.model_version),
        )
        self.prefixes = [tensor_prefix(spec) for spec in header.outputs]
        """Beginning of the JSON of each output."""
        self.sizes: tuple[int, ...] = ()
        self.json = b""
        """Whole JSON of a response without id and parameters if sizes are fixed; else empty."""
        is_fixed = all(self.binary) and not any(self.without_data)
        if is_fixed and all(spec.datatype is not DataType.BYTES for spec in header.outputs):
            self.sizes = tuple(spec.byte_size for spec in header.outputs)
            if any(self.sizes):
                outputs = list(map(binary_tensor, self.prefixes, self.sizes))
                self.json = b'{%s,"outputs":[%s]}' % (self.head, b",".join(outputs))
        self.unpacks: list[Callable[[Buffer], tuple[Any, ...]]] = []
        """Read the numbers of each output; empty unless all outputs are a few numbers written as JSON."""
        self.frame = b""
        """The JSON of a response without id and parameters, with one place for the numbers of each output."""
        layouts = [number_struct(spec) for spec in header.outputs]
        if not any(self.binary) and not any(self.without_data) and None not in layouts:
            self._prepare_numbers([layout for layout in layouts if layout is not None])

    def _prepare_numbers(self, layouts: Sequence[struct.Struct]) -> None:
        self.unpacks = [layout.unpack for layout in layouts]
        head, *prefixes = [text.replace(b"%", b"%%") for text in (self.head, *self.prefixes)]
        outputs = b",".join([prefix + b',"data":%b}' for prefix in prefixes])
        self.frame = b'{%s,"outputs":[%s]}' % (head, outputs)

    def numbers(self, data: Sequence[Buffer]) -> bytes | None:
        """Return the JSON of a response without id and parameters; None if `encode_data` must write its outputs."""
        # hot: bench/micro_http1.py
        unpacks = self.unpacks
        if len(unpacks) != len(data):
            return None
        try:
            texts = [_dumps(unpack(each)) for unpack, each in zip(unpacks, data)]  # noqa: B905 - compared above
        except struct.error:  # another size than that of the shape
            return None
        if not self.request_header.nan_is_null:
            for text in texts:
                if b"n" in text:  # null, which orjson writes for a number that is not finite
                    return None
        return self.frame % tuple(texts)

    def opening(self, request_id: str, response: InferResponse) -> bytes:
        """Return the JSON of a response up to its outputs. Raises InferError for parameters that it cannot carry."""
        identity = b'"id":%s,' % orjson.dumps(request_id) if request_id else b""
        parameters = b'"parameters":%s,' % _encode_parameters(response) if response.parameters else b""
        return b'{%s%s,%s"outputs":[' % (identity, self.head, parameters)


def _encode_parameters(response: InferResponse) -> bytes:
    try:
        return orjson.dumps(dict(response.parameters))
    except TypeError as error:
        # A model may set any integer, and text with half of a surrogate pair.
        raise internal(f"the response parameters cannot be sent as JSON: {error}") from None


def without_binary_outputs(header: RequestHeader) -> RequestHeader:
    """Return a copy of the shared `header` that requests JSON for outputs in the binary tail."""
    if not header.binary_output_default and not any(output.binary for output in header.outputs):
        return header
    plain = copy.copy(header)
    plain.binary_output_default = False
    plain.outputs = tuple([dataclasses.replace(output, binary=False) for output in header.outputs])
    plain.admission = None
    plain.origin = header.origin or header
    return plain


def with_binary_outputs(header: RequestHeader) -> RequestHeader:
    """Return a copy of the shared `header` that requests the binary tail for all outputs that allow it."""
    if header.binary_output_default:
        return header
    binary = copy.copy(header)
    binary.binary_output_default = True
    binary.outputs = tuple(
        [dataclasses.replace(output, binary=output.shared_memory is None) for output in header.outputs]
    )
    binary.admission = None
    binary.origin = header.origin or header
    return binary


def encode(request_id: str, request_header: RequestHeader, response: InferResponse) -> Encoded:
    """Return the parts of a response's body and the length of its JSON; None if the body is all JSON.

    Raises InferError when an output or a parameter cannot be written as JSON.
    """
    # hot: bench/micro_http1.py
    header = response.header
    memo = header.memo
    plan = memo.get(_LAST)
    if type(plan) is not _Plan or plan.request_header is not request_header:
        plan = _plan(request_header, header)
    data = response.data
    if plan.json and not response.parameters and tuple(map(len, data)) == plan.sizes:
        text = plan.json
        if request_id:
            text = b'{"id":' + orjson.dumps(request_id) + b"," + text[1:]
        return (text, *data), len(text)
    if plan.unpacks and not response.parameters:
        written = plan.numbers(data)
        if written is not None:
            if request_id:
                written = b'{"id":' + _dumps(request_id) + b"," + written[1:]
            return (written,), None
    return _encode(request_id, plan, response)


def is_long(response: InferResponse) -> bool:
    """Return whether a response has so much data that it should be encoded in slices."""
    # hot: bench/micro_http1.py
    data = response.data
    return bool(data) and max(map(len, data)) > LONG_BYTES


def encode_in_slices(request_id: str, request_header: RequestHeader, response: InferResponse) -> Slices[Encoded]:
    """Return the same as `encode`; yields about every millisecond; JSON may be in several parts."""
    header = response.header
    plan = _plan(request_header, header)
    text: list[bytes] = [plan.opening(request_id, response)]
    tail: list[Buffer] = []
    for i, (spec, data) in enumerate(zip(header.outputs, response.data, strict=True)):
        prefix = plan.prefixes[i]
        text.append(b"," if i else b"")
        if plan.without_data[i]:
            text.append(prefix + b"}")
        elif plan.binary[i]:
            text.append(binary_tensor(prefix, len(data)))
            if len(data):
                tail.append(data)
        else:
            text.append(prefix + b',"data":')
            if len(data) > LONG_BYTES:
                text += yield from encode_long_data(spec, data, nan_is_null=request_header.nan_is_null)
            else:
                text.append(encode_data(spec, data, nan_is_null=request_header.nan_is_null))
            text.append(b"}")
    text.append(b"]}")
    return ((*text, *tail), sum(map(len, text))) if tail else (text, None)


def _plan(request_header: RequestHeader, header: ResponseHeader) -> _Plan:
    choice = (_LAST, request_header.binary_output_default, request_header.outputs)
    plan = header.memo.get(choice)
    if not isinstance(plan, _Plan):
        plan = _Plan(request_header, header)
        if len(header.memo) < _MEMO_LIMIT:
            header.memo[choice] = plan
    plan.request_header = request_header
    header.memo[_LAST] = plan
    return plan


def _encode(request_id: str, plan: _Plan, response: InferResponse) -> Encoded:
    header = response.header
    outputs: list[bytes] = []
    tail: list[Buffer] = []
    for i, (spec, data) in enumerate(zip(header.outputs, response.data, strict=True)):
        prefix = plan.prefixes[i]
        if plan.without_data[i]:
            outputs.append(prefix + b"}")
        elif plan.binary[i]:
            outputs.append(binary_tensor(prefix, len(data)))
            if len(data):
                tail.append(data)
        else:
            values = encode_data(spec, data, nan_is_null=plan.request_header.nan_is_null)
            outputs.append(b'%s,"data":%s}' % (prefix, values))
    text = b"%s%s]}" % (plan.opening(request_id, response), b",".join(outputs))
    # Triton: without a non-empty binary output the body is plain JSON, regardless of the request.
    return ((text, *tail), len(text)) if tail else ((text,), None)


def tensor_prefix(spec: TensorSpec) -> bytes:
    """Return the beginning of the JSON of a tensor: an object with name, datatype and shape, not closed."""
    shape = orjson.dumps(list(spec.shape))
    return b'{"name":%s,"datatype":"%s","shape":%s' % (orjson.dumps(spec.name), spec.datatype.value.encode(), shape)


def binary_tensor(prefix: bytes, size: int) -> bytes:
    """Return the JSON of a tensor whose `size` bytes of data are in the binary tail."""
    return b'%s,"parameters":{"binary_data_size":%d}}' % (prefix, size)
