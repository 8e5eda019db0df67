"""The dispatcher of one served version: it queues requests and gives batches to the instance runners.

Theory of operation: the wake-up of instances. A runner (a thread, or a callback of the loop) calls `take` when its
instance is free. It gets a batch, or joins the idle list and sleeps until a wake-up or until the time that `take`
returns.

- One lock guards the scheduler (which is pure), the idle list and the list of leaving runners. No response is sent,
  and no instance is called, while it is held.
- Only the thread that removes a runner from the idle list may wake it, exactly once. `withdraw` returns False if
  another thread has removed it; the runner then waits for that wake-up.
- `enqueue` adds the request and removes an idle runner in one critical section, and wakes it after the lock is
  released. `take` finds no batch and joins the list in one critical section. Therefore a request is either visible to
  the `take` of a busy runner, or its `enqueue` finds that runner on the idle list: no wake-up is lost.
- `take` wakes a second runner if requests remain after its batch, because one wake-up may cover many requests.
- A scheduler may skip wake-ups (`enqueue` returns False) only while a woken runner has not yet called `take`, or
  while it holds a batch back; then the returned time is the deadline.
- `Scheduler.wake_up_ns` guards against a woken runner that is late: its timer wakes another one.
- With every instance busy no runner waits for timeouts, so a timer on the loop (`_arm_timer`) expires requests.
- `stop` wakes all idle runners; `take` returns STOPPED when the queue is empty and nothing can be put back.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence

from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.tensors.padding import read_padding
from naiad.core.batch import Batch
from naiad.core.environment.ports import Loop, TimerHandle
from naiad.core.errors import ErrorCode, FailureReason, InferError, cancelled_request, unavailable
from naiad.core.model import AdaptiveState
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse, ResponseHeader
from naiad.engine.admission import stopped
from naiad.engine.instances.instance_resources import ModelResources
from naiad.engine.serving.decoupled import DecoupledResponses
from naiad.engine.serving.dispatch.batch_source import BatchSource
from naiad.engine.serving.dispatch.busy_polling import (
    BusyPolling,
    PollingTrial,
    serial_clients_hint,
    watch_for_serial_clients,
)
from naiad.engine.serving.dispatch.response_queue import OrderedResponseQueue, ResponseQueue
from naiad.engine.serving.dispatch.runners import InstanceRunner, InstanceRunners, join_all
from naiad.scheduler.adaptive import AdaptiveScheduler
from naiad.scheduler.api import Scheduler
from naiad.telemetry.statistics.model_statistics import ModelStatistics
from naiad.telemetry.statistics.part_statistics import ResponseStatistics

_log = logging.getLogger(__name__)
_now_ns = time.monotonic_ns

_NEXT_REQUEST_NS = 600_000
"""Busy polling after a response expects the next request within this time."""
STOPPED = -1
"""Returned by `Dispatcher.take` instead of a time when the runner must end."""


class Dispatcher:
    """Gives accepted requests to runners as the scheduler decides, until it is stopped.

    Here any instance may execute any request; `SequenceDispatcher` is for schedulers with requests bound to
    instances.
    """

    def __init__(
        self,
        *,
        config: ModelConfig,
        scheduler: Scheduler,
        statistics: ModelStatistics,
        response_queue: ResponseQueue,
        loop: Loop,
        resources: ModelResources | None = None,
    ) -> None:
        """`resources`: the resources of the instances, with a rate limiter."""
        self.runners = InstanceRunners()
        self.decoupled_responses: DecoupledResponses | None = None
        """Of a decoupled model: collects the responses of requests that stay open beyond their batch."""
        if config.model_transaction_policy.decoupled:
            self.decoupled_responses = DecoupledResponses(
                response_queue.hand_over, statistics.responses, self._on_final, self._on_again
            )
            loop.call_soon_threadsafe(self.decoupled_responses.bind_loop_thread)
        self.late = self._late_responses(config, response_queue.hand_over)
        """Of an ordinary model: collects the responses after the return of `execute`."""
        self.open_requests = self.decoupled_responses or self.late
        """Requests that stay open beyond their batch, of any kind of model."""
        self.request_busy_polling = BusyPolling(loop, _NEXT_REQUEST_NS, PollingTrial())
        """For runners on the loop: begins when the last request is completed, and ends with the next."""
        self._scheduler = scheduler
        self._statistics = statistics
        self._error_header = ResponseHeader(statistics.model, statistics.version, ())
        self._response_queue = response_queue
        self._ordered = response_queue if isinstance(response_queue, OrderedResponseQueue) else None
        self._loop = loop
        self._resources = resources
        self._source = BatchSource(scheduler, resources)
        self._serial_clients = watch_for_serial_clients(config)
        self._lock = threading.Lock()
        self._idle, self._leaving = self.runners.idle, self.runners.leaving
        self._executing_count = 0
        self.is_stopping = self._is_refusing = False
        """`is_stopping`: the version ends; `_is_refusing`: only requests of live sequences are accepted."""
        self._timer: TimerHandle | None = None
        self._timer_ns = 0
        self._wake_up: TimerHandle | None = None
        """Timer of the scheduler's `wake_up_ns`, or of an earlier one."""

    def _late_responses(self, config: ModelConfig, deliver: Callable[..., None]) -> DecoupledResponses | None:
        """Return the collector of late responses; None for models with batches that complete with all responses.

        A sequence continues with the state in a response, and padding is removed from a whole batch.
        """
        if self.decoupled_responses or config.HasField("sequence_batching") or read_padding(config) is not None:
            return None
        # Triton: responses are counted one by one for decoupled models only.
        return DecoupledResponses(deliver, ResponseStatistics(), self._on_final)

    # --- called on the event loop -------------------------------------------------------------------------------

    def enqueue(self, request: InferRequest) -> None:
        """Queue an admitted request. Raises InferError(UNAVAILABLE) if it is rejected."""
        # hot: bench/micro_engine.py
        if self.request_busy_polling.is_due:
            self.request_busy_polling.end()
        idle = None
        with self._lock:
            if self._is_refusing and not self._scheduler.admits_while_stopping(request):
                raise stopped(request.id)
            is_worth_waking = self._scheduler.enqueue(request, request.arrival_ns)
            if self._ordered is not None:
                self._ordered.expect(request)
            if is_worth_waking and self._idle:
                idle = self._pop_idle()
            expire_ns = self._scheduler.expire_ns() if self._scheduler.has_timeouts else 0
            wake_up_ns = self._scheduler.wake_up_ns if self._wake_up is None else 0
        if idle is not None:
            idle.wake()
        if expire_ns:
            self._arm_timer(expire_ns)
        if wake_up_ns:
            self._arm_wake_up(wake_up_ns)

    def cancel(self, request: InferRequest) -> bool:
        """Cancel a queued request, and count it; return False if it has left the queue."""
        with self._lock:
            is_queued = self._scheduler.cancel(request)
        self._statistics.record_cancelled(in_queue=is_queued)
        if is_queued:
            self._drop([(request, cancelled_request())], on_loop=True)
        return is_queued

    def _arm_timer(self, expire_ns: int) -> None:
        """Set the timer that expires requests while every instance is busy."""
        if self._timer is not None:
            if self._timer_ns <= expire_ns:
                return
            self._timer.cancel()
        self._timer_ns = expire_ns
        self._timer = self._loop.call_later(max(0.0, (expire_ns - _now_ns()) / 1e9), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        with self._lock:
            dropped = self._scheduler.expire(_now_ns())
            expire_ns = self._scheduler.expire_ns()
        self._drop(dropped, on_loop=True)
        if expire_ns:
            self._arm_timer(expire_ns)

    def _arm_wake_up(self, wake_up_ns: int) -> None:
        self._wake_up = self._loop.call_later(max(0.0, (wake_up_ns - _now_ns()) / 1e9), self._on_wake_up)

    def _on_wake_up(self) -> None:
        """Wake another instance if the woken one is late, or set the timer for the next check."""
        self._wake_up = None
        idle = None
        with self._lock:
            wake_up_ns = self._scheduler.wake_up_ns
            if 0 < wake_up_ns <= _now_ns():
                idle, wake_up_ns = self._pop_idle(), 0
        if idle is not None:
            idle.wake()
        if wake_up_ns:
            self._arm_wake_up(wake_up_ns)

    # --- called on any thread -----------------------------------------------------------------------------------

    @property
    def in_flight_count(self) -> int:
        """Requests queued, executing, or open beyond their batch."""
        open_count = self.open_requests.open_count if self.open_requests is not None else 0
        return self._scheduler.pending_count + self._executing_count + open_count

    def has_pending(self) -> bool:
        """Return whether requests are queued; needs no lock."""
        return self._scheduler.pending_count > 0

    @property
    def oldest_ns(self) -> int:
        """Arrival of the oldest queued request; 0 for an empty queue."""
        with self._lock:
            return self._scheduler.oldest_ns()

    @property
    def adaptive_state(self) -> AdaptiveState | None:
        """State of an adaptive batcher; None with any other scheduler."""
        if not isinstance(self._scheduler, AdaptiveScheduler):
            return None
        with self._lock:
            return self._scheduler.state()

    def instance_of(self, request: InferRequest) -> int | None:
        """Return the number of the only instance that could execute a request; None if every instance may."""
        with self._lock:
            return self._scheduler.instance_of(request)

    def start(self, runners: Sequence[InstanceRunner]) -> None:
        """Start the first runners, one for each instance of the scheduler."""
        self.runners.replace(runners)
        if self._resources is not None:
            self._resources.bind(runners)
        for runner in runners:
            runner.start()

    def replace_runners(self, runners: Sequence[InstanceRunner]) -> list[InstanceRunner]:
        """Continue with these runners, some of which are running; return the leaving ones.

        Accepted requests stay queued. Leaving runners take no more batches; `forget_runners` must be called once they
        have left.
        """
        with self._lock:
            new = [runner for runner in runners if runner not in self.runners]
            leaving = self.runners.replace(runners)
            self._scheduler.change_instance_count(len(runners))
        for runner in new:
            runner.start()
        return leaving

    def _may_leave(self, runner: InstanceRunner) -> bool:
        """Return whether a leaving runner has nothing left to take. The lock is held."""
        return True

    def has_remaining_work(self, runner: InstanceRunner) -> bool:
        """Return whether a leaving runner has more to do than to finish its batch."""
        if self.open_requests is not None and self.open_requests.is_owner(runner.instance):
            return True
        with self._lock:
            return not self._may_leave(runner)

    def forget_runners(self, runners: Collection[InstanceRunner]) -> None:
        """Remove runners that have left."""
        with self._lock:
            self.runners.forget(runners)

    def close_to_new_sequences(self) -> None:
        """Accept only requests of live sequences from now on, for a sequence model."""

    def stop(self, deadline_s: float) -> bool:
        """Reject new requests and wait until a monotonic time for the runners to complete the accepted ones.

        Returns whether they did; requests still queued fail with UNAVAILABLE. Blocks, so it must not run on the loop.
        """
        with self._lock:
            self.is_stopping = self._is_refusing = True
            self.runners.wake_all()
        if self._resources is not None:
            for runner in self.runners:
                if self._resources.withdraw(runner.index):
                    runner.wake_now()
        have_ended = join_all([*self.runners, *list(self._leaving)], deadline_s)
        with self._lock:
            left = self._scheduler.drain()
            self._scheduler.close()
        self._drop([(request, stopped(request.id)) for request in left])
        return have_ended and not left

    def _drop(self, dropped: Sequence[tuple[InferRequest, InferError]], *, on_loop: bool = False) -> None:
        """Fail requests that left the queue."""
        if not dropped:
            return
        now_ns = _now_ns()
        for request, error in dropped:
            self._statistics.record_dropped(request, error.reason or FailureReason.OTHER, now_ns)
            error.has_begun = self.have_executed((request,))
            # A queue may keep a stale entry for a while; release the inputs now.
            request.data = ()
            if self.decoupled_responses is not None:
                self.decoupled_responses.forget(request)
            self._response_queue.hand_over(
                [request], [InferResponse(self._error_header, error=error)], on_loop=on_loop
            )

    # --- called by the runners ----------------------------------------------------------------------------------

    def take(self, runner: InstanceRunner) -> tuple[Batch | None, int]:
        """Return the next batch for a free instance.

        Without a batch the runner has joined the idle list, and the second value is the monotonic deadline of its
        sleep (0 for none, STOPPED after the last work).
        """
        # hot: bench/micro_engine.py
        wake_ns = 0
        other = None
        with self._lock:
            if runner in self._idle:
                # It calls without having been woken: otherwise it would be on the list twice, or while it executes,
                # and would take a wake-up from another runner.
                self._idle.remove(runner)
            if self._leaving and runner in self._leaving and self._may_leave(runner):
                # Its wake-up was for a request that another runner must take.
                self._wake_another()
                return None, STOPPED
            now_ns = _now_ns()
            batch, dropped = self._source.take(now_ns, runner.index)
            if batch is None:
                wake_ns = self._rest(runner)
                runner.free_ns = runner.free_ns or now_ns
            else:
                batch.free_ns, runner.free_ns = runner.free_ns, 0
                if self.decoupled_responses is not None:
                    self.decoupled_responses.begin(batch, runner.instance)
                else:
                    batch.late = self.late
                    self._executing_count += len(batch.requests)
                other = self._pop_idle() if self._idle else None
        if dropped:
            self._drop(dropped)
        if other is not None:
            other.wake_now()
        return batch, wake_ns

    def _pop_idle(self) -> InstanceRunner | None:
        """Remove a runner from the idle list if requests are queued. The lock is held."""
        return self._idle.pop() if self._idle and self._scheduler.pending_count else None

    def _wake_another(self) -> None:
        other = self._pop_idle()
        if other is not None:
            other.wake_now()

    def _rest(self, runner: InstanceRunner) -> int:
        """Return the result of `take` for a runner without a batch, which joins the idle list. The lock is held."""
        if self._resources is not None and self._resources.is_waiting(runner.index):
            # Another instance, with other resources or none, may execute the queued requests.
            self._wake_another()
            return 0
        if self.is_stopping and not (self._scheduler.pending_count or self._may_put_back()):
            return STOPPED
        self._idle.append(runner)
        return self._scheduler.wake_ns(runner.index)

    def _may_put_back(self) -> bool:
        """Return whether requests outside the queue may be put back. The lock is held."""
        return False

    def join_idle(self, runner: InstanceRunner) -> bool:
        """Add a starting runner to the idle list; return True if there is work, without adding it."""
        with self._lock:
            if self.is_stopping or self._scheduler.pending_count:
                return True
            self._idle.append(runner)
        return False

    def join_idle_if_empty(self, runner: InstanceRunner) -> bool:
        """Add a runner to the idle list if the queue is empty; return False if it must call `take` first."""
        if self._resources is not None:
            return False
        with self._lock:
            if self._scheduler.pending_count or self.is_stopping or self._leaving:
                return False
            self._idle.append(runner)
        return True

    def withdraw(self, runner: InstanceRunner) -> bool:
        """Remove a runner from the idle list; return False if another thread has done so and is about to wake it."""
        with self._lock:
            return self.runners.withdraw(runner)

    def handle_unhealthy(self, runner: InstanceRunner) -> bool:
        """Handle the queue of an instance that cannot execute; return False if its runner must end.

        Requests wait for an instance that is being restarted, within their timeouts. Requests that no instance can
        execute soon fail here, since no runner takes them.
        """
        if self._resources is not None:
            self._resources.release(runner.index)
        with self._lock:
            # The wake-up may have been for a request that an idle instance can execute.
            self.runners.withdraw(runner)
            self._wake_another()
        self.reject_unexecutable(runner)
        return not (self.is_stopping or runner in self._leaving)

    def reject_unexecutable(self, runner: InstanceRunner) -> None:
        """Fail the requests that only an unhealthy instance could execute, unless it is being restarted."""
        reason = self.runners.health
        if reason and not self.runners.await_restart:
            self._reject_queued(self._scheduler.drain, reason)

    def _reject_queued(self, drain: Callable[[], list[InferRequest]], reason: str) -> None:
        """Fail the requests that `drain` takes from the scheduler, because an instance cannot execute them."""
        with self._lock:
            left = drain()
        self._drop([(r, InferError(ErrorCode.UNAVAILABLE, reason, reason=FailureReason.BACKEND)) for r in left])

    def abort(self, reason: str) -> None:
        """Fail all queued and executing requests with UNAVAILABLE: the server exits. On the loop."""
        with self._lock:
            self.is_stopping = self._is_refusing = True
            left = self._scheduler.drain()
        self._drop([(request, unavailable(reason)) for request in left], on_loop=True)
        for runner in (*self.runners, *list(self._leaving)):
            runner.abort(InferError(ErrorCode.UNAVAILABLE, reason, reason=FailureReason.OTHER))
        if self.open_requests is not None:
            self.open_requests.bind_loop_thread()
            self.open_requests.abandon(InferResponse(self._error_header, error=unavailable(reason)))

    def have_executed(self, requests: Sequence[InferRequest]) -> bool:
        """Return whether an instance has executed any of these queued or taken requests before."""
        return False

    def put_back(self, batch: Batch) -> bool:
        """Queue the requests of a batch again that its instance has not begun; return False if that is impossible.

        At most once per request: only for batches that certainly were not executed.
        """
        batch.exec_end_ns = now_ns = _now_ns()
        refused: list[tuple[InferRequest, InferError]] = []
        with self._lock:
            # Requests of a sequence keep their order and their instance.
            if self.is_stopping or self._scheduler.is_by_instance:
                return False
            if self._scheduler.learns:
                self._scheduler.record_execution(batch, failed=True)
            if self.decoupled_responses is None:
                self._executing_count -= len(batch.requests)
            for request in batch.requests:
                if self.decoupled_responses is not None:
                    self.decoupled_responses.withdraw(request)
                try:
                    if request.cancelled:
                        raise cancelled_request()
                    self._scheduler.enqueue(request, now_ns)
                except InferError as error:
                    refused.append((request, error))
        self._drop(refused)
        self._loop.call_soon_threadsafe(self._look_again)
        return True

    def _look_again(self) -> None:
        """Wake an instance for requests that were put back, and set the timer of their timeouts."""
        with self._lock:
            idle = self._pop_idle()
            expire_ns = self._scheduler.expire_ns() if self._scheduler.has_timeouts else 0
        if idle is not None:
            idle.wake()
        if expire_ns:
            self._arm_timer(expire_ns)

    def note_executed(self, batch: Batch, *, failed: bool = False) -> None:
        """Note that the instance of a taken batch is free again; called once per batch."""
        # hot: bench/micro_engine.py
        is_hinted = False
        with self._lock:
            if self._serial_clients is not None:
                is_hinted = self._serial_clients.observe(self._executing_count + self._scheduler.pending_count)
            if self.decoupled_responses is None:
                self._executing_count -= len(batch.requests)
            if self._scheduler.learns:
                self._scheduler.record_execution(batch, failed=failed)
        if is_hinted:
            self._serial_clients = None
            _log.info(serial_clients_hint(self._statistics.model))

    # --- for requests that complete after their batch; called on any thread ---------------------------------------

    def go_on(self, done: Sequence[InferRequest], again: Sequence[InferRequest]) -> None:
        """End the sequences of completed requests, and put back the requests to execute again."""

    def pop_put_back(self, batch: Batch) -> Sequence[InferRequest]:
        """Return the requests of a batch that were put back during its execution, for `go_on`."""
        return ()

    def _on_final(self, request: InferRequest) -> None:
        """Note the final response of a decoupled model's request."""

    def _on_again(self, request: InferRequest) -> None:
        """Put back a request of a decoupled model for another execution."""
