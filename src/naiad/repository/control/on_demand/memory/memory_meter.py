"""How much memory a load has added: the growth of this process, and the worker processes of the model as a whole."""

import mmap
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from naiad.repository.control.on_demand.memory.device_meter import DeviceMeter, DeviceReadings
from naiad.telemetry.process_resources import read_resident_bytes
from naiad.telemetry.trim_pace import heap_trims

_LANE_WAIT_S = 1.0
"""Loads are measured one after the other. One that has waited this long for a slow one loads beside it."""


@dataclass(slots=True)
class LoadMeasure:
    """The growth of the process during a load."""

    begin_bytes: int
    grown_bytes: int | None = None
    """None while it loads, and if another load or an unload was in progress: their part cannot be separated."""
    devices_before: DeviceReadings = field(default_factory=dict)
    devices_after: DeviceReadings = field(default_factory=dict)


class MemoryMeter:
    """Measures loads. Used on loading threads."""

    def __init__(
        self,
        read_bytes: Callable[[], int] = read_resident_bytes,
        return_freed: Callable[[], object] = heap_trims.settle,
        devices: DeviceMeter | None = None,
    ) -> None:
        """`return_freed` returns freed memory to the system, which otherwise counts as used."""
        self._read_bytes = read_bytes
        self.return_freed = return_freed
        self.devices = devices or DeviceMeter()
        self._lane = threading.Lock()
        self._lock = threading.Lock()
        self._others = 0
        """Loads without the lane and unloads in progress."""
        self._others_begun = 0

    @contextmanager
    def measure(self) -> Iterator[LoadMeasure]:
        """Measure what the block adds to this process."""
        if not self._lane.acquire(timeout=_LANE_WAIT_S):
            with self.disturb():
                yield LoadMeasure(self._read_bytes())
            return
        try:
            with self._lock:
                is_alone, others_begun = not self._others, self._others_begun
            self.return_freed()
            found = LoadMeasure(self._read_bytes(), devices_before=self.devices.read())
            yield found
            self.return_freed()
            found.devices_after = self.devices.read()
            with self._lock:
                is_alone = is_alone and others_begun == self._others_begun
            if is_alone:
                found.grown_bytes = max(0, self._read_bytes() - found.begin_bytes)
        finally:
            self._lane.release()

    @contextmanager
    def disturb(self) -> Iterator[None]:
        """Let no load be measured while the block changes the memory of this process."""
        with self._lock:
            self._others += 1
            self._others_begun += 1
        try:
            yield
        finally:
            with self._lock:
                self._others -= 1

    @property
    def is_quiet(self) -> bool:
        """Whether nothing loads or is unloaded."""
        with self._lock:
            return not self._others and not self._lane.locked()

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
