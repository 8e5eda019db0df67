"""Drives an instance that blocks while it executes: a thread of its own that takes its next batch itself.

Waking a thread and being woken by it costs about 90 us of CPU for a single request, as much as ten executions of a
tiny model. So while an instance proves to be that fast, and may run on any thread, the loop executes its batches
itself, one per turn of the loop. A slow execution sends it back to its thread for a while.

On a busy machine an execution also looks slow when other processes have the core meanwhile, several milliseconds at a
time. That says nothing of the model, and a thread makes it worse.
"""

import resource
import threading
import time

from naiad.backend.api import Instance
from naiad.core.batch import Batch
from naiad.core.ports import Loop
from naiad.engine.batch_source import BatchSource

_HEALTH_POLL_S = 0.05
"""How often an instance that cannot execute is asked whether it can again."""
_START_POLL_S = 0.001
_FAST_NS = 100_000
"""A mean execution shorter than this is not worth a thread."""
_REQUEST_NS = 5_000
"""What each request of a batch may add: gathering and scattering it keeps the GIL, so a thread would gain nothing."""
_MEAN_WEIGHT = 16
"""Executions over which the mean goes, roughly; a single hiccup of the machine does not move it far."""
_SLOW_NS = 10_000_000
"""An execution longer than this on the loop is felt by everybody."""
_PENALTY_COUNT = 10_000
"""Executions that stay with the thread after a slow one."""
_REST_COUNT = 1_000
"""Executions that stay with the thread after the loop has found them too long on the whole."""
_TRIAL_COUNT = 64
"""Executions of the thread, the shortest of which tells whether the loop should try."""
_NEVER_NS = 1 << 62


class InstanceThread:
    """One thread per instance: no loop round trip lies between two batches.

    A thread that finds nothing to do sleeps on a lock of its own until the model releases it. It is started when the
    instance is woken for the first time: of a thousand models most may never be asked.
    """

    def __init__(self, model: BatchSource, instance: Instance, loop: Loop, index: int = 0) -> None:
        self.index = index
        """Number of the instance among those of its model."""
        self._model = model
        self._instance = instance
        self._loop = loop
        self._is_movable = instance.runs_on_any_thread
        self._mean_ns = _NEVER_NS
        """Of executions on the loop; an instance has to prove itself first."""
        self._shortest_ns = _NEVER_NS
        self._trial_count = 0
        self._penalty_count = 0
        self._wary_count = 0
        """Executions on the loop that are watched closely."""
        self._is_roused = False
        """Whether the thread was woken ever, and so is started or about to be."""
        self._is_running = False
        self._waker = threading.Lock()
        self._waker.acquire()
        self._thread = threading.Thread(target=self._run, name=f"{model.name}:{model.version}", daemon=True)

    def start(self) -> None:
        """Begin to take batches."""
        if self._model.join_idle(self):
            self._rouse()

    def wake(self) -> None:
        """End its sleep soon; called on the loop after the model has taken it off the list of the idle."""
        # Not at once: the loop first reads what else has come, so that the instance finds a fuller batch and the
        # two threads do not fight over the GIL for every request (32 connections: 47 us a request down to 32).
        if self._is_movable and self._mean_ns < _FAST_NS:
            self._loop.call_soon(self._execute_on_loop)
        else:
            self._loop.call_soon(self._rouse)

    def wake_now(self) -> None:
        """End its sleep at once; callable on any thread."""
        self._rouse()

    def join(self, timeout_s: float) -> bool:
        """Wait for its end after the model was told to stop; whether it has ended."""
        deadline_s = time.monotonic() + timeout_s
        while not self._is_running:
            # It was woken for a request, and whoever woke it has not come to start it.
            if time.monotonic() > deadline_s:
                return False
            time.sleep(_START_POLL_S)
        self._thread.join(max(0.0, deadline_s - time.monotonic()))
        return not self._thread.is_alive()

    def _rouse(self) -> None:
        """Start the thread, or end its sleep. Only who has taken it off the list of the idle does so."""
        if self._is_roused:
            self._waker.release()
        else:
            # Noted first: the thread may have joined the idle, and be woken by another, before `start` returns.
            self._is_roused = True
            self._thread.start()

    def _execute_on_loop(self) -> None:
        """Execute one batch here while the thread sleeps, then let the loop read before the next."""
        if not self._instance.health:
            batch, wake_ns = self._model.take(self)
            if batch is not None:
                before = _Usage() if self._wary_count else None
                self._model.execute(self._instance, batch, on_loop=True)
                self._judge_on_loop(_duration_ns(batch), before)
                self.wake()
                return
            if not wake_ns or (wake_ns > 0 and not self._model.withdraw(self)):
                return
        # A delay to sleep through, a model that stops, an instance that fell ill: all that is the thread's.
        self._rouse()

    def _judge_on_loop(self, duration_ns: int, before: "_Usage | None") -> None:
        """Learn from an execution on the loop; `before` is what the thread had used, if it is watched closely."""
        if self._wary_count:
            self._wary_count -= 1
        if duration_ns > _FAST_NS:
            if before is None:
                # Asking the kernel takes more than a microsecond, so it is done from the first doubt on.
                self._wary_count = _PENALTY_COUNT
                return
            duration_ns = min(duration_ns, before.undisturbed_ns(duration_ns))
        self._mean_ns += (duration_ns - self._mean_ns) // _MEAN_WEIGHT
        is_slow = duration_ns > _SLOW_NS
        if is_slow or self._mean_ns >= _FAST_NS:
            self._mean_ns = _NEVER_NS
            self._penalty_count = _PENALTY_COUNT if is_slow else _REST_COUNT

    def _judge(self, duration_ns: int) -> None:
        """Learn from an execution on the thread.

        The shortest of some counts: others wait for the core and for the GIL, which the loop has, and do so the more
        the busier both are.
        """
        if self._penalty_count:
            self._penalty_count -= 1
            return
        self._shortest_ns = min(self._shortest_ns, duration_ns)
        self._trial_count += 1
        if self._trial_count >= _TRIAL_COUNT:
            self._mean_ns, self._shortest_ns, self._trial_count = self._shortest_ns, _NEVER_NS, 0

    def _run(self) -> None:
        self._is_running = True
        while True:
            batch = self._next()
            if batch is None:
                return
            self._model.execute(self._instance, batch)
            self._judge(_duration_ns(batch))
            # The requests, 64 MiB perhaps, must not live on while this thread waits for the next ones.
            del batch

    def _next(self) -> Batch | None:
        """Return the next batch; blocks until there is one. None when the model has stopped."""
        model = self._model
        while True:
            if self._instance.health:
                if not model.tend_unhealthy(self):
                    return None
                time.sleep(_HEALTH_POLL_S)
                continue
            batch, wake_ns = model.take(self)
            if batch is not None:
                return batch
            if wake_ns < 0:
                return None
            self._sleep(wake_ns)

    def _sleep(self, wake_ns: int) -> None:
        if not wake_ns:
            self._waker.acquire()
        elif not self._waker.acquire(timeout=max(0.0, (wake_ns - time.monotonic_ns()) / 1e9)):
            if self._model.withdraw(self):
                return
            # Someone has taken it off the list of the idle and is about to release it.
            self._waker.acquire()


def _duration_ns(batch: Batch) -> int:
    """Return how long an execution took beyond what its requests take as such."""
    return batch.exec_end_ns - batch.exec_start_ns - _REQUEST_NS * len(batch.requests)


class _Usage:
    """What this thread has used of the machine by now."""

    def __init__(self) -> None:
        self._cpu_ns = time.thread_time_ns()  # `getrusage` knows it by the clock tick alone
        self._switches = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw

    def undisturbed_ns(self, duration_ns: int) -> int:
        """Return how long something would have taken that this thread has done since, had it had the core.

        A thread that has not given up the core by itself has waited for nothing: when it did not run, others did.
        """
        now = _Usage()
        return duration_ns if now._switches != self._switches else now._cpu_ns - self._cpu_ns
