"""How a worker executes batches of a decoupled model: `execute` returns nothing, response senders say everything.

The event loop of a model with `async def execute`.

The coroutine of a batch runs on the thread that executes, which costs no switch between threads. A model may leave
work behind: tasks, timers, or an answer that is still to come. Then the loop moves to a thread of its own for good,
where it runs between batches too, as in Triton:

    execute returns, nothing is left     the loop stops until the next batch
    execute returns, something is left   thread "asyncio": run_forever; later coroutines are submitted to it

What `execute` of a model returned: held against what it must return, and completed.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import weakref
from collections.abc import Sequence
from typing import Any, Coroutine

from naiad.worker import control as scope
from naiad.worker.api.failure import TritonError, describe, format_traceback
from naiad.worker.api.inference import (
    InferenceRequest,
    InferenceResponse,
    RequestPlan,
    SingleResponse,
    StreamedRequest,
    is_rescheduled,
)
from naiad.worker.channel.frame import Frame
from naiad.worker.control import ControlSocket
from naiad.worker.request_decoder import RequestDecoder
from naiad.worker.response_sender import ResponseSender, Stream

_log = logging.getLogger(__name__)
_CLOSE_S = 2.0


class ModelLoop:
    """One event loop and, from when it is needed, its thread. Used by the thread that executes."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._is_closing = False

    @property
    def thread_id(self) -> int:
        """The thread that coroutines run on."""
        thread = self._thread
        return threading.get_ident() if thread is None or thread.ident is None else thread.ident

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Return what a coroutine returns. Raises what it raises."""
        loop = self._made()
        if self._thread is not None:
            return asyncio.run_coroutine_threadsafe(coroutine, loop).result()
        try:
            return loop.run_until_complete(coroutine)
        finally:
            if _has_work(loop):
                self.keep_running()

    def submit(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine beside others; it must see to its own exceptions."""
        self.keep_running()
        asyncio.run_coroutine_threadsafe(coroutine, self._made())

    def keep_running(self) -> None:
        """Run the loop between batches too, from now on."""
        if self._thread is None:
            self._made()
            self._thread = threading.Thread(target=self._run, name="asyncio", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop the loop; what has not ended by then does not end."""
        self._is_closing = True
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            # A task that blocks is not waited for: the process ends without it.
            self._thread.join(_CLOSE_S)
        if self._loop is not None and not self._loop.is_running():
            self._loop.close()

    def _made(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            # Triton: code that is not a coroutine finds it, too.
            asyncio.set_event_loop(self._loop)
        return self._loop

    def _run(self) -> None:
        loop = self._made()
        asyncio.set_event_loop(loop)
        while not self._is_closing:
            try:
                loop.run_forever()
            except BaseException as error:
                # asyncio lets SystemExit and KeyboardInterrupt of a task through, which would end the loop for all.
                _log.error("a task of the model has raised %r", error)


def _has_work(loop: asyncio.AbstractEventLoop) -> bool:
    """Tell whether tasks or timers are left that the next batch should not have to wait for."""
    timers = getattr(loop, "_scheduled", ())
    return bool(asyncio.all_tasks(loop)) or any(not timer.cancelled() for timer in timers)


RESCHEDULED = InferenceResponse()
"""Stands for the response of a request that is to be executed again."""
LATE = InferenceResponse()
"""Stands for a response that comes after the batch."""


class ExecutionFault(Exception):  # noqa: N818 - not an error of ours: the model broke its contract
    """What `execute` returned is not what it must return."""


class FinishedRequest:
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
    """Return what there is for each request, and whether some of that is a `SingleResponse` which is still to come.

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
            are_late = are_late or type(made) is SingleResponse
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
    answer: SingleResponse | None = request._sender.answer if request._sender is not None else None
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
        made = response.wait() if type(response) is SingleResponse else response
        if made is None:
            if response.fault:
                raise ExecutionFault(response.fault)
            error = TritonError("the model let go of the response sender of this request without sending a response")
            made = InferenceResponse(error=error)
        complete.append(made)
    return complete


class DecoupledExecution:
    """Executes batches one after the other; their requests stay open until their final responses."""

    def __init__(
        self,
        model: Any,
        instance_name: str,
        request_decoder: RequestDecoder,
        response_sender: ResponseSender,
        side: ControlSocket,
    ) -> None:
        self.response_sender = response_sender
        self._model = model
        self._instance_name = instance_name
        self._request_decoder = request_decoder
        self._side = side
        self._loop = ModelLoop()

    def execute(self, frame: Frame) -> None:
        """Execute a batch and tell the server that the next may come. Raises ChannelError."""
        requests, streams = self._request_decoder.streamed_requests(frame, self.response_sender)
        frame.payload = b""
        self._side.request_ids = frame.text
        # Coroutines of the batch inherit this. Weak references: who refers to a stream is expected to answer.
        scope.streams.set([weakref.ref(stream) for stream in streams])
        try:
            returned = self._model.execute(requests)
            again: list[Stream] = []
            if inspect.iscoroutine(returned):
                # Triton: the coroutines of all batches run side by side.
                self._loop.submit(self._finish(returned, streams, requests))
            else:
                self._check(returned)
                again = _rescheduled(requests, streams)
            # Who may still send refers to the stream; when nobody does, the request is answered with an error.
            del requests
        except BaseException as error:
            # SystemExit and KeyboardInterrupt too: Triton fails the batch and goes on.
            self.response_sender.failed(streams, failure_notes(error, self._instance_name))
            return
        finally:
            self._side.request_ids = ""
        del streams
        if again:
            self.response_sender.reschedule(again)
            del again
        self.response_sender.executed()

    def close(self) -> None:
        """End the loop of coroutines; nothing is open any more."""
        self._loop.close()

    def _check(self, returned: Any) -> None:
        if returned is not None:
            raise ExecutionFault(
                f"Python model '{self._instance_name}' is using the decoupled mode and the execute function must "
                "return None."
            )

    # --- coroutines -------------------------------------------------------------------------------------------------

    async def _finish(
        self, coroutine: Coroutine[Any, Any, Any], streams: Sequence[Stream], requests: Sequence[StreamedRequest]
    ) -> None:
        try:
            self._check(await coroutine)
            again = _rescheduled(requests, streams)
            if again:
                self.response_sender.reschedule(again)
        except BaseException as error:
            # Triton only logs this, and the client waits for ever.
            notes = failure_notes(error, self._instance_name)
            _log.error("%s", notes["detail"] or notes["message"])
            self.response_sender.fail(streams, notes["message"])


def _rescheduled(requests: Sequence[StreamedRequest], streams: Sequence[Stream]) -> list[Stream]:
    """Return the streams of the requests that are to be executed again."""
    return [stream for request, stream in zip(requests, streams) if is_rescheduled(request)]
