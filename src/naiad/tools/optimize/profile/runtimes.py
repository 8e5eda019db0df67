"""The runtimes that a candidate is measured under: its backend with different numbers of threads."""

import os
from collections.abc import Mapping

from naiad.tools.optimize.candidate import Candidate
from naiad.tools.optimize.results.candidate_measurement import Runtime

_THREADS: Mapping[str, tuple[str, ...]] = {
    "onnxruntime": ("intra_op_thread_count",),
    "openvino": ("INFERENCE_NUM_THREADS",),
    "pytorch": ("INTRA_OP_THREAD_COUNT",),
    "tensorflow": ("TF_NUM_INTRA_THREADS", "TF_NUM_INTER_THREADS"),
    "litert": ("num_threads",),
    "trees": ("nthread",),
    "sklearn": ("n_jobs",),
}
"""Parameters that set the threads of a backend."""
_SINGLE = ("trees", "sklearn")
"""Backends with one thread by default; the default of all others is a thread for each core."""
_FEWEST_FOR_HALF = 4
"""Cores from which half of them are tried, too."""


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def runtimes(candidate: Candidate, cores: int) -> list[Runtime]:
    """Return the backend's default, then other numbers of threads: 1, half of the cores, all of them."""
    names = _THREADS.get(candidate.backend, ())
    counts = {1, cores // 2 if cores >= _FEWEST_FOR_HALF else 1, cores} if names else set()
    counts.discard(1 if candidate.backend in _SINGLE else cores)
    tried = [Runtime(f"threads-{count}", {name: str(count) for name in names}) for count in sorted(counts)]
    return [Runtime(), *tried]
