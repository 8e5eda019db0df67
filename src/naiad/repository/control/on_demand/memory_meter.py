"""How much memory a load has added: the growth of this process, and the worker processes of the model as a whole."""

import mmap
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from naiad.telemetry.process_resources import read_resident_bytes

_LANE_WAIT_S = 1.0
"""Loads are measured one after the other. One that has waited this long for a slow one loads beside it."""


@dataclass(slots=True)
class LoadMeasure:
    """The growth of the process during a load."""

    begin_bytes: int
    grown_bytes: int | None = None
    """None while it loads, and for a load beside another, which cannot be told from it."""


class MemoryMeter:
    """Measures loads. Used on loading threads."""

    def __init__(self, read_bytes: Callable[[], int] = read_resident_bytes) -> None:
        self._read_bytes = read_bytes
        self._lane = threading.Lock()
        self._lock = threading.Lock()
        self._moved_bytes = 0
        """What other models have added to the process less what they have given back, since its start."""

    @contextmanager
    def measure(self) -> Iterator[LoadMeasure]:
        """Measure what the block adds to this process."""
        has_lane = self._lane.acquire(timeout=_LANE_WAIT_S)
        try:
            with self._lock:
                moved_bytes = self._moved_bytes
            found = LoadMeasure(self._read_bytes())
            yield found
            if has_lane:
                with self._lock:
                    others_bytes = self._moved_bytes - moved_bytes
                found.grown_bytes = max(0, self._read_bytes() - found.begin_bytes - others_bytes)
        finally:
            if has_lane:
                self._lane.release()

    def note_moved(self, size_bytes: int) -> None:
        """Note what a model that was not measured has added, or with a negative size what one has given back."""
        with self._lock:
            self._moved_bytes += size_bytes

    def own_bytes(self) -> int:
        """Return the resident memory of this process."""
        return self._read_bytes()


def workers_bytes(process_ids: Collection[int], proc: Path = Path("/proc")) -> int:
    """Return the resident memory of worker processes; one that has ended counts nothing."""
    total = 0
    for process_id in process_ids:
        try:
            total += int((proc / str(process_id) / "statm").read_text().split()[1]) * mmap.PAGESIZE
        except (OSError, ValueError, IndexError):
            continue
    return total
