"""What `execute` of a model returned: held against what it must return, and completed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from naiad.backend.worker.exchange import (
    InferenceRequest,
    InferenceResponse,
    RequestPlan,
    SingleAnswer,
    is_rescheduled,
)
from naiad.backend.worker.failure import TritonError, describe, format_traceback

RESCHEDULED = InferenceResponse()
"""Stands for the response of a request that is to be executed again."""


class ExecutionFault(Exception):  # noqa: N818 - not an error of ours: the model broke its contract
    """What `execute` returned is not what it must return."""


class AnsweredRequest:
    """What is needed of a request when all that is left to come is its response."""

    __slots__ = ("_plan",)

    def __init__(self, plan: RequestPlan) -> None:
        self._plan = plan


def failure_notes(error: BaseException, instance_name: str) -> dict[str, Any]:
    """Return what the server is told of an exception in `execute`, in Triton's words."""
    is_fault = isinstance(error, ExecutionFault)
    said = str(error) if is_fault else describe(error)
    return {
        "message": f"Failed to process the request(s) for model '{instance_name}', message: {said}",
        "detail": "" if is_fault else format_traceback(error),
    }


def checked(requests: Sequence[InferenceRequest], returned: Any) -> tuple[list[Any], bool]:
    """Return what there is for each request, and whether some of that is a `SingleAnswer` which is still to come.

    Raises ExecutionFault with Triton's words when what `execute` returned and what response senders sent do not fit
    together.
    """
    are_late = False
    if returned is None:
        # Triton: the model may ask for the senders later, in a task or a thread.
        fault = f"Expected a list in the execute return, found type '{type(None)}'."
        for request in requests:
            request._late_answer(fault)
        returned = [None] * len(requests)
    if not isinstance(returned, list):
        raise ExecutionFault(f"Expected a list in the execute return, found type '{type(returned)}'.")
    if len(returned) != len(requests):
        raise ExecutionFault(
            "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
            f"InferenceRequest(s) size is:{len(requests)}, and InferenceResponse(s) size is:{len(returned)}"
        )
    for index, (request, response) in enumerate(zip(requests, returned)):
        if type(response) is not InferenceResponse or request._sender is not None:
            returned[index] = made = _checked_one(request, response)
            are_late = are_late or type(made) is SingleAnswer
    return returned, are_late


def with_rescheduled(requests: Sequence[InferenceRequest], returned: Any) -> Any:
    """Return what `execute` returned, with `RESCHEDULED` for the requests that are to be executed again.

    Raises ExecutionFault with Triton's words when there is a response for one of them.
    """
    if returned is None and any(map(is_rescheduled, requests)):
        returned = [None] * len(requests)
    if not isinstance(returned, list) or len(returned) != len(requests):
        return returned
    for index, request in enumerate(requests):
        if not is_rescheduled(request):
            continue
        if returned[index] is not None:
            raise ExecutionFault(
                "Expected a None object in the execute function return list for reschduled request, found type "
                f"'{type(returned[index])}'."
            )
        if request._sender is not None and request._sender.answer.response is not None:
            raise ExecutionFault(
                "Expected no response for a rescheduled request, but one was sent through its response sender. Only "
                "a decoupled model can answer a request and execute it again"
            )
        request._sender = None
        returned[index] = RESCHEDULED
    return returned


def rescheduled_indexes(responses: Sequence[Any]) -> list[int]:
    """Return the positions of the requests that are to be executed again."""
    return [index for index, response in enumerate(responses) if response is RESCHEDULED]


def _checked_one(request: InferenceRequest, response: Any) -> Any:
    if response is None:
        late = request._late_answer(_not_a_response(None))
        return late.response or late
    answer: SingleAnswer | None = request._sender.answer if request._sender is not None else None
    if not isinstance(response, InferenceResponse):
        raise ExecutionFault(_not_a_response(response))
    if answer is not None and answer.response is not None:
        raise ExecutionFault("Unable to send response. Non-decoupled model cannot send more than one response.")
    return response


def _not_a_response(value: object) -> str:
    return f"Expected an 'InferenceResponse' object in the execute function return list, found type '{type(value)}'."


def answered(requests: Sequence[Any], notes: dict[str, Any]) -> list[InferenceResponse] | None:
    """Return the responses of a batch whose `execute` has failed after it sent some; None when it sent none.

    `notes` are those of the failure, which answers the other requests. Senders send nothing from now on, as in
    Triton.
    """
    senders = [request._sender for request in requests]
    for sender in senders:
        if sender is not None:
            sender.answer.close()
    sent = [None if sender is None else sender.answer.response for sender in senders]
    if not any(response is not None for response in sent):
        return None
    failed = InferenceResponse(error=TritonError(notes["message"]))
    return [failed if response is None else response for response in sent]


def awaited(responses: Sequence[Any]) -> list[InferenceResponse]:
    """Return the responses when those that are still to come have come.

    The caller must have let go of the requests: a response that nothing can send any more becomes an error. Raises
    ExecutionFault with Triton's words for a request whose sender the model has never had.
    """
    complete = []
    for response in responses:
        made = response.wait() if type(response) is SingleAnswer else response
        if made is None:
            if response.fault:
                raise ExecutionFault(response.fault)
            error = TritonError("the model let go of the response sender of this request without sending a response")
            made = InferenceResponse(error=error)
        complete.append(made)
    return complete
