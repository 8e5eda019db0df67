"""One served model version: its scheduler, its instances, and what drives them."""

import logging
import threading
import time
import traceback
from collections.abc import Collection, Mapping, Sequence

from naiad.backend.api import Instance, Model, RemoteInstance
from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.padding import read_padding
from naiad.core.adaptive_state import AdaptiveState
from naiad.core.batch import Batch
from naiad.core.errors import ErrorCode, FailureReason, InferError, internal, unavailable
from naiad.core.ports import Loop, TimerHandle
from naiad.core.request import InferRequest
from naiad.core.response import RESCHEDULE, InferResponse, ResponseHeader
from naiad.engine.admission import Admission, AdmissionRules, prefix
from naiad.engine.delivery import Delivery
from naiad.engine.emission import Emission
from naiad.engine.instance_on_loop import InstanceOnLoop
from naiad.engine.instance_thread import InstanceThread
from naiad.engine.iterative import IterativeRequests, split
from naiad.engine.padding import PaddedRequests
from naiad.engine.resources import ModelResources
from naiad.engine.sequence_tensors import SequenceTensors
from naiad.engine.solitude import solitude_hint, watch_for_solitude
from naiad.scheduler.adaptive import AdaptiveScheduler
from naiad.scheduler.api import Scheduler
from naiad.scheduler.ordering import OrderedRelease
from naiad.telemetry.statistics import ModelStatistics

_log = logging.getLogger(__name__)
_now_ns = time.monotonic_ns

Driver = InstanceThread | InstanceOnLoop
_STOPPED = -1


class ServedModel:
    """A loaded version that takes requests until it is stopped.

    The scheduler is pure and guarded by one lock. Each instance has a driver, which takes its next batch itself as
    soon as it has none: a thread for instances that block, the loop for those that execute in another process. A
    driver that finds nothing to do waits in the list of the idle until a request wakes it.
    """

    def __init__(  # noqa: PLR0913, PLR0915 - the parts that the loader has made
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
        labels: Mapping[str, Sequence[str]] | None = None,
        sequence_tensors: SequenceTensors | None = None,
        resources: ModelResources | None = None,
    ) -> None:
        self.name = name
        self.version = str(version)
        self.config = config
        self.statistics = statistics
        self.labels: Mapping[str, Sequence[str]] = labels or {}
        """Output name to class labels, one a line of the label file."""
        self.is_decoupled = config.model_transaction_policy.decoupled
        self.load_duration_ns = 0
        """Set by the loader."""
        self.backend_model = backend_model
        """Makes the instances, and holds what they share."""
        self._instances = list(instances)
        self._scheduler = scheduler
        self._loop = loop
        self._rules = AdmissionRules(config)
        self._sequence_tensors = sequence_tensors
        padding = read_padding(config)
        self._padding = None if padding is None else PaddedRequests(config, padding)
        self._resources = resources
        """With a rate limiter: what the instances need to execute."""
        self._is_by_instance = scheduler.is_by_instance
        self._delivery = Delivery(loop)
        self._error_header = ResponseHeader(name, self.version, ())
        asks_for_order = (
            config.dynamic_batching.preserve_ordering or config.sequence_batching.oldest.preserve_ordering
        )
        self.can_change_instances = not (
            scheduler.is_by_instance or self.is_decoupled or asks_for_order or resources is not None
        )
        """Whether `change_instances` may be called: nothing that outlasts a batch belongs to an instance."""
        keeps_order = asks_for_order and len(self._instances) > 1
        self._ordered = OrderedRelease() if keeps_order else None
        is_iterative = config.sequence_batching.iterative_sequence
        self._iterative = IterativeRequests(config, scheduler) if is_iterative else None
        emission = Emission(self._deliver, statistics.responses, self._on_final, self._on_again)
        self._emission = emission if self.is_decoupled else None
        if self._emission is not None:
            loop.call_soon_threadsafe(self._emission.bind_loop_thread)
        self._lock = threading.Lock()
        self._idle: list[Driver] = []
        self._leaving: set[Driver] = set()
        """Drivers that take no batch any more."""
        self._driver_count = len(self._instances)
        self._executing = 0
        self._solitude = watch_for_solitude(config)
        self._stopping = self._refusing = False
        """`_refusing`: whether only requests are taken that go on with a live sequence."""
        self._timer: TimerHandle | None = None
        self._timer_ns = 0
        self._drivers: list[Driver] = [self._driver_for(i, instance) for i, instance in enumerate(self._instances)]
        if resources is not None:
            resources.bind(self._drivers, self._instances)
        for driver in self._drivers:
            driver.start()

    def _driver_for(self, index: int, instance: Instance) -> Driver:
        if isinstance(instance, RemoteInstance):
            return InstanceOnLoop(self, instance, self._loop, index)
        return InstanceThread(self, instance, self._loop, index)

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
        if self._is_by_instance:
            self._check_sequence(request)
        idle = None
        with self._lock:
            if self._refusing and not self._scheduler.admits_while_stopping(request):
                raise self._stopped(request)
            worth_waking = self._scheduler.enqueue(request, request.arrival_ns)
            if self._ordered is not None:
                self._ordered.expect(request)
            if worth_waking and self._idle:
                idle = self._pop_woken() if self._is_by_instance else self._idle.pop()
            expire_ns = self._scheduler.expire_ns() if self._scheduler.has_timeouts else 0
        if idle is not None:
            idle.wake()
        if expire_ns:
            self._arm_timer(expire_ns)

    def _check_sequence(self, request: InferRequest) -> None:
        """Make a sequence of a request of an iterative model; look at its id. Raises InferError."""
        if self._iterative is not None:
            self._iterative.begin(request)
        if self._sequence_tensors is not None:
            self._sequence_tensors.check(request.header)

    def cancel(self, request: InferRequest) -> bool:
        """Drop a request that still waits, and say so; a request that executes is only marked."""
        if request.cancelled:
            return False
        request.cancelled = True
        idle = None
        with self._lock:
            queued = self._scheduler.cancel(request)
            others = self._scheduler.expire(_now_ns()) if queued and self._is_by_instance else ()
            if self._is_by_instance:
                idle = self._pop_woken()
        self.statistics.record_cancelled(in_queue=queued)
        if queued:
            error = InferError(ErrorCode.CANCELLED, "", reason=FailureReason.CANCELED)
            self._drop([(request, error), *others], on_loop=True)
        else:
            for instance in self._instances:
                if isinstance(instance, RemoteInstance):
                    instance.mark(request)
        if idle is not None:
            idle.wake()
        return queued

    def blockers(self, request: InferRequest) -> Sequence[InferRequest]:
        """None: requests wait for an instance only."""
        return ()

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
        idle = None
        with self._lock:
            dropped = self._scheduler.expire(_now_ns())
            expire_ns = self._scheduler.expire_ns()
            if self._is_by_instance:
                idle = self._pop_woken()
                if self._stopping and not self._scheduler.live_sequence_count:
                    self._wake_all()
        self._drop(dropped, on_loop=True)
        if idle is not None:
            idle.wake()
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
        open_count = self._emission.open_count if self._emission is not None else 0
        return self._scheduler.pending_count + self._executing + open_count

    @property
    def adaptive_state(self) -> AdaptiveState | None:
        """What an adaptive batcher has learned; None with any other scheduler."""
        if not isinstance(self._scheduler, AdaptiveScheduler):
            return None
        with self._lock:
            return self._scheduler.state()

    @property
    def live_sequence_count(self) -> int:
        """Sequences that have begun and not ended."""
        return self._scheduler.live_sequence_count

    def close_to_new_sequences(self) -> None:
        """Take only requests of live sequences from now on, if this is a model of sequences."""
        if self._is_by_instance:
            self._refusing = True

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

    @property
    def lost_reason(self) -> str:
        """Empty unless no instance will ever execute again; then the reason why."""
        return self.health if all(instance.is_lost for instance in self._instances) else ""

    def is_barred(self, instance: Instance, holders: Collection[int]) -> bool:
        """Tell whether an instance cannot execute while the instances with these ids keep the resources they hold."""
        return self._resources is not None and self._resources.is_barred(self._instances.index(instance), holders)

    def change_instances(self, instances: Sequence[Instance], config: ModelConfig) -> "RetiredInstances | None":
        """Go on with these instances, of which some may execute already; return what leaves, for the caller to stop.

        Accepted requests wait on for the instances that there are. Only while `can_change_instances`.
        """
        going = {d: i for d, i in zip(self._drivers, self._instances, strict=True) if i not in instances}
        driver_of = {id(i): d for d, i in zip(self._drivers, self._instances, strict=True) if d not in going}
        started: list[Driver] = []
        with self._lock:
            self.config = config
            for instance in instances:
                if id(instance) not in driver_of:
                    # A number of its own, for the log; only schedulers with instances of their own look at it.
                    driver_of[id(instance)] = self._driver_for(self._driver_count, instance)
                    self._driver_count += 1
                    started.append(driver_of[id(instance)])
            self._instances = list(instances)
            self._scheduler.change_instance_count(len(instances))
            self._drivers = [driver_of[id(instance)] for instance in instances]
            self._leaving.update(going)
            for driver in [driver for driver in self._idle if driver in going]:
                self._idle.remove(driver)
                driver.wake_now()
        for driver in started:
            driver.start()
        return RetiredInstances(self, going) if going else None

    def forget_drivers(self, drivers: Collection[Driver]) -> None:
        """Called when drivers that were leaving have left."""
        with self._lock:
            self._leaving.difference_update(drivers)

    def stop(self, timeout_s: float) -> bool:
        """Refuse new requests, let the accepted ones finish, close the instances.

        Returns whether all requests finished within `timeout_s`; those that did not are answered UNAVAILABLE.
        Blocks, so it is called from a loading thread or at shutdown.
        """
        with self._lock:
            self._stopping = self._refusing = True
            self._wake_all()
        if self._resources is not None:
            for driver in self._drivers:
                if self._resources.withdraw(driver.index):
                    driver.wake_now()
        deadline = time.monotonic() + timeout_s
        ended = [driver.join(max(0.0, deadline - time.monotonic())) for driver in self._drivers]
        with self._lock:
            left = self._scheduler.drain()
            self._scheduler.close()
        self._drop([(request, self._stopped(request)) for request in left])
        finished = not left and all(ended)
        if self._emission is not None and not self._emission.wait_closed(max(0.0, deadline - time.monotonic())):
            unfinished = unavailable(f"model '{self.name}' was stopped before it had sent its final response")
            self._emission.abandon(InferResponse(self._error_header, error=unfinished))
            finished = False
        if self._resources is not None:
            self._resources.close()
        for instance in self._instances:
            instance.close()
        self.backend_model.close()
        return finished

    def _drop(self, dropped: Sequence[tuple[InferRequest, InferError]], *, on_loop: bool = False) -> None:
        if not dropped:
            return
        now_ns = _now_ns()
        for request, error in dropped:
            self.statistics.record_dropped(request, error.reason or FailureReason.OTHER, now_ns)
            # A queue may keep its entry for a while; the inputs need not stay in memory for that.
            request.data = ()
            if self._emission is not None:
                self._emission.forget(request)
            self._deliver([request], [InferResponse(self._error_header, error=error)], on_loop=on_loop)

    def _deliver(
        self, requests: Sequence[InferRequest], responses: Sequence[InferResponse], *, on_loop: bool = False
    ) -> None:
        if self._ordered is not None:
            with self._lock:
                released = self._ordered.complete(requests, responses)
            requests = [request for request, _ in released]
            responses = [response for _, response in released]
        if on_loop:
            self._delivery.deliver(requests, responses)
        else:
            self._delivery.post(requests, responses)

    # --- called by the drivers ----------------------------------------------------------------------------------

    def take(self, driver: Driver) -> tuple[Batch | None, int]:
        """Return the next batch for a free instance.

        Without one the driver has joined the idle, and the second value is the monotonic time at which it should ask
        again if nobody wakes it before (0 for never, negative when the model has stopped and nothing is left to do).
        """
        wake_ns = 0
        with self._lock:
            if self._leaving and driver in self._leaving:
                self._hand_on()
                return None, _STOPPED
            now_ns = _now_ns()
            dropped = self._scheduler.expire(now_ns) if self._scheduler.has_timeouts else ()
            if self._resources is None:
                batch = self._scheduler.take(now_ns, driver.index)
            else:
                batch = self._take_limited(self._resources, now_ns, driver.index)
            other = self._pop_woken() if self._is_by_instance else None
            ended = self._scheduler.pop_ended(driver.index) if self._is_by_instance else ()
            if batch is None:
                wake_ns, other = self._rest(driver, other)
            else:
                if self._emission is not None:
                    self._emission.begin(batch)
                else:
                    self._executing += len(batch.requests)
                if self._idle and self._scheduler.pending_count and not self._is_by_instance:
                    other = self._idle.pop()
        if dropped:
            self._drop(dropped)
        if other is not None:
            other.wake_now()
        if ended:
            self._instances[driver.index].end_sequences(ended)
        if batch is not None and self._is_by_instance:
            self._prepare_sequences(batch)
        return batch, wake_ns

    def _prepare_sequences(self, batch: Batch) -> None:
        if self._iterative is not None and self._emission is not None:
            with self._lock:
                self._iterative.took(batch)
        if self._sequence_tensors is not None:
            self._sequence_tensors.prepare(batch)

    def _rest(self, driver: Driver, woken: Driver | None) -> tuple[int, Driver | None]:
        """Let a driver that has nothing to do join the idle, unless all is over or it waits for resources.

        Returns what `take` says then, and who else is to be woken: `woken` or another. The lock is held.
        """
        if self._resources is not None and self._resources.is_waiting(driver.index):
            # Another instance, which needs other things or none, may do what this one cannot do now.
            may_pass = self._idle and not self._is_by_instance
            return 0, self._idle.pop() if may_pass else woken
        if self._stopping and not (self._scheduler.pending_count or self._scheduler.live_sequence_count):
            return _STOPPED, woken
        self._idle.append(driver)
        return self._scheduler.wake_ns(driver.index), woken

    def _take_limited(self, resources: ModelResources, now_ns: int, index: int) -> Batch | None:
        """Return the next batch of an instance once it has what it needs; give back what its last execution held.

        Without a batch it waits for resources, and will be woken when it has them, or it holds none. Called with the
        lock held.
        """
        if self._scheduler.pending_count and not resources.acquire(index):
            return None
        batch = self._scheduler.take(now_ns, index)
        if batch is not None:
            resources.start(index)
        else:
            # Nothing was left, or it is held back to grow.
            resources.release(index)
        return batch

    def _hand_on(self) -> None:
        """Have another instance look at the queue: this one was woken for it, and leaves. The lock is held."""
        if self._idle and self._scheduler.pending_count:
            self._idle.pop().wake_now()

    def _on_final(self, request: InferRequest) -> None:
        """Let the sequence of a decoupled request go on; called on any thread."""
        if self._is_by_instance:
            with self._lock:
                self._scheduler.release(request, _now_ns())
                other = self._pop_woken()
            if other is not None:
                other.wake_now()

    def _on_again(self, request: InferRequest) -> None:
        """Put a request of a decoupled model back that is to be executed again; called on any thread."""
        if self._iterative is not None:
            with self._lock:
                is_free = self._iterative.may_go_on(request)
            if is_free:
                self._go_on((), [request])

    def _go_on(self, done: Sequence[InferRequest], again: Sequence[InferRequest]) -> None:
        """See to the sequences of an iterative model's requests, which were executed."""
        if self._iterative is None:
            return
        with self._lock:
            dropped = self._iterative.go_on(done, again, _now_ns())
            other = self._pop_woken()
        self._drop(dropped)
        if other is not None:
            other.wake_now()

    def _pop_woken(self) -> Driver | None:
        """Take the first idle driver that the scheduler has something for off the list, and wake the others.

        Called with the lock held.
        """
        woken = self._scheduler.pop_woken()
        found = [driver for driver in self._idle if driver.index in woken]
        for driver in found:
            self._idle.remove(driver)
        for driver in found[1:]:
            driver.wake_now()
        return found[0] if found else None

    def join_idle(self, driver: Driver) -> bool:
        """Put a driver that has begun on the list of the idle; True when there is work, and it is not on it."""
        with self._lock:
            if self._stopping or self._scheduler.pending_count:
                return True
            self._idle.append(driver)
        return False

    def withdraw(self, driver: Driver) -> bool:
        """Take a driver off the list of the idle; False when someone else has done so and is about to wake it."""
        with self._lock:
            if driver in self._idle:
                self._idle.remove(driver)
                return True
        return False

    def tend_unhealthy(self, driver: Driver) -> bool:
        """See to the queue while an instance cannot execute; False when the model has stopped.

        While no instance can execute nobody else will answer what is queued, so it is answered here. The same goes
        for what only this instance may execute.
        """
        if self._resources is not None:
            self._resources.release(driver.index)
        reason = self._instances[driver.index].health if self._is_by_instance else self.health
        if reason:
            with self._lock:
                left = (
                    self._scheduler.drain_instance(driver.index) if self._is_by_instance else self._scheduler.drain()
                )
            self._drop([(r, InferError(ErrorCode.UNAVAILABLE, reason, reason=FailureReason.BACKEND)) for r in left])
        return not (self._stopping or driver in self._leaving)

    def prepare(self, batch: Batch) -> None:
        """Make of the requests of a batch what an instance executes; raises what makes the batch fail."""
        if self._padding is not None:
            self.statistics.record_padding(*self._padding.prepare(batch))

    def execute(self, instance: Instance, batch: Batch, *, on_loop: bool = False) -> None:
        """Execute a batch, blocking, and see to its answers. `on_loop`: the caller is the event loop."""
        # hot: bench/micro_engine.py
        batch.exec_start_ns = _now_ns()
        try:
            if self._padding is not None:
                self.prepare(batch)
            responses = instance.execute(batch)
        except Exception as error:
            self.fail(batch, error, on_loop=on_loop)
        else:
            self.complete(batch, responses, on_loop=on_loop)

    def complete(self, batch: Batch, responses: Sequence[InferResponse], *, on_loop: bool = False) -> None:
        """See to the answers of a batch that was executed; callable on any thread."""
        extended = self._sequence_tensors or self._padding
        if extended is not None:
            try:
                responses = extended.settle(batch, responses)
            except InferError as error:
                self.fail(batch, error, on_loop=on_loop)
                return
        if self._emission is not None:
            self._complete_decoupled(batch, responses, on_loop=on_loop)
            return
        if len(responses) != len(batch.requests):
            count = len(batch.requests)
            wrong = internal(f"backend gave {len(responses)} responses for {count} requests")
            self.fail(batch, wrong, on_loop=on_loop)
            return
        batch.exec_end_ns = end_ns = _now_ns()
        if self._iterative is not None:
            self._complete_step(batch, responses, on_loop=on_loop)
            return
        self.statistics.record_batch(batch, responses, end_ns)
        _tell_times(batch)
        self._executing_ended(batch)
        self._deliver(batch.requests, responses, on_loop=on_loop)

    def _complete_step(self, batch: Batch, responses: Sequence[InferResponse], *, on_loop: bool) -> None:
        """Answer those requests of an iterative model that are done, and put the others back."""
        done, again = split(batch, responses)
        answers = [response for response in responses if response is not RESCHEDULE]
        self.statistics.record_batch(batch, answers, batch.exec_end_ns, done=done)
        _tell_times(batch)
        self._executing_ended(batch)
        self._go_on(done, again)
        self._deliver(done, answers, on_loop=on_loop)

    def _complete_decoupled(self, batch: Batch, responses: Sequence[InferResponse], *, on_loop: bool) -> None:
        """Count a batch whose instance is free again; its requests stay open until their final responses."""
        if responses:
            self.fail(batch, internal("backend returned responses of a decoupled model"), on_loop=on_loop)
            return
        batch.exec_end_ns = end_ns = _now_ns()
        batch.compute_start_ns = batch.compute_start_ns or end_ns
        batch.compute_end_ns = batch.compute_end_ns or end_ns
        again = self._completed(batch)
        done = [request for request in batch.requests if request not in again] if again else None
        self.statistics.record_batch(batch, (), end_ns, done=done)
        _tell_times(batch)
        self._go_on((), again)
        if self._scheduler.learns:
            with self._lock:
                self._scheduler.record_execution(batch)

    def _completed(self, batch: Batch) -> Sequence[InferRequest]:
        """Return those requests of a batch of a decoupled model that are to be executed again."""
        if self._iterative is None:
            return ()
        with self._lock:
            return self._iterative.completed(batch.requests)

    def fail(self, batch: Batch, error: Exception, *, on_loop: bool = False) -> None:
        """Answer every request of a batch whose execution raised `error`; callable on any thread."""
        extended = self._sequence_tensors or self._padding
        if extended is not None:
            extended.restore(batch)
        if not isinstance(error, InferError):
            error = InferError(
                ErrorCode.INTERNAL,
                f"executing model '{self.name}' failed: {type(error).__name__}: {error}",
                detail="".join(traceback.format_exception(error)),
            )
        error.reason = error.reason or FailureReason.BACKEND
        batch.exec_end_ns = end_ns = _now_ns()
        batch.compute_start_ns = batch.compute_start_ns or end_ns
        batch.compute_end_ns = batch.compute_end_ns or end_ns
        self.statistics.record_batch_failure(batch, end_ns)
        _tell_times(batch)
        response = InferResponse(self._error_header, error=error)
        if self._emission is not None:
            if self._scheduler.learns:
                with self._lock:
                    self._scheduler.record_execution(batch, failed=True)
            self._emission.resume(self._completed(batch))
            self._emission.fail(batch.requests, response)
            return
        self._executing_ended(batch, failed=True)
        self._go_on(batch.requests, ())
        self._deliver(batch.requests, [response] * len(batch.requests), on_loop=on_loop)

    def _executing_ended(self, batch: Batch, *, failed: bool = False) -> None:
        is_hinted = False
        with self._lock:
            if self._solitude is not None:
                is_hinted = self._solitude.observe(self._executing + self._scheduler.pending_count)
            self._executing -= len(batch.requests)
            if self._scheduler.learns:
                self._scheduler.record_execution(batch, failed=failed)
        if is_hinted:
            self._solitude = None
            _log.info(solitude_hint(self.name))

    def _wake_all(self) -> None:
        for driver in self._idle:
            driver.wake_now()
        self._idle.clear()


class RetiredInstances:
    """Instances that an update in place has left over: they finish the batch they have, then they are closed."""

    def __init__(self, model: ServedModel, drivers: Mapping[Driver, Instance]) -> None:
        self._model = model
        self._drivers = dict(drivers)

    def stop(self, timeout_s: float) -> bool:
        """Wait for their batches, close them; whether all finished in time."""
        deadline = time.monotonic() + timeout_s
        ended = [driver.join(max(0.0, deadline - time.monotonic())) for driver in self._drivers]
        self._model.forget_drivers(self._drivers)
        for instance in self._drivers.values():
            instance.close()
        return all(ended)


def _tell_times(batch: Batch) -> None:
    for request in batch.requests:
        times = request.times
        if times is not None:
            times.exec_start_ns = batch.exec_start_ns
            times.compute_start_ns = batch.compute_start_ns
            times.compute_end_ns = batch.compute_end_ns
            times.exec_end_ns = batch.exec_end_ns
