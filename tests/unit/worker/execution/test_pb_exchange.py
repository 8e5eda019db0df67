"""Requests, responses, senders and errors as model code uses them."""

import json

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils

from naiad.worker.api import response as responses
from naiad.worker.api.failure import describe, format_traceback
from naiad.worker.api.response import SingleResponse
from naiad.worker.execution.execution import ExecutionFault, answered, awaited, checked

TENSOR = pb_utils.Tensor("x", np.zeros(2, np.float32))


def response() -> pb_utils.InferenceResponse:
    return pb_utils.InferenceResponse([TENSOR])


def request(**fields) -> pb_utils.InferenceRequest:
    return pb_utils.InferenceRequest(inputs=[TENSOR], requested_output_names=["OUT"], model_name="m", **fields)


def test_request_returns_its_constructor_arguments():
    made = request(request_id="i", correlation_id="seq", flags=3, timeout=7, parameters={"k": "v", "n": 1})
    assert made.request_id() == "i"
    assert made.correlation_id() == "seq"
    assert made.flags() == 3
    made.set_flags(pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END)
    assert made.flags() == 2
    assert made.timeout() == 7
    assert json.loads(made.parameters()) == {"k": "v", "n": 1}
    assert made.requested_output_names() == {"OUT"}
    assert pb_utils.get_input_tensor_by_name(made, "x") is TENSOR
    assert pb_utils.get_input_tensor_by_name(made, "y") is None
    assert not made.is_cancelled()
    assert made.trace().get_context() is None


def test_request_defaults():
    made = request()
    assert (made.request_id(), made.correlation_id(), made.flags(), made.timeout()) == ("", 0, 0, 0)
    assert made.parameters() == "{}"


def test_request_misuse():
    with pytest.raises(pb_utils.TritonModelException, match="Input tensor for request with id 'i'"):
        pb_utils.InferenceRequest(request_id="i", inputs=[None], requested_output_names=[], model_name="m")
    with pytest.raises(pb_utils.TritonModelException, match="Expect parameters keys to have type str"):
        request(parameters={1: 2})
    with pytest.raises(pb_utils.TritonModelException, match="Expect parameters values to have type"):
        request(parameters={"a": []})
    with pytest.raises(pb_utils.TritonModelException, match="no server executes this model, so it cannot call model"):
        request().exec()
    with pytest.raises(pb_utils.TritonModelException, match="not configured to handle such a flag"):
        request().set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
    request().set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL)


def test_response_with_outputs():
    made = pb_utils.InferenceResponse([TENSOR], parameters={"a": True, "b": 1.5})
    assert made.output_tensors() == [TENSOR]
    assert not made.has_error()
    assert made.error() is None
    assert json.loads(made.parameters()) == {"a": True, "b": 1.5}
    assert pb_utils.get_output_tensor_by_name(made, "x") is TENSOR
    assert pb_utils.get_output_tensor_by_name(made, "y") is None


def test_response_with_error():
    error = pb_utils.TritonError("not here", pb_utils.TritonError.NOT_FOUND)
    made = pb_utils.InferenceResponse(error=error)
    assert made.has_error()
    assert made.error() is error
    assert (error.message(), error.code()) == ("not here", pb_utils.TritonError.NOT_FOUND)
    assert pb_utils.TritonError("x").code() == pb_utils.TritonError.INTERNAL


def test_response_misuse():
    with pytest.raises(pb_utils.TritonModelException, match="should not be empty"):
        pb_utils.InferenceResponse([None])
    with pytest.raises(TypeError, match="found ndarray"):
        pb_utils.InferenceResponse([np.zeros(1)])
    with pytest.raises(TypeError, match="expected error to be a TritonError, found str"):
        pb_utils.InferenceResponse(error="text")
    with pytest.raises(TypeError, match="expected message to be a str"):
        pb_utils.TritonError(3)


# --- response senders, in Triton's words --------------------------------------------------------------------------


def test_sender_refuses_what_triton_refuses():
    sender = request().get_response_sender()
    for arguments, said in [
        ({"flags": 1}, "Non-decoupled model cannot send complete final before sending a response"),
        ({"response": response(), "flags": 4}, "Unable to send response. Unsupported flag provided."),
        ({}, "Inference Response object must be provided when the response flags is set to zero."),
    ]:
        with pytest.raises(pb_utils.TritonModelException, match=said):
            sender.send(**arguments)
    sender.send(response())
    with pytest.raises(pb_utils.TritonModelException, match="cannot send more than one response"):
        sender.send(response())
    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    with pytest.raises(pb_utils.TritonModelException, match="Response sender has been closed"):
        sender.send(flags=1)
    assert not sender.is_cancelled()


def test_sender_wants_a_response():
    with pytest.raises(TypeError, match="expected response to be an InferenceResponse, found int"):
        request().get_response_sender().send(3)
    with pytest.raises(TypeError, match="expected flags to be an int, found str"):
        request().get_response_sender().send(response(), "final")


# --- what execute returns -----------------------------------------------------------------------------------------


def test_a_list_of_responses_is_what_is_wanted():
    returned = [response(), response()]
    assert checked([request(), request()], returned) == (returned, False)


def test_senders_stand_in_for_returned_responses():
    first, second = request(), request()
    sent, returned = response(), response()
    first.get_response_sender().send(sent, flags=1)
    assert checked([first, second], [None, returned]) == ([sent, returned], False)
    assert checked([first], None) == ([sent], False)


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (None, "Expected a list in the execute return, found type '<class 'NoneType'>'."),
        ((), "Expected a list in the execute return, found type '<class 'tuple'>'."),
        (
            [],
            "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
            "InferenceRequest(s) size is:1, and InferenceResponse(s) size is:0",
        ),
        (
            [3],
            "Expected an 'InferenceResponse' object in the execute function return list, found type '<class 'int'>'.",
        ),
        (
            [None],
            "Expected an 'InferenceResponse' object in the execute function return list, "
            "found type '<class 'NoneType'>'.",
        ),
    ],
)
def test_wrong_returns_get_tritons_words(returned, said):
    with pytest.raises(ExecutionFault) as caught:
        # None may mean a response that comes later, so it is noticed when nothing is left that could send one.
        awaited(checked([request()], returned)[0])
    assert str(caught.value) == said


def test_a_sender_may_send_after_execute_has_returned():
    late = request()
    sender = late.get_response_sender()
    waiting, are_late = checked([late], None)
    assert are_late
    assert type(waiting[0]) is SingleResponse
    sent = response()
    sender.send(sent, flags=1)
    assert awaited(waiting) == [sent]


def test_a_sender_may_be_asked_for_after_execute():
    late = request()
    waiting, are_late = checked([late], None)
    assert are_late
    sent = response()
    late.get_response_sender().send(sent)
    assert awaited(waiting) == [sent]


def test_a_sender_in_a_reference_cycle_is_found(monkeypatch):
    monkeypatch.setattr(responses, "_FIRST_COLLECTION_S", 0.001)
    lost = request()
    circle = [lost.get_response_sender()]
    circle.append(circle)
    waiting, _ = checked([lost], None)
    del lost, circle
    assert awaited(waiting)[0].error().message().startswith("the model released the response sender")


def test_responses_sent_before_a_failure_are_kept():
    first, second, third = request(), request(), request()
    sent = response()
    first.get_response_sender().send(sent, flags=1)
    sender = second.get_response_sender()
    kept = answered([first, second, third], {"message": "it failed"})
    assert kept[0] is sent
    assert [each.error().message() for each in kept[1:]] == ["it failed"] * 2
    with pytest.raises(pb_utils.TritonModelException, match="Response sender has been closed"):
        sender.send(response())
    assert answered([second, third], {"message": "it failed"}) is None


def test_unreferenced_sender_becomes_error():
    silent, other = request(), response()
    silent.get_response_sender()
    waiting, _ = checked([silent, request()], [None, other])
    del silent
    first, second = awaited(waiting)
    assert first.error().message().startswith("the model released the response sender of this request")
    assert second is other


def test_a_sender_that_sent_too_much():
    loud = request()
    loud.get_response_sender().send(response())
    with pytest.raises(ExecutionFault, match="cannot send more than one response"):
        checked([loud], [response()])


# --- exceptions ---------------------------------------------------------------------------------------------------


def failing():
    raise RuntimeError("boom")


def test_exceptions_are_described_as_triton_does():
    try:
        failing()
    except RuntimeError as error:
        said, trace = describe(error), format_traceback(error)
    lines = said.splitlines()
    assert lines[:3] == ["RuntimeError: boom", "", "At:"]
    assert lines[3].endswith("): failing")
    assert lines[4].endswith("): test_exceptions_are_described_as_triton_does")
    assert trace.startswith("Traceback")
    assert 'raise RuntimeError("boom")' in trace


def test_unsupported_names_raise_and_unknown_are_missing():
    with pytest.raises(AttributeError, match=r"pb_utils.SharedMemory is not supported by this version of naiad"):
        _ = pb_utils.SharedMemory
    with pytest.raises(AttributeError, match="has no attribute 'Nonsense'"):
        _ = pb_utils.Nonsense


def test_constants():
    assert pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START == 1
    assert pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL == 1
    assert pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE == 2
    memory = pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_GPU, 1)
    assert (memory.memory_type, memory.device_id) == (pb_utils.TRITONSERVER_MEMORY_GPU, 1)
