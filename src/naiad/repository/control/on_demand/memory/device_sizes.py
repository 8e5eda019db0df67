"""The sizes of the loaded models on demand on each GPU that has a budget: in this process, and in their workers."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from naiad.repository.control.on_demand.memory.budgets import Amounts
from naiad.repository.control.on_demand.memory.device_meter import DeviceMeter, DeviceReadings
from naiad.repository.control.on_demand.memory.memory_meter import LoadMeasure
from naiad.repository.control.on_demand.memory.model_sizes import ModelSizes


@dataclass(frozen=True, slots=True)
class DeviceLoad:
    """A model that was loaded."""

    gpus: Collection[str]
    """The budgets of the GPUs that its instances are on."""
    file_bytes: int
    workers: Collection[int]
    """The ids of its worker processes."""


class _OwnOfDevice:
    """What this process has of one GPU, as the last reading says."""

    def __init__(self) -> None:
        self.size_bytes = 0

    def own_bytes(self) -> int:
        return self.size_bytes


class DeviceSizes:
    """The bytes of GPUs that each loaded model has. Not thread-safe; the caller holds a lock."""

    def __init__(self, meter: DeviceMeter) -> None:
        self._meter = meter
        self._own = {budget: _OwnOfDevice() for budget in sorted(meter.budgets)}
        self._sizes = {budget: ModelSizes(own) for budget, own in self._own.items()}
        self._workers: dict[str, dict[str, int]] = {}
        """What the workers of each loaded model have, by budget."""
        self._measured: set[str] = set()

    def amounts(self, key: str) -> Amounts:
        """Return what a loaded model has of each GPU."""
        workers = self._workers.get(key, {})
        return {
            budget: sizes.own_bytes.get(key, 0) + workers.get(budget, 0)
            for budget, sizes in self._sizes.items()
            if sizes.own_bytes.get(key, 0) or workers.get(budget, 0)
        }

    def is_measured(self, key: str) -> bool:
        """Return whether a load of these files of a model was measured."""
        return not self._sizes or key in self._measured

    def note_loads(self, loads: Mapping[str, DeviceLoad], measure: LoadMeasure) -> None:
        """Note models that were loaded together."""
        for budget in self._sizes.keys() - measure.devices_after.keys():
            for key in [key for key, load in loads.items() if budget in load.gpus]:
                self._sizes[budget].assume(key, loads[key].file_bytes)
        workers = [process_id for load in loads.values() for process_id in load.workers]
        self._meter.learn(measure.devices_before, measure.devices_after, workers)
        for budget in self._sizes.keys() & measure.devices_after.keys():
            self._note_loads_of(budget, loads, measure)
        self.note_workers({key: load.workers for key, load in loads.items()}, measure.devices_after)
        if measure.grown_bytes is not None and measure.devices_before:
            self._measured.update(loads)

    def _note_loads_of(self, budget: str, loads: Mapping[str, DeviceLoad], measure: LoadMeasure) -> None:
        meter, sizes = self._meter, self._sizes[budget]
        after = measure.devices_after[budget]
        before = measure.devices_before.get(budget, after)
        are_measured = measure.grown_bytes is not None and budget in measure.devices_before
        grown_bytes = meter.growth(before, after) if are_measured else None
        # What workers have is reported for each of them, or part of the growth.
        own = {key: load for key, load in loads.items() if not (load.workers and meter.names_processes)}
        estimates = {key: load.file_bytes if budget in load.gpus else 0 for key, load in own.items()}
        is_expected = any(estimates.values())
        if not meter.has_learned or not own or not (is_expected or (meter.names_processes and grown_bytes)):
            return  # others may have taken what the GPU has less
        is_new = not meter.own_bytes(before) if meter.names_processes else not sizes.has_begun
        # The first use of a GPU has what CUDA itself needs in this process.
        brings_cuda = is_new and all(not load.workers for load in own.values())
        sizes.note_loads(estimates, meter.counted_bytes(before), grown_bytes, brings_library=brings_cuda)

    def note_others(self, measure: LoadMeasure) -> None:
        """Note what a load has added that brought no model on demand."""
        for budget, sizes in self._sizes.items():
            before, after = measure.devices_before.get(budget), measure.devices_after.get(budget)
            if before is not None and after is not None and self._meter.names_processes:
                sizes.note_others(self._meter.growth(before, after))

    def note_workers(self, workers: Mapping[str, Collection[int]], readings: DeviceReadings) -> None:
        """Note what the workers of loaded models have now."""
        if not self._meter.names_processes:
            return
        for key, process_ids in workers.items():
            found = {each: self._meter.workers_bytes(memory, process_ids) for each, memory in readings.items()}
            self._workers[key] = {budget: size_bytes for budget, size_bytes in found.items() if size_bytes}

    def note_growth(self, active: Sequence[str], budgets: Amounts, readings: DeviceReadings) -> set[str]:
        """Charge the growth of this process to the models that have executed; return those that have grown.

        Called while nothing loads and nothing is unloaded. Where no processes are reported, growth may be of others.
        """
        grown: set[str] = set()
        if self._meter.names_processes:
            for budget, memory in readings.items():
                self._own[budget].size_bytes = self._meter.own_bytes(memory)
                grown.update(self._sizes[budget].note_growth(active, budgets.get(budget, 0)))
        return grown

    def leave(self, key: str) -> None:
        """Note that a model was unloaded."""
        self._workers.pop(key, None)
        for sizes in self._sizes.values():
            sizes.leave(key)

    def pin(self, key: str) -> None:
        """Note that a model stays loaded, but is on demand no more."""
        for sizes in self._sizes.values():
            sizes.pin(key)
        self.forget(key)

    def forget(self, key: str) -> None:
        """Note that a model is on demand no more, or has other files."""
        self.leave(key)
        self._measured.discard(key)
        for sizes in self._sizes.values():
            sizes.forget(key)
