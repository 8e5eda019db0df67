"""One served model version: its scheduler, its instances, and the threads in which these execute."""

import logging
import threading
import time
import traceback
from collections.abc import Callable, Sequence

from naiad.backend.api import Instance, Model
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.batch import Batch
from naiad.core.errors import ErrorCode, FailureReason, InferError, internal, unavailable
from naiad.core.ports import Loop, TimerHandle
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse, ResponseHeader
from naiad.engine.admission import Admission, AdmissionRules, prefix
from naiad.engine.delivery import Delivery
from naiad.scheduler.api import Scheduler
from naiad.scheduler.ordering import OrderedRelease
from naiad.telemetry.statistics import ModelStatistics

_log = logging.getLogger(__name__)
_now_ns = time.monotonic_ns

_HEALTH_POLL_S = 0.05
"""How often the thread of an instance that cannot execute looks whether it can again."""


class ServedModel:
    """A loaded version that takes requests until it is stopped.

    The scheduler is pure and guarded by one lock; an instance's thread takes its next batch itself, so no loop round
    trip lies between two batches, and a thread that finds nothing sleeps on a lock of its own until it is released.
    """

    def __init__(  # noqa: PLR0913 - the parts that the loader has made
        self,
        *,
        name: str,
        version: int,
        config: ModelConfig,
        backend_model: Model,
        instances: Sequence[Instance],
        scheduler: Scheduler,
        statistics: ModelStatistics,
        loop: Loop,
        labels: "dict[str, Sequence[str]] | None" = None,
    ) -> None:
        self.name = name
        self.version = str(version)
        self.config = config
        self.statistics = statistics
        self.labels = labels or {}
        """Output name to class labels, one a line of the label file."""
        self.is_decoupled = config.model_transaction_policy.decoupled
        self.load_duration_ns = 0
        """Set by the loader."""
        self._backend_model = backend_model
        self._instances = list(instances)
        self._scheduler = scheduler
        self._loop = loop
        self._rules = AdmissionRules(config)
        self._delivery = Delivery(loop)
        self._error_header = ResponseHeader(name, self.version, ())
        keeps_order = config.dynamic_batching.preserve_ordering and len(self._instances) > 1
        self._ordered = OrderedRelease() if keeps_order else None
        self._lock = threading.Lock()
        self._idle: list[threading.Lock] = []
        self._executing = 0
        self._stopping = False
        self._timer: TimerHandle | None = None
        self._timer_ns = 0
        self._threads = [
            threading.Thread(target=self._run_instance, args=(instance,), name=f"{name}:{self.version}", daemon=True)
            for instance in self._instances
        ]
        for thread in self._threads:
            thread.start()

    # --- called on the event loop -------------------------------------------------------------------------------

    def submit(self, request: InferRequest) -> None:
        """Admit and enqueue a request. Raises InferError when it is refused at the door."""
        # hot: bench/micro_engine.py
        admission = request.header.admission
        if type(admission) is not Admission or admission.model is not self:
            admission = request.header.admission = self._rules.admit(request, self)
        if admission.strings or tuple(map(len, request.data)) != admission.data_sizes:
            self._rules.check_sizes(request, admission)
        request.batch_size = admission.batch_size
        request.shape_key = admission.shape_key
        request.model = self
        waker = None
        with self._lock:
            if self._stopping:
                raise self._stopped(request)
            worth_waking = self._scheduler.enqueue(request, request.arrival_ns)
            if self._ordered is not None:
                self._ordered.expect(request)
            if worth_waking and self._idle:
                waker = self._idle.pop()
            expire_ns = self._scheduler.expire_ns() if self._scheduler.has_timeouts else 0
        if waker is not None:
            # Not at once: the loop first reads what else has come, so that the instance finds a fuller batch and the
            # two threads do not fight over the GIL for every request (32 connections: 47 us a request down to 32).
            self._loop.call_soon(waker.release)
        if expire_ns:
            self._arm_timer(expire_ns)

    def cancel(self, request: InferRequest) -> None:
        """Drop a request that still waits; a request that executes is only marked."""
        request.cancelled = True
        with self._lock:
            queued = self._scheduler.cancel(request)
        if queued:
            error = InferError(ErrorCode.CANCELLED, "", reason=FailureReason.CANCELED)
            self._drop([(request, error)])

    def _stopped(self, request: InferRequest) -> InferError:
        return unavailable(
            f"{prefix(request.id)}Server is stopping, scheduler for model has stopped accepting new inference "
            "requests"
        )

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
        self._drop(dropped)
        if expire_ns:
            self._arm_timer(expire_ns)

    # --- called on any thread -----------------------------------------------------------------------------------

    @property
    def pending_count(self) -> int:
        """Requests that wait for an instance."""
        return self._scheduler.pending_count

    @property
    def in_flight_count(self) -> int:
        """Requests that wait or execute."""
        return self._scheduler.pending_count + self._executing

    @property
    def instances(self) -> Sequence[Instance]:
        """The instances of this version."""
        return self._instances

    @property
    def health(self) -> str:
        """Empty while at least one instance can execute, otherwise the reason why none can."""
        reason = ""
        for instance in self._instances:
            reason = instance.health
            if not reason:
                return ""
        return reason

    def stop(self, timeout_s: float) -> bool:
        """Refuse new requests, let the accepted ones finish, close the instances.

        Returns whether all requests finished within `timeout_s`; those that did not are answered UNAVAILABLE.
        Blocks, so it is called from a loading thread or at shutdown.
        """
        with self._lock:
            self._stopping = True
            self._wake_all()
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        with self._lock:
            left = self._scheduler.drain()
        self._drop([(request, self._stopped(request)) for request in left])
        finished = not left and not any(thread.is_alive() for thread in self._threads)
        for instance in self._instances:
            instance.close()
        self._backend_model.close()
        return finished

    def _drop(self, dropped: Sequence[tuple[InferRequest, InferError]]) -> None:
        if not dropped:
            return
        now_ns = _now_ns()
        for request, error in dropped:
            self.statistics.record_dropped(request, error.reason or FailureReason.OTHER, now_ns)
            self._deliver([request], [InferResponse(self._error_header, error=error)])

    def _deliver(self, requests: Sequence[InferRequest], responses: Sequence[InferResponse]) -> None:
        if self._ordered is not None:
            with self._lock:
                released = self._ordered.complete(requests, responses)
            requests = [request for request, _ in released]
            responses = [response for _, response in released]
        self._delivery.post(requests, responses)

    # --- the instance's thread ----------------------------------------------------------------------------------

    def _run_instance(self, instance: Instance) -> None:
        waker = threading.Lock()
        waker.acquire()
        while True:
            batch = self._take(instance, waker)
            if batch is None:
                return
            try:
                self._execute(instance, batch)
            finally:
                with self._lock:
                    self._executing -= len(batch.requests)

    def _take(self, instance: Instance, waker: threading.Lock) -> Batch | None:
        """Return the next batch for an instance; blocks until there is one. None when the model has stopped."""
        while True:
            health = instance.health
            if health:
                if self._wait_unhealthy(health):
                    continue
                return None
            with self._lock:
                now_ns = _now_ns()
                wake_ns = 0
                dropped = self._scheduler.expire(now_ns) if self._scheduler.has_timeouts else ()
                batch = self._scheduler.take(now_ns)
                if batch is not None:
                    self._executing += len(batch.requests)
                    other = self._idle.pop() if self._idle and self._scheduler.pending_count else None
                elif self._stopping and not self._scheduler.pending_count:
                    return None
                else:
                    other = None
                    wake_ns = self._scheduler.wake_ns()
                    self._idle.append(waker)
            if dropped:
                self._drop(dropped)
            if batch is not None:
                if other is not None:
                    other.release()
                return batch
            self._sleep(waker, wake_ns)

    def _sleep(self, waker: threading.Lock, wake_ns: int) -> None:
        if not wake_ns:
            waker.acquire()
            return
        if waker.acquire(timeout=max(0.0, (wake_ns - _now_ns()) / 1e9)):
            return
        with self._lock:
            if waker in self._idle:
                self._idle.remove(waker)
                return
        # Someone took the waker from the list and is about to release it.
        waker.acquire()

    def _wait_unhealthy(self, reason: str) -> bool:
        """Wait a moment while an instance cannot execute; False when the model has stopped.

        While no instance can execute nobody else will answer what is queued, so it is answered here.
        """
        if self.health:
            with self._lock:
                left = self._scheduler.drain()
            failure = [(r, InferError(ErrorCode.UNAVAILABLE, reason, reason=FailureReason.BACKEND)) for r in left]
            self._drop(failure)
        if self._stopping:
            return False
        time.sleep(_HEALTH_POLL_S)
        return True

    def _execute(self, instance: Instance, batch: Batch) -> None:
        # hot: bench/micro_engine.py
        batch.exec_start_ns = _now_ns()
        try:
            responses = instance.execute(batch)
            if len(responses) != len(batch.requests):
                raise internal(f"backend returned {len(responses)} responses for {len(batch.requests)} requests")
        except Exception as error:
            self._fail(batch, error)
            return
        batch.exec_end_ns = end_ns = _now_ns()
        self.statistics.record_batch(batch, responses, end_ns)
        if self._ordered is not None:
            self._deliver(batch.requests, responses)
        else:
            self._delivery.post(batch.requests, responses)

    def _fail(self, batch: Batch, error: Exception) -> None:
        if not isinstance(error, InferError):
            error = InferError(
                ErrorCode.INTERNAL,
                f"executing model '{self.name}' failed: {type(error).__name__}: {error}",
                detail=traceback.format_exc(),
            )
        error.reason = error.reason or FailureReason.BACKEND
        batch.exec_end_ns = end_ns = _now_ns()
        batch.compute_start_ns = batch.compute_start_ns or end_ns
        batch.compute_end_ns = batch.compute_end_ns or end_ns
        self.statistics.record_batch_failure(batch, end_ns)
        response = InferResponse(self._error_header, error=error)
        self._deliver(batch.requests, [response] * len(batch.requests))

    def _wake_all(self) -> None:
        for waker in self._idle:
            waker.release()
        self._idle.clear()


Publish = Callable[[ServedModel], None]
