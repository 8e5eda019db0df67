"""Tensor data as base64 in JSON, for clients that have no binary bodies: naiad's own, Triton has none."""

import binascii
from typing import Any

import simdjson

from naiad.core.datatype import DataType
from naiad.core.errors import excerpt, invalid_argument
from naiad.core.tensor import Buffer, TensorSpec, encode_bytes_elements


def decode_base64(spec: TensorSpec, data: Any) -> Buffer:
    """Return the raw bytes of an input's `data`.

    Numbers of every datatype, FP16 and BF16 too, are one string: their bytes, little-endian, in row-major order.
    BYTES are an array of strings, an element each. Raises InferError(INVALID_ARG) for anything else.
    """
    if spec.datatype is DataType.BYTES:
        return encode_bytes_elements(_decode_elements(spec, data))
    if not isinstance(data, str):
        raise invalid_argument(
            f"base64 'data' of {spec.datatype.value} input '{excerpt(spec.name)}' must be one string, of all its "
            "bytes"
        )
    decoded = _decode(spec, data)
    expected_bytes = spec.element_count * spec.datatype.item_bytes
    if len(decoded) != expected_bytes:
        raise invalid_argument(
            f"base64 'data' of input '{excerpt(spec.name)}' holds {len(decoded)} bytes; its shape and datatype need "
            f"{expected_bytes}"
        )
    return decoded


def _decode_elements(spec: TensorSpec, data: Any) -> list[bytes]:
    elements: Any = data.as_list() if isinstance(data, simdjson.Array) else data
    if not isinstance(elements, list) or not all(isinstance(element, str) for element in elements):
        raise invalid_argument(
            f"base64 'data' of BYTES input '{excerpt(spec.name)}' must be an array of strings, one an element"
        )
    if len(elements) != spec.element_count:
        raise invalid_argument(
            f"base64 'data' of input '{excerpt(spec.name)}' has {len(elements)} elements; its shape has "
            f"{spec.element_count}"
        )
    return [_decode(spec, element) for element in elements]


def _decode(spec: TensorSpec, text: str) -> bytes:
    try:
        return binascii.a2b_base64(text, strict_mode=True) if text else b""
    except (binascii.Error, ValueError) as error:
        raise invalid_argument(f"'data' of input '{excerpt(spec.name)}' is not base64: {error}") from None
