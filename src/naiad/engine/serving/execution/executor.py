"""The batch executor: results and errors of an instance become the responses of its requests."""

import logging
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Protocol

from naiad.backend.api import Instance, InstanceDiedError
from naiad.core.batch import Batch
from naiad.core.errors import ErrorCode, FailureReason, InferError, cause_of, internal
from naiad.core.request import InferRequest
from naiad.core.response import LATE, RESCHEDULE, InferResponse, ResponseHeader
from naiad.engine.serving.dispatch.dispatcher import Dispatcher
from naiad.engine.serving.dispatch.response_queue import ResponseQueue
from naiad.engine.serving.suspects import Suspects
from naiad.telemetry.statistics.model_statistics import ModelStatistics, is_cancelled


class BatchTransform(Protocol):
    """Changes the requests of a batch before its execution, and the responses back."""

    def prepare(self, batch: Batch) -> None:
        """Change the requests. Raises InferError, which fails the batch."""

    def settle(self, batch: Batch, responses: Sequence[InferResponse]) -> Sequence[InferResponse]:
        """Undo `prepare` and return the responses for the clients. Raises InferError, which fails the batch."""

    def restore(self, batch: Batch) -> None:
        """Undo `prepare`; does nothing if it is undone."""


_log = logging.getLogger(__name__)
_now_ns = time.monotonic_ns
_RESPONSE_TYPES = {InferResponse}


class BatchExecutor:
    """Executes batches, updates statistics, frees the instance, and sends responses; callable on any thread."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        *,
        statistics: ModelStatistics,
        response_queue: ResponseQueue,
        transforms: Sequence[BatchTransform] = (),
        is_iterative: bool = False,
        suspects: Suspects | None = None,
    ) -> None:
        """`transforms` change requests before their execution, and their responses back.

        `is_iterative`: a response may be RESCHEDULE, which executes its request again. `suspects`: requests that
        workers may have died of.
        """
        self._dispatcher = dispatcher
        self._decoupled_responses = dispatcher.decoupled_responses
        self._statistics = statistics
        self._response_queue = response_queue
        self._transforms = transforms
        self._complete: Callable[[Batch, Sequence[InferResponse], bool], None] = self._complete_whole
        if self._decoupled_responses is not None:
            self._complete = self._complete_decoupled
        elif is_iterative:
            self._complete = self._complete_step
        self._suspects = suspects or Suspects(statistics.model)
        self._error_header = ResponseHeader(statistics.model, statistics.version, ())

    def prepare(self, batch: Batch) -> None:
        """Transform the requests of a batch for its instance; raises the error that fails the batch."""
        for transform in self._transforms:
            transform.prepare(batch)

    def execute(
        self, instance: Instance, batch: Batch, *, on_loop: bool = False, claim: Callable[[], bool] | None = None
    ) -> None:
        """Execute a batch, blocking, and send its responses. `on_loop`: the caller is the event loop.

        `claim` is called afterwards and returns whether the responses are still wanted: the execution may have been
        aborted.
        """
        # hot: bench/micro_engine.py
        batch.exec_start_ns = _now_ns()
        try:
            for transform in self._transforms:
                transform.prepare(batch)
            responses = instance.execute(batch)
        except BaseException as error:
            # Also SystemExit, KeyboardInterrupt, CancelledError of a model: they would silently end this thread, and
            # its requests would never complete.
            if claim is None or claim():
                self.fail(batch, error, on_loop=on_loop)
        else:
            if claim is not None and not claim():
                return
            if self._transforms:
                self.complete(batch, responses, on_loop=on_loop)
            else:
                self._complete(batch, responses, on_loop)

    def complete(self, batch: Batch, responses: Sequence[InferResponse], *, on_loop: bool = False) -> None:
        """Send the responses of an executed batch: one per request, none for a decoupled model."""
        # hot: bench/micro_engine.py
        try:
            for transform in reversed(self._transforms):
                responses = transform.settle(batch, responses)
        except BaseException as error:
            self.fail(batch, error, on_loop=on_loop)
        else:
            self._complete(batch, responses, on_loop)

    def _complete_whole(self, batch: Batch, responses: Sequence[InferResponse], on_loop: bool) -> None:
        """Respond to all requests of a batch."""
        # hot: bench/micro_engine.py
        requests, answers = batch.requests, responses
        try:
            is_valid = len(responses) == len(requests) and set(map(type, responses)) <= _RESPONSE_TYPES
        except TypeError:
            is_valid = False
        if not is_valid:
            # Of a third-party backend: it fails the batch, not the instance.
            self.fail(batch, _wrong_responses(batch, responses), on_loop=on_loop)
            return
        batch.exec_end_ns = end_ns = _now_ns()
        if not on_loop:
            self._statistics.record_batch(batch, responses, end_ns)
        for request in requests:
            if request.times is not None:
                _report_times(batch)
                break
        if batch.left_open:
            requests, answers = _answered(batch, responses)
        if self._suspects.found:
            self._suspects.clear(requests)
        self._dispatcher.note_executed(batch)
        batch.is_answered = True
        self._response_queue.hand_over(requests, answers, on_loop=on_loop)
        if on_loop:
            # The clients work meanwhile, and the loop reads no request of theirs before this is done.
            self._statistics.record_batch(batch, responses, end_ns)

    def _complete_step(self, batch: Batch, responses: Sequence[InferResponse], on_loop: bool) -> None:
        """Respond to the completed requests of an iterative model, and put the other ones back."""
        if len(responses) != len(batch.requests):
            self.fail(batch, _wrong_responses(batch, responses), on_loop=on_loop)
            return
        batch.exec_end_ns = _now_ns()
        done: list[InferRequest] = []
        again: list[InferRequest] = []
        for request, response in zip(batch.requests, responses, strict=True):
            (again if response is RESCHEDULE else done).append(request)
        answers = [response for response in responses if response is not RESCHEDULE]
        self._statistics.record_batch(batch, answers, batch.exec_end_ns, done=done)
        _report_times(batch)
        self._dispatcher.note_executed(batch)
        self._dispatcher.go_on(done, again)
        batch.is_answered = True
        self._response_queue.hand_over(done, answers, on_loop=on_loop)

    def _complete_decoupled(self, batch: Batch, responses: Sequence[InferResponse], on_loop: bool) -> None:
        """Count a batch of a free instance; its requests stay open until their final responses."""
        if responses:
            self.fail(batch, internal("backend returned responses of a decoupled model"), on_loop=on_loop)
            return
        end_ns = _end(batch)
        again = self._dispatcher.pop_put_back(batch)
        done = [request for request in batch.requests if request not in again] if again else None
        if self._decoupled_responses is not None:
            cancelled = self._decoupled_responses.end_execution(batch.requests)
            if cancelled:
                done = [request for request in done or batch.requests if request not in cancelled]
                for request in cancelled:
                    self._statistics.record_dropped(request, FailureReason.CANCELED, end_ns)
        self._statistics.record_batch(batch, (), end_ns, done=done)
        _report_times(batch)
        self._dispatcher.note_executed(batch)
        self._dispatcher.go_on((), again)

    def fail(self, batch: Batch, error: BaseException, *, on_loop: bool = False) -> None:
        """Fail every request of a batch after `error`.

        A batch that a worker had not begun at its death is queued again instead.
        """
        for transform in reversed(self._transforms):
            transform.restore(batch)
        if isinstance(error, InstanceDiedError):
            if not error.has_begun and self._dispatcher.put_back(batch):
                return
            if error.has_begun and self._decoupled_responses is None:
                self._suspects.note_death(batch.requests, error.message, _now_ns())
            # Another server must not repeat what earlier executions of a request have done.
            error.has_begun = error.has_begun or self._dispatcher.have_executed(batch.requests)
        if not isinstance(error, InferError):
            error = InferError(
                ErrorCode.INTERNAL,
                f"executing model '{self._statistics.model}' failed: {cause_of(error)}",
                detail="".join(traceback.format_exception(error)),
            )
        reason = FailureReason.CANCELED if is_cancelled(error) else FailureReason.BACKEND
        error.reason = error.reason or reason
        self._statistics.record_batch_failure(batch, _end(batch), reason=reason)
        _report_times(batch)
        response = InferResponse(self._error_header, error=error)
        self._dispatcher.note_executed(batch, failed=True)
        batch.is_answered = True
        if self._decoupled_responses is not None:
            self._decoupled_responses.resume(self._dispatcher.pop_put_back(batch))
            self._decoupled_responses.fail(batch.requests, response)
            return
        self._dispatcher.go_on(batch.requests, ())
        requests = batch.requests
        if batch.left_open:
            # It failed after its responses; open requests get their own responses.
            requests = [request for request in requests if request not in batch.left_open]
        self._response_queue.hand_over(requests, [response] * len(requests), on_loop=on_loop)

    def give_up(self, batch: Batch, error: InferError, *, on_loop: bool = False) -> None:
        """Fail the requests of a batch that have no response after a failure of the runner itself.

        The last resort: it calls as little as possible, and what fails in it is only logged.
        """
        response = InferResponse(self._error_header, error=error)
        open_requests = self._dispatcher.open_requests
        try:
            if not batch.is_answered:
                batch.is_answered = True
                error.reason = error.reason or FailureReason.BACKEND
                self._dispatcher.note_executed(batch, failed=True)
                self._statistics.record_batch_failure(batch, _end(batch))
                if self._decoupled_responses is None:
                    requests = [request for request in batch.requests if request not in batch.left_open]
                    self._response_queue.hand_over(requests, [response] * len(requests), on_loop=on_loop)
        except BaseException:
            _log.critical("requests of model '%s' may wait in vain", self._statistics.model, exc_info=True)
        if open_requests is not None:
            open_requests.fail(batch.requests, response)


def _wrong_responses(batch: Batch, responses: object) -> InferError:
    if isinstance(responses, Sequence) and len(responses) != len(batch.requests):
        return internal(f"backend returned {len(responses)} responses for {len(batch.requests)} requests")
    return internal("backend returned objects that are not responses")


def _end(batch: Batch) -> int:
    """Note the end of a batch if the instance has not set its compute times; return that time."""
    batch.exec_end_ns = end_ns = _now_ns()
    batch.compute_start_ns = batch.compute_start_ns or end_ns
    batch.compute_end_ns = batch.compute_end_ns or end_ns
    return end_ns


def _answered(batch: Batch, responses: Sequence[InferResponse]) -> tuple[list[InferRequest], list[InferResponse]]:
    """Return the requests of a batch with their responses; the other requests are still open."""
    answered = [pair for pair in zip(batch.requests, responses, strict=True) if pair[1] is not LATE]
    return [request for request, _ in answered], [response for _, response in answered]


def _report_times(batch: Batch) -> None:
    for request in batch.requests:
        times = request.times
        if times is not None:
            times.free_ns = batch.free_ns
            times.is_open = request in batch.left_open
            times.exec_start_ns = batch.exec_start_ns
            times.compute_start_ns = batch.compute_start_ns
            times.compute_end_ns = batch.compute_end_ns
            times.exec_end_ns = batch.exec_end_ns
