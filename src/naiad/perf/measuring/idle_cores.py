"""How many cores of this machine are idle, so that another generator process has one."""

import os
import time
from pathlib import Path

_STAT = Path("/proc/stat")


class IdleCores:
    """Measures from its creation on; Linux only, elsewhere none are idle."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._idle_s = _idle_s()

    def mean(self) -> float:
        """Return the mean number of idle cores."""
        elapsed_s = time.monotonic() - self._began_s
        return max(0.0, _idle_s() - self._idle_s) / elapsed_s if elapsed_s > 0 else 0.0


def _idle_s() -> float:
    """Return the idle seconds of all cores so far (proc(5), `cpu`: user, nice, system, idle, ...)."""
    try:
        fields = _STAT.read_text().split("\n", 1)[0].split()
        return int(fields[4]) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return 0.0
