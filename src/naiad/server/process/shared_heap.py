"""One heap of the C library for all threads, where models come and go.

glibc gives each thread that loads a heap of its own and returns the end of a heap to the system as soon as 128 KiB of
it are free: each load then takes new memory from the system, with a page fault for every 4 KiB, although the model
that has just left had as much. With one heap, and some free memory at its end, a load takes what an eviction has
left: of 40 ms of CPU for a load of 4 MB 13 were page faults, and 5 remain; the process is smaller, too.
"""

import ctypes
import logging
from collections.abc import Callable, Mapping

from naiad.options.on_demand_options import OnDemandOptions

_log = logging.getLogger(__name__)

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""Parameters of mallopt(3)."""
_KEPT_BYTES = 64 << 20
"""Free memory at the end of the heap stays up to this size, until `trim_pace` returns it."""
_HEAP_BYTES = 32 << 20
"""Larger pieces are mapped alone, and go back to the system at once. It is glibc's own maximum."""
_OWN_SETTINGS = ("MALLOC_", "GLIBC_TUNABLES")
"""Beginnings of variables by which an operator chooses."""


def share_heap(
    options: OnDemandOptions, environ: Mapping[str, str], mallopt: Callable[[int, int], int] | None = None
) -> bool:
    """Have all threads use one heap if models may be on demand; return whether they do.

    Called before the process has threads of its own: those that have a heap keep it.
    """
    if not (options.is_default or options.memory_budget) or any(map(_is_own_setting, environ)):
        return False
    if mallopt is None:
        try:
            mallopt = ctypes.CDLL(None).mallopt
        except (OSError, AttributeError, TypeError):
            _log.debug("the C library has no mallopt; its heaps stay as they are")
            return False
    settings = ((_ARENA_MAX, 1), (_MMAP_THRESHOLD, _HEAP_BYTES), (_TRIM_THRESHOLD, _KEPT_BYTES))
    return all(mallopt(name, value) for name, value in settings)


def _is_own_setting(variable: str) -> bool:
    return variable.startswith(_OWN_SETTINGS)
