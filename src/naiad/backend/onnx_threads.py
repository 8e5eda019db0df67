"""How many threads a model's session gets, so that all its instances together do not exceed the cores there are.

All CPU instances of a version share one session: the weights are in memory once, and `Run` may be called from any
number of threads. A session has one pool of intra-op threads, which those that call `Run` join. With k instances and
a pool made for t threads (the caller counts as one of them, so it starts t-1), at most k + t - 1 threads compute.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from naiad.core.errors import invalid_argument


@dataclass(frozen=True, slots=True)
class ThreadPlan:
    """Thread counts of a session."""

    intra_op: int
    inter_op: int
    is_parallel: bool
    """Independent parts of a graph are executed at the same time by the inter-op threads."""
    instance_count: int

    @property
    def computing(self) -> int:
        """Most threads that compute at the same time."""
        if self.is_parallel:
            # The caller waits while the inter-op threads execute nodes.
            return self.inter_op + self.intra_op - 1
        return self.instance_count + self.intra_op - 1

    def __str__(self) -> str:
        shared = f"{self.instance_count} instances share" if self.instance_count > 1 else "1 instance uses"
        inter = f", {self.inter_op} inter-op" if self.is_parallel else ""
        return (
            f"{shared} a session of {self.intra_op} intra-op{inter} threads: at most {self.computing} compute at once"
        )


def plan_threads(parameters: Mapping[str, str], usable_cores: int, instance_count: int) -> ThreadPlan:
    """Return the thread counts for `instance_count` instances.

    Without parameters the threads that compute are as many as the cores. `intra_op_thread_count` is what one instance
    would have alone, as in Triton, where each has a session of its own; 0 means that the server decides.
    `execution_mode` is 0 (sequential) or 1 (parallel). Raises InferError(INVALID_ARG).
    """
    intra = thread_count(parameters, "intra_op_thread_count")
    inter = thread_count(parameters, "inter_op_thread_count")
    mode = parameters.get("execution_mode", "0")
    if mode not in ("0", "1"):
        raise invalid_argument(f"parameter 'execution_mode' is '{mode}', expected 0 (sequential) or 1 (parallel)")
    count = max(1, instance_count)
    if mode == "1":
        inter = inter or max(1, (usable_cores + 1) // 2)
        return ThreadPlan(intra or max(1, usable_cores - inter + 1), inter, True, count)
    total = intra * count if intra else max(usable_cores, count)
    return ThreadPlan(total - count + 1, inter or 1, False, count)


def thread_count(parameters: Mapping[str, str], name: str) -> int:
    """Return a thread count, 0 when it is absent. Raises InferError(INVALID_ARG)."""
    text = parameters.get(name, "0")
    if not text.isdecimal() or int(text) > 4096:
        raise invalid_argument(
            f"parameter '{name}' is '{text}', expected a number of threads (0: the server decides)"
        )
    return int(text)
