"""Typed tensor contents (`InferTensorContents`) to raw little-endian bytes, in slices.

The message was cut out of its request and is still encoded. Strings and floats are copied from its bytes. Integers
and booleans are varints; the protobuf library parses them, one piece of the message at a time.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from naiad.core.datatype import DataType
from naiad.core.errors import InferError, excerpt, invalid_argument, wrong_request
from naiad.core.slices import Slices
from naiad.core.tensor import Array, Buffer, TensorSpec
from naiad.protocol.grpc.walk import encode_varint, fields
from naiad.protocol.service_pb2 import InferTensorContents

_FIELDS: tuple[tuple[str, DataType, tuple[DataType, ...]], ...] = (
    ("bool_contents", DataType.BOOL, ()),
    ("int_contents", DataType.INT32, (DataType.INT8, DataType.INT16)),
    ("int64_contents", DataType.INT64, ()),
    ("uint_contents", DataType.UINT32, (DataType.UINT8, DataType.UINT16)),
    ("uint64_contents", DataType.UINT64, ()),
    ("fp32_contents", DataType.FP32, ()),
    ("fp64_contents", DataType.FP64, ()),
    ("bytes_contents", DataType.BYTES, ()),
)
"""The contents fields by number, each with its own datatype and the narrower datatypes that use it too."""
_STRING = 0x42
"""Key of an element of bytes_contents."""
_PACKED = 2
_FLOATS = (0x32, 0x3A)
"""Keys of packed fp32_contents and fp64_contents."""
_PIECE_BYTES = 32 * 1024
"""Bytes of a message that are parsed at once."""
_SLICE_FIELDS = 4096
_COPIED_BYTES = 1 << 20
"""Bytes that are copied at once: new memory costs 0.3 ns a byte."""


def contents_to_raw(parts: Sequence[Buffer], spec: TensorSpec, model_name: str) -> Slices[Buffer]:
    """Return an encoded `InferTensorContents` message, received in `parts`, as the raw data of an input.

    Empty contents give no bytes. Raises InferError(INVALID_ARG) when a field does not belong to the datatype, more
    than one field is set, an integer does not fit into a narrower datatype, or the message is malformed.
    """
    conversion = _Conversion(spec, model_name)
    try:
        for part in parts:
            yield from conversion.take(memoryview(part))
    except (ValueError, IndexError, DecodeError):
        raise wrong_request("Unable to parse request: not a valid ModelInferRequest message") from None
    return memoryview(conversion.raw) if conversion.raw else b""


class _Conversion:
    """Accumulates the raw data of one input."""

    def __init__(self, spec: TensorSpec, model_name: str) -> None:
        self._spec = spec
        self._model_name = model_name
        self._number = 0
        """Number of the field that is set; 0 until one is found."""
        self.raw = bytearray()
        self._pending: list[Buffer] = []
        """Unpacked numbers that are parsed together."""

    def take(self, part: memoryview) -> Slices[None]:
        """Add a part of the message."""
        for count, (key, begin, start, stop) in enumerate(fields(part, 0, len(part))):
            if key == _STRING:
                self._choose(8)
                self.raw += (stop - start).to_bytes(4, "little")
                if stop - start > _COPIED_BYTES:
                    yield from self._copy(part[start:stop])
                else:
                    self.raw += part[start:stop]
            elif key & 7 == _PACKED and 1 <= key >> 3 <= 7:
                yield from self._take_packed(key, part[start:stop])
            else:
                self._pending.append(part[begin:stop])
            if count % _SLICE_FIELDS == _SLICE_FIELDS - 1:
                self._parse_pending()
                yield
            if self._spec.byte_size and len(self.raw) > self._spec.byte_size:
                return  # The engine rejects it: more data than the shape needs.
        self._parse_pending()

    def _take_packed(self, key: int, values: memoryview) -> Slices[None]:
        if not values:
            return
        if key in _FLOATS:
            if len(values) % (4 if key == _FLOATS[0] else 8):
                raise ValueError("packed floats are cut short")
            self._choose(key >> 3)
            yield from self._copy(values)
            return
        at = 0
        while at < len(values):
            stop = min(at + _PIECE_BYTES, len(values))
            while stop < len(values) and values[stop - 1] >= 0x80:
                stop -= 1
                if stop == at:
                    raise ValueError("varint is too long")
            self._parse(bytes((key,)) + encode_varint(stop - at) + bytes(values[at:stop]))
            at = stop
            yield

    def _copy(self, content: memoryview) -> Slices[None]:
        for start in range(0, len(content), _COPIED_BYTES):
            self.raw += content[start : start + _COPIED_BYTES]
            yield

    def _parse_pending(self) -> None:
        if self._pending:
            self._parse(b"".join(self._pending))
            self._pending.clear()

    def _parse(self, message: bytes) -> None:
        parsed: Any = InferTensorContents.FromString(message)
        for number, (name, own, _) in enumerate(_FIELDS, 1):
            values = getattr(parsed, name)
            if values:
                self._choose(number)
                wide = np.fromiter(values, own.numpy, len(values))
                self.raw += (wide if own is self._spec.datatype else self._narrowed(wide)).tobytes()

    def _narrowed(self, wide: Array) -> Array:
        """Return integers in their datatype. Raises InferError for one out of range. Triton: takes the low bytes."""
        datatype = self._spec.datatype
        narrow = wide.astype(datatype.numpy)
        wrong = narrow != wide
        if wrong.any():
            limits = np.iinfo(datatype.numpy)
            raise invalid_argument(
                f"an integer is out of range for {datatype.value} in the contents of input tensor "
                f"'{excerpt(self._spec.name)}' for model '{excerpt(self._model_name)}'; got {wide[wrong][0]}, "
                f"expected a value from {limits.min} to {limits.max}: change the value or the datatype"
            )
        return narrow

    def _choose(self, number: int) -> None:
        """Note which field is set. Raises InferError when the datatype does not allow it."""
        if number == self._number:
            return
        if self._number:
            raise self._unexpected(", binary data was already supplied.")
        _, own, narrow = _FIELDS[number - 1]
        datatype = self._spec.datatype
        if datatype is not own and datatype not in narrow:
            raise self._unexpected(f" of type '{own.value}', expected datatype '{datatype.value}'")
        self._number = number

    def _unexpected(self, ending: str) -> InferError:
        return invalid_argument(
            f"unexpected explicit tensor data for input tensor '{excerpt(self._spec.name)}' for model "
            f"'{excerpt(self._model_name)}'{ending}"
        )
