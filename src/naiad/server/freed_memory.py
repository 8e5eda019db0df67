"""Memory that requests and answers have left behind goes back to the system when the server is calm.

The C library keeps what is freed below anything that is still in use. Ten streams whose clients did not read left
50 MB of 64 KB pieces in the heap, which the next answers use again, but other processes cannot. To give it back takes
a walk of the heap under its lock, 5 ms for these 50 MB, so it is done rarely, and not while the server is busy.
"""

from pathlib import Path

from naiad.telemetry.process import read_resident_bytes

_LEAST_BYTES = 16 << 20
"""Less than this above the last low is left alone."""
_STEADY_BYTES = 1 << 20
"""The memory has come to rest when it changes by less between two looks."""
_CALM_SHARE = 0.25
"""The server is calm while it uses less than this share of one core."""
_LEAST_INTERVAL_NS = 3_000_000_000


class FreedMemory:
    """Decides when to give freed memory back. Asked about once a second; O(1)."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._low_bytes = 0
        """The least that was resident since memory was given back; 0 before the first look."""
        self._resident_bytes = 0
        self._now_ns = self._cpu_ns = 0
        self._given_back_ns = 0

    def is_due(self, now_ns: int, cpu_ns: int) -> bool:
        """Return whether to give memory back now. `cpu_ns` is the processor time that the process has used."""
        resident_bytes = read_resident_bytes(self._proc)
        is_calm = cpu_ns - self._cpu_ns < _CALM_SHARE * (now_ns - self._now_ns)
        is_steady = abs(resident_bytes - self._resident_bytes) < _STEADY_BYTES
        self._now_ns, self._cpu_ns, self._resident_bytes = now_ns, cpu_ns, resident_bytes
        self._low_bytes = min(self._low_bytes or resident_bytes, resident_bytes)
        if resident_bytes - self._low_bytes < _LEAST_BYTES or now_ns - self._given_back_ns < _LEAST_INTERVAL_NS:
            return False
        return is_calm and is_steady

    def given_back(self, now_ns: int) -> None:
        """Note that freed memory was given back: what is resident now is in use."""
        self._given_back_ns = now_ns
        self._low_bytes = self._resident_bytes = read_resident_bytes(self._proc)
