"""Texts that UTF-8 does not have, in responses and in calls of other models."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils

from naiad.worker.execution.codec import CallEncoder, ResponseEncoder, set_model_name


def texts(name, *elements):
    array = np.empty(len(elements), object)
    array[:] = elements
    return pb_utils.Tensor(name, array)


def response(*elements, **fields):
    return pb_utils.InferenceResponse([pb_utils.Tensor("N", np.zeros(2, np.int8)), texts("T", *elements)], **fields)


@pytest.fixture(autouse=True)
def named():
    set_model_name("m")
    yield
    set_model_name("")


def test_only_the_response_with_such_a_text_fails():
    requests = [SimpleNamespace(_plan=SimpleNamespace(output_names={"N", "T"}))] * 3
    bad = response("a", "b\ud800", parameters={"lost": 1})
    encoded = ResponseEncoder().encode(requests, [response("a"), bad, response("c", parameters={"kept": 1})])
    ((index, _, message),) = encoded.errors
    assert index == 1
    assert message.startswith(
        "output 'T' of model 'm' has half of a surrogate pair (U+D800, at character 1 of element 1)"
    )
    assert encoded.parameters == [(2, {"kept": 1})]
    payload = b"".join(bytes(part) for part in encoded.parts)
    assert len(payload) == encoded.payload_bytes
    assert [letter in payload for letter in (b"a", b"b", b"c")] == [True, False, True]
    assert json.dumps(encoded.errors)


def test_call_names_input_and_model():
    request = pb_utils.InferenceRequest(
        model_name="other", requested_output_names=["OUT"], inputs=[texts("IN", "\udfff\ud8ff")]
    )
    with pytest.raises(pb_utils.TritonModelException, match=r"input 'IN' of the call of model 'other' has .*U\+DFFF"):
        CallEncoder().encode(request)


def test_long_error_of_a_model_loses_its_middle():
    error = pb_utils.TritonError("begin " + "7, " * 1_000_000 + "end", pb_utils.TritonError.NOT_FOUND)
    encoded = ResponseEncoder().encode(
        [SimpleNamespace(_plan=SimpleNamespace(output_names={"N"}))], [pb_utils.InferenceResponse(error=error)]
    )
    ((_, code, message),) = encoded.errors
    assert code == int(pb_utils.TritonError.NOT_FOUND)
    assert len(message) < 70_000
    assert message.startswith("begin 7, ")
    assert message.endswith("7, end")
    assert "characters are left out" in message
    assert len(error.message()) > 3_000_000
