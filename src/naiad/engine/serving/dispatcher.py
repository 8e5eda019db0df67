"""The waiting requests of one served version, and who takes them.

Rules of this file: one lock guards the scheduler, which is pure, and the lists of drivers. While it is held no
request is answered and no instance is asked to do anything.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence

from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.padding import read_padding
from naiad.core.batch import Batch
from naiad.core.errors import ErrorCode, FailureReason, InferError, unavailable
from naiad.core.model import AdaptiveState
from naiad.core.ports import Loop, TimerHandle
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse, ResponseHeader
from naiad.engine.admission import prefix
from naiad.engine.resources import ModelResources
from naiad.engine.serving.busy_polling import BusyPolling, serial_clients_hint, watch_for_serial_clients
from naiad.engine.serving.decoupled import DecoupledResponses
from naiad.engine.serving.responses import OrderedResponseQueue, ResponseQueue
from naiad.engine.serving.runners import InstanceRunner, InstanceRunners, join_all
from naiad.scheduler.adaptive.batcher import AdaptiveScheduler
from naiad.scheduler.api import Dropped, Scheduler
from naiad.telemetry.statistics.model import ModelStatistics
from naiad.telemetry.statistics.responses import ResponseStatistics

_log = logging.getLogger(__name__)
_now_ns = time.monotonic_ns

_NEXT_REQUEST_NS = 600_000
"""A request that follows an answer within this is waited for awake."""
_LATE_NS = 10_000_000
"""Requests that have waited for less are not looked at once more before they are executed."""
STOPPED = -1
"""What `Dispatcher.take` says instead of a time to a driver that is to end."""


class Dispatcher:
    """Gives accepted requests to drivers as the scheduler decides, until it is stopped.

    Here any instance may execute any request; `SequenceDispatcher` is for schedulers where that is not so.
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
        """`resources` is what instances need to execute, with a rate limiter."""
        self.runners = InstanceRunners()
        self.decoupled_responses: DecoupledResponses | None = None
        """Of a decoupled model: takes the responses of requests that stay open beyond their batch."""
        if config.model_transaction_policy.decoupled:
            self.decoupled_responses = DecoupledResponses(
                response_queue.hand_over, statistics.responses, self._on_final, self._on_again
            )
        self.late = (
            None if self.decoupled_responses is not None else self._late_responses(config, response_queue.hand_over)
        )
        """Of an ordinary model: takes the responses that come after `execute` has returned."""
        self.open_requests = self.decoupled_responses or self.late
        """Requests that stay open beyond their batch, whatever the model."""
        if self.decoupled_responses is not None:
            loop.call_soon_threadsafe(self.decoupled_responses.bind_loop_thread)
        self.request_busy_polling = BusyPolling(loop, _NEXT_REQUEST_NS)
        """For drivers on the loop: begins when the last request is answered, and ends with the next."""
        self._scheduler = scheduler
        self._statistics = statistics
        self._error_header = ResponseHeader(statistics.model, statistics.version, ())
        self._response_queue = response_queue
        self._ordered = response_queue if isinstance(response_queue, OrderedResponseQueue) else None
        self._loop = loop
        self._resources = resources
        self._serial_clients = watch_for_serial_clients(config)
        self._lock = threading.Lock()
        self._idle, self._leaving = self.runners.idle, self.runners.leaving
        self._executing_count = 0
        self._is_stopping = self._is_refusing = False
        """`_is_refusing`: whether only requests are taken that go on with a live sequence."""
        self._timer: TimerHandle | None = None
        self._timer_ns = 0
        self._wake_up: TimerHandle | None = None
        """Of the scheduler's `nudge_ns`, or of one before it."""

    def _late_responses(self, config: ModelConfig, deliver: Callable[..., None]) -> DecoupledResponses | None:
        """Return what takes late responses; None for models whose batches are only complete with all responses.

        A sequence goes on with the state that a response carries, and padding is taken off a whole batch.
        """
        if config.HasField("sequence_batching") or read_padding(config) is not None:
            return None
        # Triton: responses are counted one by one for decoupled models only.
        return DecoupledResponses(deliver, ResponseStatistics(), self._on_final)

    # --- called on the event loop -------------------------------------------------------------------------------

    def enqueue(self, request: InferRequest) -> None:
        """Take in a request that was admitted. Raises InferError(UNAVAILABLE) when it is refused all the same."""
        # hot: bench/micro_engine.py
        if self.request_busy_polling.is_due:
            self.request_busy_polling.end()
        idle = None
        with self._lock:
            if self._is_refusing and not self._scheduler.admits_while_stopping(request):
                raise _stopped(request)
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
        """Answer a request if it still waits, and count that it was cancelled; False when it has left already."""
        with self._lock:
            is_queued = self._scheduler.cancel(request)
        self._statistics.record_cancelled(in_queue=is_queued)
        if is_queued:
            error = InferError(ErrorCode.CANCELLED, "", reason=FailureReason.CANCELED)
            self._drop([(request, error)], on_loop=True)
        return is_queued

    def _arm_timer(self, expire_ns: int) -> None:
        """See to it that timeouts are noticed while every instance is busy."""
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
        """Wake an instance for what was left to one that is late, or look again when the next one would be."""
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
        """Requests that wait, execute, or are open beyond their batch."""
        open_count = self.open_requests.open_count if self.open_requests is not None else 0
        return self._scheduler.pending_count + self._executing_count + open_count

    def has_pending(self) -> bool:
        """Tell whether requests wait for an instance; needs no lock."""
        return self._scheduler.pending_count > 0

    @property
    def oldest_ns(self) -> int:
        """Arrival of the oldest request that waits; 0 when none does."""
        with self._lock:
            return self._scheduler.oldest_ns()

    @property
    def adaptive_state(self) -> AdaptiveState | None:
        """What an adaptive batcher has learned; None with any other scheduler."""
        if not isinstance(self._scheduler, AdaptiveScheduler):
            return None
        with self._lock:
            return self._scheduler.state()

    def instance_of(self, request: InferRequest) -> int | None:
        """Return the number of the only instance that could execute a request; None when any may."""
        with self._lock:
            return self._scheduler.instance_of(request)

    def start(self, runners: Sequence[InstanceRunner]) -> None:
        """Have the first drivers begin to take batches; one for each instance that the scheduler counts on."""
        self.runners.replace(runners)
        if self._resources is not None:
            self._resources.bind(runners)
        for runner in runners:
            runner.start()

    def replace_runners(self, runners: Sequence[InstanceRunner]) -> list[InstanceRunner]:
        """Go on with these drivers, of which some take batches already; return those that leave.

        Accepted requests wait on. Who leaves takes no batch any more; `forget_drivers` is to be called when it has
        left.
        """
        with self._lock:
            new = [runner for runner in runners if runner not in self.runners]
            leaving = self.runners.replace(runners)
            self._scheduler.change_instance_count(len(runners))
        for runner in new:
            runner.start()
        return leaving

    def _may_leave(self, runner: InstanceRunner) -> bool:
        """Tell whether a driver that is leaving has nothing left to take. The lock is held."""
        return True

    def lingers(self, runner: InstanceRunner) -> bool:
        """Tell whether a driver that is leaving has more to do than to finish its batch."""
        if self.open_requests is not None and self.open_requests.is_owner(runner.instance):
            return True
        with self._lock:
            return not self._may_leave(runner)

    @property
    def is_stopping(self) -> bool:
        """Whether the version is being stopped."""
        return self._is_stopping

    def forget_runners(self, runners: Collection[InstanceRunner]) -> None:
        """Let go of drivers that were leaving and have left."""
        with self._lock:
            self.runners.forget(runners)

    def close_to_new_sequences(self) -> None:
        """Take only requests of live sequences from now on, if this is a model of sequences."""

    def stop(self, deadline_s: float) -> bool:
        """Refuse new requests and wait until a monotonic time for the drivers to do what was accepted.

        Returns whether they did; what nobody took is answered UNAVAILABLE. Blocks, and so is not called on the loop.
        """
        with self._lock:
            self._is_stopping = self._is_refusing = True
            self.runners.wake_all()
        if self._resources is not None:
            for runner in self.runners:
                if self._resources.withdraw(runner.index):
                    runner.wake_now()
        have_ended = join_all([*self.runners, *list(self._leaving)], deadline_s)
        with self._lock:
            left = self._scheduler.drain()
            self._scheduler.close()
        self._drop([(request, _stopped(request)) for request in left])
        return have_ended and not left

    def _drop(self, dropped: Sequence[tuple[InferRequest, InferError]], *, on_loop: bool = False) -> None:
        """Answer requests that left the queue without being executed."""
        if not dropped:
            return
        now_ns = _now_ns()
        for request, error in dropped:
            self._statistics.record_dropped(request, error.reason or FailureReason.OTHER, now_ns)
            # A queue may keep its entry for a while; the inputs need not stay in memory for that.
            request.data = ()
            if self.decoupled_responses is not None:
                self.decoupled_responses.forget(request)
            self._response_queue.hand_over(
                [request], [InferResponse(self._error_header, error=error)], on_loop=on_loop
            )

    # --- called by the drivers ----------------------------------------------------------------------------------

    def take(self, runner: InstanceRunner) -> tuple[Batch | None, int]:
        """Return the next batch for a free instance.

        Without one the driver has joined the idle, and the second value is the monotonic time at which it should ask
        again if nobody wakes it before (0 for never, STOPPED when nothing is left to do and nothing will be).
        """
        # hot: bench/micro_engine.py
        wake_ns = 0
        other = None
        with self._lock:
            if runner in self._idle:
                # It looks without having been woken: twice on the list, or there while it executes, it would be woken
                # in vain in place of another.
                self._idle.remove(runner)
            if self._leaving and runner in self._leaving and self._may_leave(runner):
                # It was woken for a request that another one has to look at.
                self._wake_another()
                return None, STOPPED
            now_ns = _now_ns()
            scheduler = self._scheduler
            dropped = scheduler.expire(now_ns) if scheduler.has_timeouts else ()
            if self._resources is None:
                batch = scheduler.take(now_ns, runner.index)
            else:
                batch = self._resources.take(scheduler, now_ns, runner.index)
            if batch is not None and batch.requests[0].arrival_ns < now_ns - _LATE_NS:
                batch, overdue = self._without_overdue(batch, now_ns, runner)
                dropped = (*dropped, *overdue)
            if scheduler.dropped:
                dropped = (*dropped, *scheduler.pop_dropped())
            if batch is None:
                wake_ns = self._rest(runner)
            else:
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

    def _without_overdue(
        self, batch: Batch | None, now_ns: int, runner: InstanceRunner
    ) -> tuple[Batch | None, Sequence[Dropped]]:
        """Return a batch, or a later one, without the requests whose clients wait no longer, and those requests.

        Timers drop them too, but a loop that has much to do is late for its timers. The lock is held.
        """
        dropped: list[Dropped] = []
        if self._scheduler.is_by_instance:
            return batch, dropped  # A sequence goes on with each of its requests, or not at all.
        while batch is not None:
            overdue = [request for request in batch.requests if 0 < request.deadline_ns <= now_ns]
            if not overdue:
                break
            dropped += [Dropped(request, _overdue()) for request in overdue]
            batch.requests = [request for request in batch.requests if request not in overdue]
            if batch.requests:
                batch.size -= sum(request.batch_size for request in overdue)
                break
            if self._scheduler.learns:
                batch.exec_start_ns = batch.exec_end_ns = now_ns
                self._scheduler.record_execution(batch, failed=True)
            if self._resources is None:
                batch = self._scheduler.take(now_ns, runner.index)
            else:
                batch = self._resources.take(self._scheduler, now_ns, runner.index)
        return batch, dropped

    def _pop_idle(self) -> InstanceRunner | None:
        """Take a driver off the list of the idle for what waits, if there is one. The lock is held."""
        return self._idle.pop() if self._idle and self._scheduler.pending_count else None

    def _wake_another(self) -> None:
        other = self._pop_idle()
        if other is not None:
            other.wake_now()

    def _rest(self, runner: InstanceRunner) -> int:
        """Return what `take` says to a driver that has nothing to do, which joins the idle. The lock is held."""
        if self._resources is not None and self._resources.is_waiting(runner.index):
            # Another instance, which needs other things or none, may do what this one cannot do now.
            self._wake_another()
            return 0
        if self._is_stopping and not (self._scheduler.pending_count or self._may_put_back()):
            return STOPPED
        self._idle.append(runner)
        return self._scheduler.wake_ns(runner.index)

    def _may_put_back(self) -> bool:
        """Tell whether requests that no driver has may come to wait again. The lock is held."""
        return False

    def join_idle(self, runner: InstanceRunner) -> bool:
        """Put a driver that has begun on the list of the idle; True when there is work, and it is not on it."""
        with self._lock:
            if self._is_stopping or self._scheduler.pending_count:
                return True
            self._idle.append(runner)
        return False

    def rest_at_once(self, runner: InstanceRunner) -> bool:
        """Put a runner on the list of the idle if nothing waits; False if it has to look for a batch first."""
        if self._resources is not None:
            return False
        with self._lock:
            if self._scheduler.pending_count or self._is_stopping or self._leaving:
                return False
            self._idle.append(runner)
        return True

    def withdraw(self, runner: InstanceRunner) -> bool:
        """Take a driver off the list of the idle; False when someone else has done so and is about to wake it."""
        with self._lock:
            return self.runners.withdraw(runner)

    def tend_unhealthy(self, runner: InstanceRunner) -> bool:
        """See to the queue while an instance cannot execute; False when its driver is to end.

        Requests wait for an instance that is being restarted, as long as their timeouts and it allow. What no
        instance will execute soon is answered here, since no driver takes it.
        """
        if self._resources is not None:
            self._resources.release(runner.index)
        with self._lock:
            # It may have been woken for a request that another instance can execute, which sleeps.
            self.runners.withdraw(runner)
            self._wake_another()
        self.refuse_hindered(runner)
        return not (self._is_stopping or runner in self._leaving)

    def refuse_hindered(self, runner: InstanceRunner) -> None:
        """Answer what only an instance that cannot execute could, unless it is being restarted."""
        reason = self._hindrance(runner)
        if reason and not self._awaits_restart(runner):
            with self._lock:
                left = self._drain_for(runner)
            self._drop([(r, InferError(ErrorCode.UNAVAILABLE, reason, reason=FailureReason.BACKEND)) for r in left])

    def abort(self, reason: str) -> None:
        """Answer all that waits or executes with UNAVAILABLE: the server exits. On the loop."""
        with self._lock:
            self._is_stopping = self._is_refusing = True
            left = self._scheduler.drain()
        self._drop([(request, unavailable(reason)) for request in left], on_loop=True)
        for runner in (*self.runners, *list(self._leaving)):
            runner.abort(InferError(ErrorCode.UNAVAILABLE, reason, reason=FailureReason.OTHER))
        if self.open_requests is not None:
            self.open_requests.bind_loop_thread()
            self.open_requests.abandon(InferResponse(self._error_header, error=unavailable(reason)))

    def _hindrance(self, runner: InstanceRunner) -> str:
        """Return why nobody can execute what an unhealthy instance cannot; empty when another one can."""
        return self.runners.health

    def _awaits_restart(self, runner: InstanceRunner) -> bool:
        """Tell whether an instance will soon execute what an unhealthy one cannot."""
        return self.runners.await_restart

    def put_back(self, batch: Batch) -> bool:
        """Have the requests of a batch wait again that its instance has not begun; False when they cannot.

        At most once: only for batches of which it is certain that nothing was executed.
        """
        batch.exec_end_ns = now_ns = _now_ns()
        refused: list[tuple[InferRequest, InferError]] = []
        with self._lock:
            if self._is_stopping or not self._may_execute_elsewhere():
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
                        raise InferError(ErrorCode.CANCELLED, "", reason=FailureReason.CANCELED)
                    self._scheduler.enqueue(request, now_ns)
                except InferError as error:
                    refused.append((request, error))
        self._drop(refused)
        self._loop.call_soon_threadsafe(self._look_again)
        return True

    def _may_execute_elsewhere(self) -> bool:
        """Tell whether any instance may execute any request."""
        return True

    def _look_again(self) -> None:
        """Wake an instance for requests that were put back, and have their timeouts noticed."""
        with self._lock:
            idle = self._pop_idle()
            expire_ns = self._scheduler.expire_ns() if self._scheduler.has_timeouts else 0
        if idle is not None:
            idle.wake()
        if expire_ns:
            self._arm_timer(expire_ns)

    def _drain_for(self, runner: InstanceRunner) -> list[InferRequest]:
        """Return what nobody can execute then, which waits no more. The lock is held."""
        return self._scheduler.drain()

    def note_executed(self, batch: Batch, *, failed: bool = False) -> None:
        """Note that the instance of a batch that was taken is free again; called once for each."""
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

    # --- for requests that are over later than their batch; called on any thread ----------------------------------

    def go_on(self, done: Sequence[InferRequest], again: Sequence[InferRequest]) -> None:
        """Let sequences end whose requests are done, and put those back that are to be executed again."""

    def pop_put_back(self, batch: Batch) -> Sequence[InferRequest]:
        """Return those requests of a batch that were put back while it was executed, for `go_on`."""
        return ()

    def _on_final(self, request: InferRequest) -> None:
        """Take note of the final response of a decoupled model's request."""

    def _on_again(self, request: InferRequest) -> None:
        """Put a request of a decoupled model back that is to be executed again."""


def _overdue() -> InferError:
    return InferError(
        ErrorCode.DEADLINE_EXCEEDED, "the deadline passed while it waited", reason=FailureReason.CANCELED
    )


def _stopped(request: InferRequest) -> InferError:
    return unavailable(
        f"{prefix(request.id)}Server is stopping, scheduler for model has stopped accepting new inference requests"
    )
