"""What must not happen while an input is checked: an exception, a hang, memory that explodes or leaks."""

import gc
import os
import resource
import signal
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from fuzz.target import Target

SECONDS_PER_INPUT = 5.0
"""Of processor time: what else the machine does is no matter. Most inputs are a few KiB and take no millisecond."""
MIB_PER_INPUT = 96
"""By so much one input may raise the highest use of memory."""
MIB_GROWTH = 48
"""By so much all inputs after the first fifth of a run may raise its use of memory."""


class HangError(Exception):
    """An input took too long."""


class MemoryGrowthError(Exception):
    """An input, or all of them together, took too much memory."""


def _on_alarm(number: int, frame: FrameType | None) -> None:
    raise HangError(f"an input took more than {SECONDS_PER_INPUT:g} s of processor time")


@contextmanager
def alarmed() -> Iterator[None]:
    """Have `checked` interrupt hangs; only in the main thread."""
    before = signal.signal(signal.SIGPROF, _on_alarm)
    try:
        yield
    finally:
        signal.signal(signal.SIGPROF, before)


def checked(target: Target, data: bytes) -> Hashable:
    """Check one input and return its outcome. Raises what the target raises, HangError and MemoryGrowthError."""
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    signal.setitimer(signal.ITIMER_PROF, SECONDS_PER_INPUT)
    try:
        outcome = target.check(data)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    grown_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak_kib) // 1024
    if grown_mib > MIB_PER_INPUT:
        raise MemoryGrowthError(f"one input of {len(data)} bytes took {grown_mib} MiB")
    return outcome


def resident_mib() -> int:
    """Return the memory in use, after garbage is collected."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 2**20
