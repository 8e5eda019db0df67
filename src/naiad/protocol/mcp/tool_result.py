"""Results of tools: outputs as JSON values, bounded in size, and as text for language models."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from naiad.core.datatype import DataType
from naiad.core.response import InferResponse
from naiad.core.tensor import Array, Buffer, TensorSpec, decode_bytes_elements, to_array

Json = dict[str, Any]

MAX_SHOWN_ELEMENTS = 2048
"""A tensor with more elements is shown by its shape and its first elements."""
MAX_SHOWN_BYTES = 256 * 1024
"""The same for the bytes of texts."""
SHOWN_FIRST = 16
_SHOWN_CHARACTERS = 1024
_LENGTH_BYTES = 4
CLASS_COUNT = 5
MAX_CLASSIFIED_ELEMENTS = 1 << 16
"""Limit of the scores among which the best classes are searched, on the event loop."""
MAX_RESULT_BYTES = 4 << 20
"""Limit of all responses of a call together."""


def outputs_as_json(response: InferResponse, labels: Mapping[str, Sequence[str]]) -> Json:
    """Return the outputs of a response by name, all of them plain JSON values or arrays of numbers."""
    return {
        spec.name: _output(spec, data, labels.get(spec.name, ()))
        for spec, data in zip(response.header.outputs, response.data, strict=True)
    }


def _output(spec: TensorSpec, data: Buffer, labels: Sequence[str]) -> Any:
    if spec.datatype is DataType.BYTES:
        return _texts(spec, data)
    if spec.element_count > (MAX_CLASSIFIED_ELEMENTS if labels else MAX_SHOWN_ELEMENTS):
        first = TensorSpec(spec.name, spec.datatype, (SHOWN_FIRST,))
        return _summary(spec, _numbers(to_array(first, memoryview(data)[: first.byte_size])))
    array = _numbers(to_array(spec, data))
    if labels and spec.element_count:
        return _classes(array, labels)
    return array if array.size != 1 else array.reshape(-1)[0]


def _numbers(array: Array) -> Array:
    """Return numbers of a kind that JSON can hold; float32 keeps its short decimals."""
    return np.ascontiguousarray(array) if array.dtype.kind in "biuf" else array.astype(np.float32)


def _summary(spec: TensorSpec, first: Any) -> Json:
    return {"shape": list(spec.shape), "datatype": spec.datatype.value, "first_elements": first}


def _classes(array: Array, labels: Sequence[str]) -> Any:
    """Return the best classes of each row, the only row's without a list around it."""
    rows = array.reshape(-1, array.shape[-1]) if array.ndim else array.reshape(1, 1)
    shown = rows[: MAX_SHOWN_ELEMENTS // CLASS_COUNT]
    found = [
        [
            {"label": labels[index] if index < len(labels) else str(index), "index": index, "score": row[index]}
            for index in np.argsort(-row.astype(np.float64), kind="stable")[:CLASS_COUNT].tolist()
        ]
        for row in shown
    ]
    return found[0] if len(rows) == 1 else found


def _texts(spec: TensorSpec, data: Buffer) -> Any:
    if spec.element_count > MAX_SHOWN_ELEMENTS or len(data) > MAX_SHOWN_BYTES:
        first = [text.decode("utf-8", "replace")[:_SHOWN_CHARACTERS] for text in _first_elements(data)]
        return _summary(spec, first)
    elements = decode_bytes_elements(data)
    try:
        texts = [element.decode() for element in elements]
    except UnicodeDecodeError:
        sizes = [len(element) for element in elements[:SHOWN_FIRST]]
        return {**_summary(spec, []), "omitted": f"the elements are no texts; bytes of the first: {sizes}"}
    return texts[0] if len(texts) == 1 else _nested(texts, spec.shape)


def _first_elements(data: Buffer) -> Sequence[bytes]:
    """Return the beginnings of the first texts of a long output, without a copy of all."""
    view, position = memoryview(data), 0
    found: list[bytes] = []
    while position < len(view) and len(found) < SHOWN_FIRST:
        begin = position + _LENGTH_BYTES
        position = begin + int.from_bytes(view[position:begin], "little")
        found.append(bytes(view[begin : min(position, begin + 4 * _SHOWN_CHARACTERS)]))
    return found


def _nested(elements: Sequence[Any], shape: Sequence[int]) -> Any:
    nested = list(elements)
    for size in reversed(shape[1:]):
        nested = [nested[start : start + size] for start in range(0, len(nested), size)] if size else []
    return nested


def encode_outputs(outputs: Json) -> bytes:
    """Return the JSON text of outputs; numbers that are not finite are null."""
    return orjson.dumps(outputs, option=orjson.OPT_SERIALIZE_NUMPY)


def text_of(outputs: Json) -> str | None:
    """Return the text of outputs that are one text; None for others."""
    values = list(outputs.values())
    return values[0] if len(values) == 1 and isinstance(values[0], str) else None


def outputs_result(encoded: bytes, text: str | None) -> Json:
    """Return the result for the encoded outputs of the only response."""
    return _result(orjson.Fragment(encoded), encoded.decode() if text is None else text)


def responses_result(encoded: Sequence[bytes], texts: Sequence[str | None]) -> Json:
    """Return the result for the encoded outputs of several responses; texts of language models are joined."""
    body = b'{"responses":[%s]}' % b",".join(encoded)
    joined = "".join(text for text in texts if text is not None) if None not in texts and texts else body.decode()
    return _result(orjson.Fragment(body), joined)


def tool_result(structured: Json, text: str | None = None) -> Json:
    """Return the result for a JSON value, and for its text if that is another one."""
    encoded = orjson.dumps(structured)
    return outputs_result(encoded, text)


def tool_error(message: str) -> Json:
    """Return the result of a call that has failed: the model that called the tool reads it."""
    return {"content": [{"type": "text", "text": message}], "isError": True}


def _result(structured: orjson.Fragment, text: str) -> Json:
    return {"content": [{"type": "text", "text": text}], "structuredContent": structured, "isError": False}
