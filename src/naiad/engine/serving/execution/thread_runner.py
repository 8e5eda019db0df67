"""Runs an instance that blocks while it executes, on a thread of its own that takes its batches.

Waking a thread and being woken by it costs about 90 us of CPU for a single request, as much as ten executions of a
tiny model. Therefore the loop itself executes batches of an instance that is that fast and may run on any thread, one
per turn of the loop. `Placement` chooses inline or thread execution:

- The loop executes while an execution is so short that waking a thread is more expensive.
- On a busy machine an execution also seems long when other processes use the core meanwhile, several milliseconds at
  a
  time. That is no property of the model, and a thread makes it worse.
"""

import logging
import os
import resource
import threading
import time

from naiad.backend.api import Instance
from naiad.backend.cores import bind_thread
from naiad.core.batch import Batch
from naiad.core.environment.ports import Loop
from naiad.core.errors import InferError
from naiad.engine.serving.dispatch.dispatcher import STOPPED, Dispatcher
from naiad.engine.serving.execution.executor import BatchExecutor
from naiad.engine.serving.execution.recovery import Recovery

_FAST_NS = 100_000
"""A shorter execution is not worth a thread."""
_TOO_LONG_NS = 200_000
"""Mean execution on the loop that moves it to the thread. It is above the first limit, because a busy machine is at
times half as fast, and then a thread costs twice as much as well: an ensemble took 75 instead of 49 us of CPU for
each step."""
_REQUEST_NS = 5_000
"""Allowance per request of a batch: gathering and scattering it holds the GIL, so a thread would gain nothing."""
_MEAN_WEIGHT = 16
"""Approximate number of executions in the mean; a single pause of the machine does not move it far."""
_SLOW_NS = 10_000_000
"""A longer execution on the loop delays all clients."""
_FIRST_PENALTY_COUNT = 250
"""Executions that stay on the thread after a slow one. The machine may have caused it: a paused virtual machine looks
like a model that computes."""
_PENALTY_GROWTH = 4
_LONGEST_PENALTY_COUNT = 10_000
_WATCH_COUNT = 64
"""Executions on the loop that are measured closely after one that was too long."""
_MEMORY_COUNT = 10_000
"""Executions on the loop after the first doubt; then earlier penalties are cleared."""
_REST_COUNT = 1_000
"""Executions that stay on the thread after the mean on the loop was too long."""
_TRIAL_COUNT = 64
"""Executions of the thread, the shortest of which decides whether the loop should try."""
_NEVER_NS = 1 << 62


class ThreadUsage:
    """CPU time and context switches of the calling thread so far."""

    def __init__(self) -> None:
        self._cpu_ns = time.thread_time_ns()  # `getrusage` has only the resolution of clock ticks
        self._switches = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw

    def undisturbed_ns(self, duration_ns: int) -> int:
        """Return the duration of an action of this thread without the time in which other threads used the core.

        A thread that has not released the core itself has not waited: when it did not run, other threads did.
        """
        now = ThreadUsage()
        return duration_ns if now._switches != self._switches else now._cpu_ns - self._cpu_ns


class Placement:
    """The placement of one instance. Only the side that has executed a batch updates it."""

    def __init__(self) -> None:
        self._mean_ns = _NEVER_NS
        """Mean of executions on the loop; an instance starts on its thread."""
        self._shortest_ns = _NEVER_NS
        self._trial_count = 0
        self._rest_count = 0
        self._watch_count = 0
        self._memory_count = 0
        self._penalty_count = _FIRST_PENALTY_COUNT
        self.is_on_loop = False
        """Whether the loop executes the next batch."""
        self.is_wary = False
        """Whether the next execution on the loop must measure the thread's usage."""

    def executed_on_loop(self, batch: Batch, before: ThreadUsage | None) -> None:
        """Update the mean after an execution on the loop."""
        duration_ns = batch.exec_end_ns - batch.exec_start_ns - _REQUEST_NS * len(batch.requests)
        if self._watch_count:
            self._watch_count -= 1
            self.is_wary = self._watch_count > 0
        if self._memory_count:
            self._memory_count -= 1
            if not self._memory_count:
                self._penalty_count = _FIRST_PENALTY_COUNT
        if duration_ns > _TOO_LONG_NS:
            self._watch_count = _WATCH_COUNT
            self.is_wary = True
            if before is None:
                # The system call takes more than a microsecond, so it runs only after a doubt.
                self._memory_count = self._memory_count or _MEMORY_COUNT
                return
            duration_ns = min(duration_ns, before.undisturbed_ns(duration_ns))
        self._mean_ns += (duration_ns - self._mean_ns) // _MEAN_WEIGHT
        is_slow = duration_ns > _SLOW_NS
        if is_slow or self._mean_ns >= _TOO_LONG_NS:
            self._mean_ns = _NEVER_NS
            self.is_on_loop = False
            self._rest_count = self._penalty_count if is_slow else _REST_COUNT
        if is_slow:
            self._penalty_count = min(_LONGEST_PENALTY_COUNT, self._penalty_count * _PENALTY_GROWTH)

    def executed_on_thread(self, batch: Batch) -> None:
        """Update the minimum after an execution on the thread.

        The shortest of some executions counts: longer ones waited for the core and for the GIL of the loop, the more
        so on a busy machine.
        """
        if self._rest_count:
            self._rest_count -= 1
            return
        duration_ns = batch.exec_end_ns - batch.exec_start_ns - _REQUEST_NS * len(batch.requests)
        self._shortest_ns = min(self._shortest_ns, duration_ns)
        self._trial_count += 1
        if self._trial_count >= _TRIAL_COUNT:
            self._mean_ns = self._shortest_ns if self._shortest_ns < _FAST_NS else _NEVER_NS
            self.is_on_loop = self._mean_ns < _TOO_LONG_NS
            self._shortest_ns, self._trial_count = _NEVER_NS, 0


_log = logging.getLogger(__name__)

_HEALTH_POLL_S = 0.05
"""Polling interval for the recovery of an unhealthy instance."""
_START_POLL_S = 0.001
_LONG_AWAY_NS = 2_000_000
_LONGEST_SHARE_NS = 40_000_000
"""Maximum time of executions on the loop before it reads again."""


class ThreadRunner:
    """One thread per instance: no round trip through the loop between two batches.

    A thread without work sleeps on a lock of its own until it is woken. It starts at its first wake-up: of a thousand
    models most may never get a request.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        executor: BatchExecutor,
        instance: Instance,
        loop: Loop,
        *,
        index: int = 0,
        name: str = "",
    ) -> None:
        """`name` is the name of the thread in debuggers."""
        self.index = index
        """Number of the instance among the instances of its version."""
        self.free_ns = time.monotonic_ns()
        self.instance = instance
        self._dispatcher = dispatcher
        self._executor = executor
        self._loop = loop
        # The loop runs on any core, so it never executes for an instance with host policy.
        self._placement = Placement() if instance.runs_on_any_thread and not instance.cores else None
        self._is_roused = False
        """Whether the thread was ever woken, and so is started or about to be."""
        self._was_single = False
        """Whether the last batch on the loop was one request: with more in flight the next is queued anyway."""
        self._left_ns = _NEVER_NS
        """End of the last batch on the loop while requests are queued; the time since is other work of the loop."""
        self._is_running = False
        self._executing: list[Batch] = []
        """The batch that the thread executes. Removing it is atomic: the remover sends its responses."""
        self._was_given_up = False
        """Whether another thread removed the last batch."""
        self._taken: Batch | None = None
        """The batch that was taken last, until its execution is over."""
        self._recovery = Recovery(f"instance {index} of model '{name}'", instance)
        self._waker = threading.Lock()
        self._waker.acquire()
        self._thread = threading.Thread(target=self._run, name=name or None, daemon=True)

    def start(self) -> None:
        """Begin to take batches."""
        if self._dispatcher.join_idle(self):
            self._start_or_wake()

    def wake(self) -> None:
        """End its sleep soon; called on the loop after the removal from the idle list."""
        # Not at once: the loop first reads the pending requests, so that the instance finds a fuller batch and the
        # two threads do not compete for the GIL at every request (32 connections: 47 us a request down to 32).
        if self._placement is not None and self._placement.is_on_loop:
            self._loop.call_soon(self._execute_on_loop if self._was_single else self._yield_core)
        else:
            self._loop.call_soon(self._start_or_wake)

    def wake_now(self) -> None:
        """End its sleep at once; callable on any thread."""
        self._start_or_wake()

    def join(self, timeout_s: float) -> bool:
        """Wait for its end after a stop; return whether it has ended."""
        deadline_s = time.monotonic() + timeout_s
        while not self._is_running:
            # It was woken for a request, and the waking thread has not started it yet.
            if time.monotonic() > deadline_s:
                return False
            time.sleep(_START_POLL_S)
        self._thread.join(max(0.0, deadline_s - time.monotonic()))
        return not self._thread.is_alive()

    def _start_or_wake(self) -> None:
        """Start the thread, or end its sleep. Only the caller that removed it from the idle list calls this."""
        if self._is_roused:
            self._waker.release()
        else:
            # Noted first: the thread may join the idle list, and be woken by another thread, before `start` returns.
            self._is_roused = True
            self._thread.start()

    def _yield_core(self) -> None:
        """Yield the core to clients on this machine, and read their requests before the next batch is taken."""
        # 8 HTTP connections: batches of 5.4 became 7.6, and 56 us a request 50. Two processes, gRPC, 8 connections:
        # 30,000 requests/s became 34,100.
        os.sched_yield()
        self._loop.call_soon(self._execute_on_loop)

    def _execute_on_loop(self) -> None:
        try:
            self._execute_some()
        except BaseException as error:
            self._fail_unexpectedly(error, on_loop=True)
            self._dispatcher.withdraw(self)
            self._start_or_wake()

    def _execute_some(self) -> None:
        """Execute one batch here while the thread sleeps, then let the loop read before the next.

        A busy loop returns late. Then it executes for as long as it was away: with one batch in each turn it would
        complete only a small part of the requests that it reads.
        """
        until_ns = 0
        while not self.instance.health:
            batch, wake_ns = self._dispatcher.take(self)
            if batch is not None:
                assert self._placement is not None
                before = ThreadUsage() if self._placement.is_wary else None
                self._taken = batch
                self._executor.execute(self.instance, batch, on_loop=True)
                self._placement.executed_on_loop(batch, before)
                self._taken = None
                self._was_single = len(batch.requests) == 1
                away_ns = batch.exec_start_ns - self._left_ns
                self._left_ns = batch.exec_end_ns
                if not until_ns and away_ns > _LONG_AWAY_NS:
                    until_ns = batch.exec_start_ns + min(away_ns, _LONGEST_SHARE_NS)
                if batch.exec_end_ns < until_ns and self._placement.is_on_loop:
                    continue
                if self._was_single and self._dispatcher.join_idle_if_empty(self):
                    self.free_ns = batch.exec_end_ns
                    self._left_ns = _NEVER_NS
                    self._dispatcher.request_busy_polling.begin()
                else:
                    self.wake()
                return
            self._left_ns = _NEVER_NS
            if not wake_ns and self._was_single:
                self._dispatcher.request_busy_polling.begin()
            if not wake_ns or (wake_ns > 0 and not self._dispatcher.withdraw(self)):
                return
            break
        # The thread handles a batching delay, a model that stops, and an instance that became unhealthy.
        self._start_or_wake()

    def _run(self) -> None:
        self._is_running = True
        has_ended = False
        while not has_ended:
            try:
                bind_thread(self.instance.cores)
                self._execute_until_stop()
                has_ended = True
            except BaseException as error:
                # The last resort: a thread that ends here would leave a model that is ready and never answers.
                self._fail_unexpectedly(error)
                time.sleep(_HEALTH_POLL_S)

    def _execute_until_stop(self) -> None:
        while True:
            batch = self._next()
            if batch is None:
                return
            self._taken = batch
            self._executing.append(batch)
            self._executor.execute(self.instance, batch, claim=self._claim)
            self._taken = None
            if self._was_given_up:
                self._note_return(batch)
            if self._placement is not None:
                self._placement.executed_on_thread(batch)
            # The requests, 64 MiB perhaps, must not stay in memory while this thread waits for the next ones.
            del batch

    def _fail_unexpectedly(self, error: BaseException, *, on_loop: bool = False) -> None:
        """Answer the requests of the batch, and have the instance wait until its pause is over."""
        batch, self._taken = self._taken, None
        self._executing.clear()
        self._was_given_up = False
        self._recovery.begin(error)
        if batch is not None:
            self._executor.give_up(batch, self._recovery.error(), on_loop=on_loop)

    # --- executions that hang -----------------------------------------------------------------------------------

    def _claim(self) -> bool:
        """Remove the executed batch; return False if it was aborted and failed meanwhile."""
        try:
            self._executing.pop()
        except IndexError:
            self._was_given_up = True
            return False
        return True

    @property
    def executing(self) -> Batch | None:
        """The batch that the thread executes; it may have ended when the caller reads it."""
        executing = self._executing
        try:
            return executing[0]
        except IndexError:
            return None

    def abort(self, error: InferError) -> bool:
        """Fail the executing batch with an error, and mark the instance unhealthy until its execution returns.

        A thread cannot be killed. Called on the loop; returns False if nothing executes.
        """
        # First: when the thread finds its batch removed, it reverts this.
        self.instance.unavailable_reason = error.message
        try:
            batch = self._executing.pop()
        except IndexError:
            self.instance.unavailable_reason = ""
            return False
        self._executor.fail(batch, error, on_loop=True)
        return True

    def _note_return(self, batch: Batch) -> None:
        seconds = (time.monotonic_ns() - batch.exec_start_ns) / 1e9
        reason = self.instance.unavailable_reason
        _log.warning("%s: it has returned after %.1f s, and the instance continues", reason, seconds)
        self.instance.unavailable_reason = ""
        self._was_given_up = False

    def _next(self) -> Batch | None:
        """Return the next batch; blocks until there is one. None when the model has stopped."""
        while True:
            if self.instance.health:
                if not self._dispatcher.handle_unhealthy(self):
                    return None
                time.sleep(_HEALTH_POLL_S)
                self._recovery.end_if_due()
                continue
            batch, wake_ns = self._dispatcher.take(self)
            if batch is not None:
                return batch
            if wake_ns == STOPPED:
                return None
            self._sleep(wake_ns)

    def _sleep(self, wake_ns: int) -> None:
        if not wake_ns:
            self._waker.acquire()
        elif not self._waker.acquire(timeout=max(0.0, (wake_ns - time.monotonic_ns()) / 1e9)):
            if self._dispatcher.withdraw(self):
                return
            # Another thread has removed it from the idle list and is about to wake it.
            self._waker.acquire()
