"""Outputs as results of tools: small ones whole, large ones by their shape, labels as classes."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from naiad.core.datatype import DataType
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.tensor import TensorSpec, encode_bytes_elements
from naiad.protocol.mcp.tool_result import (
    MAX_SHOWN_BYTES,
    MAX_SHOWN_ELEMENTS,
    encode_outputs,
    outputs_as_json,
    outputs_result,
    responses_result,
    text_of,
)


def shown(array: Any, datatype: DataType = DataType.FP32, labels: Mapping[str, Sequence[str]] | None = None) -> Any:
    spec = TensorSpec("OUT", datatype, array.shape)
    if datatype is DataType.BYTES:
        data = encode_bytes_elements(array.reshape(-1).tolist())
    else:
        data = array.astype(datatype.numpy).tobytes()
    outputs = outputs_as_json(InferResponse(ResponseHeader("m", "1", [spec]), [data]), labels or {})
    return json.loads(encode_outputs(outputs))["OUT"]


def test_small_tensors_are_shown_whole() -> None:
    assert shown(np.array([[0.1, 2]])) == [[0.1, 2]]
    assert shown(np.array([[7]]), DataType.INT64) == 7
    assert shown(np.array([True, False]), DataType.BOOL) == [True, False]
    assert shown(np.array([1.5, np.nan])) == [1.5, None]
    assert shown(np.array([[b"a", "é".encode()]], dtype=object), DataType.BYTES) == [["a", "é"]]
    assert shown(np.empty((2, 0))) == [[], []]


@pytest.mark.parametrize("datatype", [DataType.FP16, DataType.BF16, DataType.UINT64, DataType.INT8, DataType.FP64])
def test_every_datatype_of_numbers_is_shown(datatype: DataType) -> None:
    assert shown(np.array([1, 2, 3]), datatype) == [1, 2, 3]


def test_large_tensors_are_shown_by_shape_and_beginning() -> None:
    count = MAX_SHOWN_ELEMENTS + 1
    assert len(shown(np.zeros(count - 1))) == count - 1
    found = shown(np.arange(count).reshape(1, count))
    assert found == {"shape": [1, count], "datatype": "FP32", "first_elements": list(range(16))}


def test_long_texts_are_cut() -> None:
    long = b"a" * MAX_SHOWN_BYTES
    assert shown(np.array([long], dtype=object), DataType.BYTES)["first_elements"] == ["a" * 1024]
    found = shown(np.array([b"\xff\x00", b"a"], dtype=object), DataType.BYTES)
    assert found["omitted"] == "the elements are no texts; bytes of the first: [2, 1]"


def test_output_with_labels_is_its_best_classes() -> None:
    labels = {"OUT": ["cat", "dog"]}
    found = shown(np.array([[0.25, 0.75, 0.5]]), labels=labels)
    assert [(each["label"], each["index"], each["score"]) for each in found] == [
        ("dog", 1, 0.75),
        ("2", 2, 0.5),
        ("cat", 0, 0.25),
    ]
    assert len(shown(np.zeros((3, 8)), labels=labels)) == 3


def test_texts_of_several_responses_are_joined() -> None:
    result = responses_result([b'{"OUT":"a "}', b'{"OUT":"b"}'], ["a ", "b"])
    assert result["content"] == [{"type": "text", "text": "a b"}]
    assert responses_result([b'{"OUT":1}'], [None])["content"][0]["text"] == '{"responses":[{"OUT":1}]}'


def test_only_one_text_is_shown_as_text() -> None:
    assert text_of({"OUT": "a"}) == "a"
    assert text_of({"OUT": 1}) is None
    assert text_of({"A": "a", "B": "b"}) is None
    assert outputs_result(b'{"OUT":1}', None)["content"] == [{"type": "text", "text": '{"OUT":1}'}]
