"""Execution of `execute`: its coroutines, its return value, and the batches of decoupled models.

The coroutine of a batch runs on the executing thread, which needs no switch between threads. A model may leave work
behind: tasks, timers, or a late response. Then the event loop moves to a thread of its own permanently, where it also
runs between batches, as in Triton:

    execute returns, no work is left     the loop stops until the next batch
    execute returns, work is left        thread "asyncio": run_forever; later coroutines are submitted to it

`checked` compares the return value of an ordinary model with Triton's rules. `execute` of a decoupled model returns
nothing: its response senders send all responses.

An ordinary model may send responses after `execute` has returned. The other responses of the batch are sent first, so
that the next batch may follow. From then on each open request has a slot on the flags page and a stream, like the
requests of a decoupled model.
"""

from __future__ import annotations

import inspect
import logging
import threading
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Coroutine, NamedTuple

from naiad.worker import control_socket as scope
from naiad.worker.api.failure import TritonError, describe, format_traceback, shortened
from naiad.worker.api.request import InferenceRequest, InferenceTrace, RequestPlan, StreamedRequest, is_rescheduled
from naiad.worker.api.response import InferenceResponse, SingleResponse
from naiad.worker.channel.channel import Channel
from naiad.worker.channel.flags_page import FIRST_LATE_PLACE, FIRST_LATE_SLOT, SLOTS, FlagsPage
from naiad.worker.channel.frame import Frame
from naiad.worker.control_socket import ControlSocket
from naiad.worker.execution.codec import RequestDecoder
from naiad.worker.execution.response_sender import OpenStream, ResponseSender

if TYPE_CHECKING:
    import asyncio

_log = logging.getLogger(__name__)
_CLOSE_S = 2.0


class ModelLoop:
    """One event loop and, once needed, its thread. Used by the executing thread."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._is_closing = False

    @property
    def thread_id(self) -> int:
        """The thread of the coroutines."""
        thread = self._thread
        return threading.get_ident() if thread is None or thread.ident is None else thread.ident

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine and return its result or raise its exception."""
        import asyncio  # it takes a quarter of the start of a worker, and most models have no coroutines

        loop = self._made()
        if self._thread is not None:
            return asyncio.run_coroutine_threadsafe(coroutine, loop).result()
        try:
            return loop.run_until_complete(coroutine)
        finally:
            if _has_work(loop):
                self.keep_running()

    def submit(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine concurrently with others; it must handle its own exceptions."""
        import asyncio

        self.keep_running()
        asyncio.run_coroutine_threadsafe(coroutine, self._made())

    def keep_running(self) -> None:
        """Run the loop between batches too, from now on."""
        if self._thread is None:
            self._made()
            self._thread = threading.Thread(target=self._run, name="asyncio", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop the loop; unfinished tasks are abandoned."""
        self._is_closing = True
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            # A blocking task is not awaited: the process exits without it.
            self._thread.join(_CLOSE_S)
        if self._loop is not None and not self._loop.is_running():
            self._loop.close()

    def _made(self) -> asyncio.AbstractEventLoop:
        import asyncio

        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            # Triton: code outside coroutines finds the loop, too.
            asyncio.set_event_loop(self._loop)
        return self._loop

    def _run(self) -> None:
        import asyncio

        loop = self._made()
        asyncio.set_event_loop(loop)
        while not self._is_closing:
            try:
                loop.run_forever()
            except BaseException as error:
                # asyncio propagates SystemExit and KeyboardInterrupt of a task, which would end the loop of all
                # tasks.
                _log.error("a task of the model has raised %r", error)


def _has_work(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether tasks or timers are left that the next batch need not wait for."""
    import asyncio

    timers = getattr(loop, "_scheduled", ())
    return bool(asyncio.all_tasks(loop)) or any(not timer.cancelled() for timer in timers)


RESCHEDULED = InferenceResponse()
"""Stands for the response of a request to execute again."""
LATE = InferenceResponse()
"""Stands for a response that follows after the batch."""


class ExecutionFault(Exception):  # noqa: N818 - not an error of ours: the model broke its contract
    """`execute` returned an invalid value."""


class FinishedRequest:
    """The part of a request that is needed until its response."""

    __slots__ = ("_plan",)

    def __init__(self, plan: RequestPlan) -> None:
        self._plan = plan


def failure_notes(error: BaseException, instance_name: str) -> dict[str, Any]:
    """Return the notes about an exception in `execute` for the server, with Triton's text."""
    is_fault = isinstance(error, ExecutionFault)
    said = shortened(str(error)) if is_fault else describe(error)
    return {
        "message": f"Failed to process the request(s) for model '{instance_name}', message: {said}",
        "detail": "" if is_fault else format_traceback(error),
    }


def checked(requests: Sequence[InferenceRequest], returned: Any) -> tuple[list[Any], bool]:
    """Return the response of each request, and whether some are a pending `SingleResponse`.

    Raises ExecutionFault with Triton's text if the return value of `execute` and the responses of senders contradict
    each other.
    """
    are_late = False
    if returned is None:
        # Triton: the model may get the senders later, in a task or a thread.
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
    """Return the return value of `execute`, with `RESCHEDULED` for the requests to execute again.

    Raises ExecutionFault with Triton's text for a response to one of them.
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
    """Return the positions of the requests to execute again."""
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
    """Return the responses of a batch after a failed `execute` that sent some; None if it sent none.

    `notes` describe the failure, which is the response of the other requests. Senders are closed from now on, as
    in Triton.
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
    """Wait for the pending responses and return all.

    The caller must have released the requests: a response without a sender becomes an error. Raises ExecutionFault
    with Triton's text for a request without a sender.
    """
    complete = []
    for response in responses:
        made = response.wait() if type(response) is SingleResponse else response
        if made is None:
            if response.fault:
                raise ExecutionFault(response.fault)
            error = TritonError("the model released the response sender of this request without sending a response")
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
        """Execute a batch and report the end of `execute` to the server. Raises ChannelError."""
        requests, streams = self._open(frame)
        frame.payload = b""
        self._side.request_ids = frame.text
        # Coroutines of the batch inherit this. Weak references: a strong one would count as a sender.
        scope.streams.set([weakref.ref(stream) for stream in streams])
        try:
            returned = self._model.execute(requests)
            again: list[OpenStream] = []
            if inspect.iscoroutine(returned):
                # Triton: the coroutines of all batches run concurrently.
                self._loop.submit(self._finish(returned, streams, requests))
            else:
                self._check(returned)
                again = _rescheduled(requests, streams)
            # Every sender refers to the stream; without a sender the request gets an error.
            del requests
        except BaseException as error:
            # SystemExit and KeyboardInterrupt too: Triton fails the batch and continues.
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
        """End the loop of coroutines; no request is open."""
        self._loop.close()

    def _open(self, frame: Frame) -> tuple[list[StreamedRequest], list[OpenStream]]:
        """Return the requests of a batch, whose table begins with their slots, and the streams of their responses."""
        count = frame.text.count("\0") + 1
        slots, frame.words = frame.words[:count], frame.words[count:]
        requests, streams = [], []
        for slot, received in zip(slots, self._request_decoder.requests(frame, lambda position: False)):
            stream = OpenStream(self.response_sender, slot, received._plan.output_names)
            request = StreamedRequest(received._plan, received._id, received._inputs, stream, slot)
            context = received.trace().get_context()
            if context is not None:
                request._trace = InferenceTrace(context, slot)
            requests.append(request)
            streams.append(stream)
        return requests, streams

    def _check(self, returned: Any) -> None:
        if returned is not None:
            raise ExecutionFault(
                f"Python model '{self._instance_name}' is using the decoupled mode and the execute function must "
                "return None."
            )

    # --- coroutines -------------------------------------------------------------------------------------------------

    async def _finish(
        self, coroutine: Coroutine[Any, Any, Any], streams: Sequence[OpenStream], requests: Sequence[StreamedRequest]
    ) -> None:
        try:
            self._check(await coroutine)
            again = _rescheduled(requests, streams)
            if again:
                self.response_sender.reschedule(again)
        except BaseException as error:
            # Triton only logs this, and the client gets no response.
            notes = failure_notes(error, self._instance_name)
            _log.error("%s", notes["detail"] or notes["message"])
            self.response_sender.fail(streams, notes["message"])


def _rescheduled(requests: Sequence[StreamedRequest], streams: Sequence[OpenStream]) -> list[OpenStream]:
    """Return the streams of the requests to execute again."""
    return [stream for request, stream in zip(requests, streams) if is_rescheduled(request)]


# --- late responses of ordinary models ------------------------------------------------------------------------------


class Pending(NamedTuple):
    """A response that follows after its batch."""

    place: int
    """Index in its batch."""
    slot: int
    answer: SingleResponse
    output_names: frozenset[str]


class LateResponses:
    """The open requests of earlier batches. Used by the executing thread."""

    def __init__(self, channel: Channel, board: FlagsPage) -> None:
        self.response_sender = ResponseSender(channel, board)
        self._open: dict[int, weakref.ref[OpenStream]] = {}
        self._next_slot = FIRST_LATE_SLOT

    @property
    def has_open(self) -> bool:
        """Whether a response is pending."""
        while self._open:
            slot = next(iter(self._open))
            if not self._is_free(slot):
                return True
            del self._open[slot]
        return False

    def reserve(self, requests: Sequence[InferenceRequest], responses: Sequence[Any]) -> dict[int, int]:
        """Return slots for the pending responses of a batch, by their indexes.

        Empty if too many requests are open.
        """
        slots: dict[int, int] = {}
        for index, response in enumerate(responses):
            if type(response) is not SingleResponse:
                continue
            slot = self._next_slot
            if not self._is_free(slot):
                return {}
            self._next_slot = slot + 1 if slot + 1 < SLOTS else FIRST_LATE_SLOT
            slots[index] = slot
        for index, slot in slots.items():
            # Its cancellation is read there from now on: the next batch soon uses the places of this one.
            requests[index]._position = responses[index].position = FIRST_LATE_PLACE + slot
        return slots

    def divert(self, late: Sequence[Pending]) -> list[weakref.ref[OpenStream]]:
        """Send these responses through streams when they arrive; the server knows their slots. Return the streams."""
        references = []
        for pending in late:
            stream = OpenStream(self.response_sender, pending.slot, pending.output_names)
            reference = self._open[pending.slot] = weakref.ref(stream)
            references.append(reference)
            try:
                pending.answer.divert(stream)
            except BaseException as error:
                self.response_sender.fail([stream], describe(error))
        return references

    def _is_free(self, slot: int) -> bool:
        reference = self._open.get(slot)
        stream = None if reference is None else reference()
        return stream is None or stream.is_closed


def settled(
    requests: Sequence[FinishedRequest], responses: Sequence[Any], slots: dict[int, int]
) -> tuple[list[InferenceResponse], list[Pending]]:
    """Return the responses of a batch, `LATE` for pending ones with slots, and these ones.

    Waits for responses without slots.
    """
    made, late = list(responses), []
    for index, slot in slots.items():
        if not responses[index].has_arrived:
            made[index] = LATE
            late.append(Pending(index, slot, responses[index], requests[index]._plan.output_names))
    return awaited(made), late
