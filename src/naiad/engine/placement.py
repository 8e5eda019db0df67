"""Whether the loop executes the batches of an instance, or the thread of the instance does.

The loop may, while an execution is so short that a thread is not worth being woken. On a busy machine an execution
also looks long when other processes have the core meanwhile, several milliseconds at a time. That says nothing of the
model, and a thread makes it worse.
"""

import resource
import time

from naiad.core.batch import Batch

_FAST_NS = 100_000
"""An execution shorter than this is not worth a thread."""
_TOO_LONG_NS = 200_000
"""A mean execution on the loop from this on is. There is room between them, because a busy machine is half as fast at
times, and what a thread costs doubles then as well: an ensemble took 75 instead of 49 us of CPU for each step."""
_REQUEST_NS = 5_000
"""What each request of a batch may add: gathering and scattering it keeps the GIL, so a thread would gain nothing."""
_MEAN_WEIGHT = 16
"""Executions over which the mean goes, roughly; a single hiccup of the machine does not move it far."""
_SLOW_NS = 10_000_000
"""An execution longer than this on the loop is felt by everybody."""
_FIRST_PENALTY_COUNT = 250
"""Executions that stay with the thread after a slow one. It may have been the machine's doing: one that pauses as a
whole, as virtual ones do, looks like a model that computes."""
_PENALTY_GROWTH = 4
_LONGEST_PENALTY_COUNT = 10_000
_DOUBT_COUNT = 10_000
"""Executions on the loop that are looked at closely after the first doubt; then what was before is forgotten."""
_REST_COUNT = 1_000
"""Executions that stay with the thread after the loop has found them too long on the whole."""
_TRIAL_COUNT = 64
"""Executions of the thread, the shortest of which tells whether the loop should try."""
_NEVER_NS = 1 << 62


class Usage:
    """What the calling thread has used of the machine by now."""

    def __init__(self) -> None:
        self._cpu_ns = time.thread_time_ns()  # `getrusage` knows it by the clock tick alone
        self._switches = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw

    def undisturbed_ns(self, duration_ns: int) -> int:
        """Return how long something would have taken that this thread has done since, had it had the core.

        A thread that has not given up the core by itself has waited for nothing: when it did not run, others did.
        """
        now = Usage()
        return duration_ns if now._switches != self._switches else now._cpu_ns - self._cpu_ns


class Placement:
    """The judgement on one instance. Only the side that has executed a batch tells it."""

    def __init__(self) -> None:
        self._mean_ns = _NEVER_NS
        """Of executions on the loop; an instance has to prove itself first."""
        self._shortest_ns = _NEVER_NS
        self._trial_count = 0
        self._rest_count = 0
        self._wary_count = 0
        self._penalty_count = _FIRST_PENALTY_COUNT

    @property
    def is_on_loop(self) -> bool:
        """Whether the loop is to execute the next batch."""
        return self._mean_ns < _TOO_LONG_NS

    @property
    def is_wary(self) -> bool:
        """Whether an execution on the loop needs to be told with what was used before it."""
        return self._wary_count > 0

    def executed_on_loop(self, batch: Batch, before: Usage | None) -> None:
        """Learn from an execution on the loop."""
        duration_ns = _duration_ns(batch)
        if self._wary_count:
            self._wary_count -= 1
            if not self._wary_count:
                self._penalty_count = _FIRST_PENALTY_COUNT
        if duration_ns > _TOO_LONG_NS:
            if before is None:
                # Asking the kernel takes more than a microsecond, so it is done from the first doubt on.
                self._wary_count = _DOUBT_COUNT
                return
            duration_ns = min(duration_ns, before.undisturbed_ns(duration_ns))
        self._mean_ns += (duration_ns - self._mean_ns) // _MEAN_WEIGHT
        is_slow = duration_ns > _SLOW_NS
        if is_slow or self._mean_ns >= _TOO_LONG_NS:
            self._mean_ns = _NEVER_NS
            self._rest_count = self._penalty_count if is_slow else _REST_COUNT
        if is_slow:
            self._penalty_count = min(_LONGEST_PENALTY_COUNT, self._penalty_count * _PENALTY_GROWTH)

    def executed_on_thread(self, batch: Batch) -> None:
        """Learn from an execution on the thread.

        The shortest of some counts: the others have waited for the core and for the GIL, which the loop has, and do
        so the more the busier both are.
        """
        if self._rest_count:
            self._rest_count -= 1
            return
        self._shortest_ns = min(self._shortest_ns, _duration_ns(batch))
        self._trial_count += 1
        if self._trial_count >= _TRIAL_COUNT:
            self._mean_ns = self._shortest_ns if self._shortest_ns < _FAST_NS else _NEVER_NS
            self._shortest_ns, self._trial_count = _NEVER_NS, 0


def _duration_ns(batch: Batch) -> int:
    """Return how long an execution took beyond what its requests take as such."""
    return batch.exec_end_ns - batch.exec_start_ns - _REQUEST_NS * len(batch.requests)
