"""The dispatcher of sequence models, with requests bound to instances.

Iterative sequences: one request that a model executes again and again until its final response.
"""

import itertools
import logging
import time
from collections.abc import Sequence
from functools import partial

from naiad.config.execution_tensors import Control
from naiad.config.model_config_pb2 import DataType, ModelConfig
from naiad.core.batch import Batch
from naiad.core.environment.ports import Loop
from naiad.core.errors import ErrorCode, FailureReason, InferError, cancelled_request, excerpt, request_prefix
from naiad.core.request import InferRequest
from naiad.engine.instances.instance_resources import ModelResources
from naiad.engine.serving.dispatch.dispatcher import STOPPED, Dispatcher
from naiad.engine.serving.dispatch.response_queue import ResponseQueue
from naiad.engine.serving.dispatch.runners import InstanceRunner
from naiad.engine.transforms.sequence_tensors import SequenceTensors
from naiad.scheduler.api import Scheduler
from naiad.telemetry.statistics.model_statistics import ModelStatistics

_log = logging.getLogger(__name__)
_now_ns = time.monotonic_ns
_LOG_INTERVAL_NS = 10_000_000_000
"""Limit of logged conflicts: a client that never ends its sequences would log a line for each."""
_FIRST_ID = 1 << 62
"""Ids that clients are unlikely to use."""
_FIRST_SHORT_ID = 1 << 30
"""The same for models that get only the low 32 bits."""
_SHORT_TYPES = (DataType.TYPE_INT32, DataType.TYPE_UINT32)


class IterativeRequests:
    """Turns a request into a sequence, and tracks the executing requests of a decoupled model.

    Not thread-safe: the caller holds the model's lock.
    """

    def __init__(self, config: ModelConfig, scheduler: Scheduler) -> None:
        """Read the type of correlation ids from the configuration."""
        self._scheduler = scheduler
        id_types = [
            control.data_type
            for control_input in config.sequence_batching.control_input
            for control in control_input.control
            if control.kind == Control.CONTROL_SEQUENCE_CORRID
        ]
        self._has_text_ids = DataType.TYPE_STRING in id_types
        is_short = any(id_type in _SHORT_TYPES for id_type in id_types)
        self._ids = itertools.count(_FIRST_SHORT_ID if is_short else _FIRST_ID)
        self._executing: dict[int, InferRequest] = {}
        self._held: dict[int, InferRequest] = {}
        """Requests that were put back before the end of their batch."""

    def begin(self, request: InferRequest) -> None:
        """Make a request the first of a sequence; it gets an id if it has none. Triton: regardless of its flags."""
        header = request.header
        correlation_id = header.sequence_id
        if not correlation_id:
            number = next(self._ids)
            correlation_id = str(number) if self._has_text_ids else number
        request.header = header.in_sequence(correlation_id, is_first=True)

    def has_executed(self, request: InferRequest) -> bool:
        """Return whether a request was put back after an execution; it is then not the first of its sequence."""
        return not request.header.sequence_start

    def go_on(
        self, done: Sequence[InferRequest], again: Sequence[InferRequest], now_ns: int
    ) -> list[tuple[InferRequest, InferError]]:
        """End the sequences of completed requests, and put back the requests to execute again.

        Returns the requests that cannot be put back, each with its error.
        """
        dropped: list[tuple[InferRequest, InferError]] = []
        for request in again:
            error = self._put_back(request, now_ns)
            if error is not None:
                dropped.append((request, error))
        for request in (*done, *(request for request, _ in dropped)):
            self._scheduler.release(request, now_ns)
        return dropped

    def _put_back(self, request: InferRequest, now_ns: int) -> InferError | None:
        header = request.header
        # Controls and states were appended to the client's inputs.
        request.data = request.data[: len(header.inputs)]
        if header.sequence_start:
            request.header = header.in_sequence(header.sequence_id, is_first=False)
        if request.cancelled:
            return cancelled_request()
        if self._scheduler.reschedule(request, now_ns):
            return None
        message = f"{request_prefix(request.id)}the sequence of this request has ended while it was executed"
        return InferError(ErrorCode.UNAVAILABLE, message, reason=FailureReason.OTHER)

    # --- of decoupled models ----------------------------------------------------------------------------------------

    def took(self, batch: Batch) -> None:
        """Note that the requests of a batch execute."""
        for request in batch.requests:
            self._executing[id(request)] = request

    def may_go_on(self, request: InferRequest) -> bool:
        """Return whether a request to put back is free; otherwise `completed` returns it later."""
        is_free = id(request) not in self._executing
        if not is_free:
            self._held[id(request)] = request
        return is_free

    def completed(self, requests: Sequence[InferRequest]) -> list[InferRequest]:
        """Note the end of an execution; return the requests that were put back meanwhile."""
        for request in requests:
            self._executing.pop(id(request), None)
        held = [self._held.pop(id(request), None) for request in requests]
        return [request for request in held if request is not None]


class SequenceDispatcher(Dispatcher):
    """Wakes only the instances with work for them.

    It also adds the sequence tensors of the model to requests, and executes the requests of an iterative model again.
    """

    def __init__(
        self,
        *,
        config: ModelConfig,
        scheduler: Scheduler,
        statistics: ModelStatistics,
        response_queue: ResponseQueue,
        loop: Loop,
        sequence_tensors: SequenceTensors | None = None,
        resources: ModelResources | None = None,
    ) -> None:
        """`sequence_tensors`: the controls and states of the model, if any."""
        super().__init__(
            config=config,
            scheduler=scheduler,
            statistics=statistics,
            response_queue=response_queue,
            loop=loop,
            resources=resources,
        )
        self._sequence_tensors = sequence_tensors
        is_iterative = config.sequence_batching.iterative_sequence
        self._iterative = IterativeRequests(config, scheduler) if is_iterative else None
        self._name = config.name
        self._restart_count = 0
        self._restart_logged_ns = 0

    def enqueue(self, request: InferRequest) -> None:
        """Queue an admitted request. Raises InferError for an invalid sequence request."""
        if self._iterative is not None:
            self._iterative.begin(request)
        if self._sequence_tensors is not None:
            self._sequence_tensors.check(request.header)
        # One look-up in a dictionary, which needs no lock.
        is_restart = request.header.sequence_start and self._scheduler.admits_while_stopping(request)
        super().enqueue(request)
        if is_restart:
            self._log_restart(request)

    def _log_restart(self, request: InferRequest) -> None:
        """Log the restart of a live sequence, as Triton does: two clients may use the same id."""
        self._restart_count += 1
        now_ns = _now_ns()
        if self._restart_logged_ns and now_ns - self._restart_logged_ns < _LOG_INTERVAL_NS:
            return
        self._restart_logged_ns = now_ns
        _log.warning(
            "sequence %s for model '%s' has a conflict. The previous sequence did not end before this sequence "
            "start. Previous sequence will be terminated early. (%d such so far)",
            excerpt(str(request.header.sequence_id)),
            self._name,
            self._restart_count,
        )

    def cancel(self, request: InferRequest) -> bool:
        """Cancel a queued request, and the later requests of its sequence."""
        is_queued = super().cancel(request)
        with self._lock:
            dropped = self._scheduler.expire(_now_ns()) if is_queued else ()
            idle = self._pop_idle()
            self._wake_for_end()
        self._drop(dropped, on_loop=True)
        if idle is not None:
            idle.wake()
        return is_queued

    def close_to_new_sequences(self) -> None:
        """Accept only requests of live sequences from now on."""
        self._is_refusing = True

    def take(self, runner: InstanceRunner) -> tuple[Batch | None, int]:
        """Return the next batch for a free instance, after notifying it of sequences that ended without END."""
        batch, wake_ns = super().take(runner)
        with self._lock:
            ended = self._scheduler.pop_ended(runner.index)
            if batch is not None and self._iterative is not None and self.decoupled_responses is not None:
                self._iterative.took(batch)
        if ended:
            runner.instance.end_sequences(ended)
        return batch, wake_ns

    def go_on(self, done: Sequence[InferRequest], again: Sequence[InferRequest]) -> None:
        """End the sequences of completed requests, and put back the requests to execute again."""
        if self._iterative is None:
            return
        with self._lock:
            dropped = self._iterative.go_on(done, again, _now_ns())
            other = self._pop_idle()
        self._drop(dropped)
        if other is not None:
            other.wake_now()

    def have_executed(self, requests: Sequence[InferRequest]) -> bool:
        """Return whether any of these requests was put back after an execution: only iterative ones are."""
        return self._iterative is not None and any(map(self._iterative.has_executed, requests))

    def replace_runners(self, runners: Sequence[InstanceRunner]) -> list[InstanceRunner]:
        """Continue with these runners. Leaving ones continue their sequences, and get no new ones."""
        with self._lock:
            new = [runner for runner in runners if runner not in self.runners]
            for _ in new:
                self._scheduler.add_instance(_now_ns())
            for runner in self.runners:
                if runner not in runners:
                    self._scheduler.retire_instance(runner.index)
            leaving = self.runners.replace(runners)
        for runner in new:
            runner.start()
        return leaving

    def _may_leave(self, runner: InstanceRunner) -> bool:
        return self._scheduler.is_vacated(runner.index)

    def handle_unhealthy(self, runner: InstanceRunner) -> bool:
        """Handle the queue of an instance that cannot execute; a leaving one does not wait for a restart."""
        serves_on = super().handle_unhealthy(runner)
        if runner in self._leaving and not self.is_stopping:
            self._reject_queued(partial(self._scheduler.drain_instance, runner.index), runner.instance.health)
        return serves_on

    def reject_unexecutable(self, runner: InstanceRunner) -> None:
        """Fail the requests of an unhealthy instance, unless it is being restarted."""
        reason = runner.instance.health
        if reason and not runner.instance.awaits_restart:
            self._reject_queued(partial(self._scheduler.drain_instance, runner.index), reason)

    def join_idle_if_empty(self, runner: InstanceRunner) -> bool:
        """Return False: an instance first checks for ended sequences."""
        return False

    def pop_put_back(self, batch: Batch) -> Sequence[InferRequest]:
        """Return the requests of a decoupled batch that were put back during its execution, for `go_on`."""
        if self._iterative is None:
            return ()
        with self._lock:
            return self._iterative.completed(batch.requests)

    def _on_final(self, request: InferRequest) -> None:
        with self._lock:
            self._scheduler.release(request, _now_ns())
            other = self._pop_idle()
            self._wake_for_end()
        if other is not None:
            other.wake_now()

    def _on_again(self, request: InferRequest) -> None:
        if self._iterative is None:
            return
        with self._lock:
            is_free = self._iterative.may_go_on(request)
        if is_free:
            self.go_on((), [request])

    def _on_timer(self) -> None:
        super()._on_timer()
        with self._lock:
            idle = self._pop_idle()
            self._wake_for_end()
        if idle is not None:
            idle.wake()

    def _may_put_back(self) -> bool:
        # Live sequences are not awaited: their clients no longer find this version.
        return (
            self._iterative is not None
            and self.decoupled_responses is not None
            and self.decoupled_responses.has_requests
        )

    def _wake_for_end(self) -> None:
        """Let the runners end when no work is left for them. The lock is held."""
        if self.is_stopping and not (self._scheduler.pending_count or self._may_put_back()):
            self.runners.wake_all()

    def _pop_idle(self) -> InstanceRunner | None:
        return self.runners.pop_woken(self._scheduler)

    def _rest(self, runner: InstanceRunner) -> int:
        # Requests that expired or began meanwhile may be for other runners.
        self._wake_another()
        if runner in self._leaving and self._may_leave(runner):
            return STOPPED
        wake_ns = super()._rest(runner)
        if wake_ns == STOPPED:
            # Other runners may have joined the idle list while this one had the last request.
            self.runners.wake_all()
        return wake_ns
