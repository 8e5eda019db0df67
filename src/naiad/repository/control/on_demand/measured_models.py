"""What is measured of the models on demand: their sizes when they load, their use, and how they grow."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Condition, RLock
from typing import Generic

from naiad.config.load_policy import read_load_policy
from naiad.repository.control.controller import ModelController
from naiad.repository.control.on_demand.known_models import KnownModels, directory_bytes
from naiad.repository.control.on_demand.memory.budgets import HOST, Amounts, gpu_budgets_of, total_of
from naiad.repository.control.on_demand.memory.device_meter import DeviceReadings
from naiad.repository.control.on_demand.memory.device_sizes import DeviceLoad, DeviceSizes
from naiad.repository.control.on_demand.memory.memory_meter import LoadMeasure, MemoryMeter, workers_bytes
from naiad.repository.control.on_demand.memory.model_sizes import ModelSizes, imported_modules, is_library
from naiad.repository.control.on_demand.on_demand_settings import OnDemandSettings, VersionUse
from naiad.repository.control.on_demand.residency import Residency
from naiad.repository.control.on_demand.resident import ResidencePhase, Use, Uses
from naiad.repository.lifecycle import V


@dataclass(frozen=True, slots=True)
class OnDemandTable:
    """All that is known of the models on demand."""

    residency: Residency
    meter: MemoryMeter
    sizes: ModelSizes = field(init=False)
    """Of the host's memory, without that of workers."""
    devices: DeviceSizes = field(init=False)
    known: KnownModels = field(default_factory=KnownModels)
    lock: RLock = field(default_factory=RLock)
    """Guards them. The loop takes it: what takes time is outside."""
    changed: Condition = field(init=False)
    """Of this lock; notified when there may be room."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "changed", Condition(self.lock))
        object.__setattr__(self, "sizes", ModelSizes(self.meter))
        object.__setattr__(self, "devices", DeviceSizes(self.meter.devices))

    def forget_sizes(self, key: str) -> None:
        """Note that a model is on demand no more, or has other files: its next load is measured."""
        self.sizes.forget(key)
        self.devices.forget(key)

    def pin_sizes(self, key: str) -> None:
        """Note that a model is on demand no more and stays loaded."""
        self.sizes.pin(key)
        self.devices.pin(key)

    def leave_sizes(self, key: str) -> None:
        """Note that a model was unloaded."""
        self.sizes.leave(key)
        self.devices.leave(key)


class MeasuredModels(Generic[V]):
    """Loads models and notes what they take. For threads."""

    def __init__(
        self,
        controller: ModelController[V],
        settings: OnDemandSettings,
        table: OnDemandTable,
        use_of: Callable[[V], VersionUse],
        clock: Callable[[], float],
        *,
        withdraw: Callable[..., object],
        on_known: Callable[[], object],
        on_brought: Callable[[str], object],
    ) -> None:
        """`withdraw` gets a model that is not on demand after its load, `on_known` is called for each other one.

        `on_brought` gets a model for which requests wait that no load of their own ends.
        """
        self._controller = controller
        self._catalog = controller.catalog
        self._settings = settings
        self._residency, self._sizes, self._devices = table.residency, table.sizes, table.devices
        self._meter = table.meter
        self._known, self._changed = table.known, table.changed
        self._use_of = use_of
        self._clock = clock
        self._withdraw = withdraw
        self._on_known = on_known
        self._on_brought = on_brought
        self._swept_s = 0.0
        self.workers: dict[str, Sequence[int]] = {}
        """The worker processes of the loaded models, as the last look at their use has found them."""

    # --- loads ------------------------------------------------------------------------------------------------------

    def load_by_command(self, name: str, load: Callable[[], None]) -> None:
        """Load or update the models of a name now, because of a command or of changed files. Raises InferError."""
        if self._sizes.has_begun or self._settings.default.is_on_demand:
            self.load_measured(lambda: self._catalog.known_as(name), load)
            return
        with self._meter.disturb():
            load()
        keys = self._catalog.known_as(name)
        self._note_loads(keys, (), LoadMeasure(self._meter.own_bytes()), 0, were_there=True)

    def load_measured(self, keys: Callable[[], Sequence[str]], load: Callable[[], None], protected: str = "") -> None:
        """Load models and note their sizes, and the sizes of members that have come with them. Raises InferError."""
        with self._changed:
            served = {each for key in keys() for each in self._residency.family(key) if self._catalog.is_served(each)}
            were_there = any(self._catalog.is_served(key) and key not in self._residency.models for key in keys())
            meter, is_known = self._meter, self._is_measured(protected)
        imported_count = imported_modules()
        if is_known:
            # Loads that are measured take turns; this one need not wait for its turn.
            measure = LoadMeasure(meter.own_bytes())
            with meter.disturb():
                load()
        else:
            with meter.measure() as measure:
                load()
        imported_count = imported_modules() - imported_count
        self._note_loads(keys(), served, measure, imported_count, protected, were_there=were_there)

    def _is_measured(self, key: str) -> bool:
        """Return whether the sizes of a model and of the members that it brings are known; the lock is held."""
        family = self._residency.family(key)
        return bool(family) and all(
            self._sizes.is_measured(each) and self._devices.is_measured(each) for each in family
        )

    def _note_loads(
        self,
        keys: Sequence[str],
        served: Collection[str],
        measure: LoadMeasure,
        imported_count: int,
        protected: str = "",
        *,
        were_there: bool = False,
    ) -> None:
        """Note what a load has brought; `served` were there before, as the new ones `were_there`, not on demand."""
        for key in keys:
            self._note_served(key, must_be_known=key == protected)
        with self._changed:
            family = {each for key in keys for each in self._residency.family(key) if self._catalog.is_served(each)}
        workers = {each: self._worker_ids(each) for each in family}
        sizes = {each: workers_bytes(process_ids) for each, process_ids in workers.items()}
        mapped = {each: self._mapped_bytes(each) for each in family}
        measure.devices_after = measure.devices_after or self._meter.devices.read()
        awaited: list[str] = []
        with self._changed:
            family.intersection_update(self._residency.models)
            new = family.difference(served)
            estimates = {each: self._residency.file_estimate(each).get(HOST, 0) for each in new}
            if estimates:
                brings_library = is_library(imported_count)
                grown_bytes = measure.grown_bytes
                self._sizes.note_loads(
                    estimates,
                    measure.begin_bytes,
                    grown_bytes,
                    brings_library=brings_library,
                    were_there=were_there,
                    mapped=mapped,
                )
                gpus = {each: self._residency.models[each].gpus for each in new}
                loads = {each: DeviceLoad(gpus[each], estimates[each], workers[each]) for each in new}
                self._devices.note_loads(loads, measure)
            elif not family and measure.grown_bytes:
                self._sizes.note_others(measure.grown_bytes)
                self._devices.note_others(measure)
            for each in new.union(family.intersection(keys)):
                self._sizes.own_bytes.setdefault(each, self._residency.file_estimate(each).get(HOST, 0))
                amounts = self._amounts(each, sizes[each])
                if self._residency.loaded(each, amounts, self._clock(), is_protected=each == protected):
                    awaited.append(each)
            self._changed.notify_all()
        for each in awaited:
            self._on_brought(each)

    def _amounts(self, key: str, worker_bytes: int) -> Amounts:
        """Return what a loaded model takes of each budget; the lock is held."""
        return total_of([{HOST: self._sizes.own_bytes.get(key, 0) + worker_bytes}, self._devices.amounts(key)])

    def _note_served(self, key: str, *, must_be_known: bool) -> None:
        """Note the policy and the members of a model as they were loaded; not of one that was withdrawn meanwhile."""
        config = self._catalog.served_config(key)
        if config is None:
            return
        policy = read_load_policy(config, self._settings.default)
        if not policy.is_on_demand:
            self._withdraw(key, stays=True)
            return
        gpus = gpu_budgets_of(config, self._meter.devices.budgets)
        record = self._controller.loaded.records.get(key)
        versions = tuple(self._catalog.served_versions(key))
        file_bytes = 0
        if record is not None:
            file_bytes = sum(directory_bytes(record.plan.entry.version_dirs[number]) for number in versions)
        with self._changed:
            if must_be_known and key not in self._residency.models:
                return
            self._residency.add(key, policy, file_bytes, () if record is None else record.members, gpus)
            self._known.know(key, versions, config)
        self._catalog.note_cold(key, versions)  # they are loaded: it notes that a request will load them again
        self._on_known()

    # --- use and growth ---------------------------------------------------------------------------------------------

    def read_devices(self) -> DeviceReadings:
        """Return the memory of the GPUs, as far as growth can be noted; takes time, without the lock."""
        return self._meter.devices.read() if self._meter.devices.names_processes else {}

    def note_growth(self, uses: Uses, sizes: Mapping[str, int], readings: DeviceReadings, now_s: float) -> None:
        """Charge what models have grown by; `sizes` has the bytes of their workers. The lock is held."""
        grown: set[str] = {key for key in uses if key in sizes}
        self._devices.note_workers({key: self.workers[key] for key in grown}, readings)
        if not self._residency.count(ResidencePhase.LOADING) and not self._residency.count(ResidencePhase.EVICTING):
            active = [key for key, use in uses.items() if use.last_s >= self._swept_s or use.is_busy]
            grown.update(self._sizes.note_growth(active, self._settings.budget_bytes))
            grown.update(self._devices.note_growth(active, self._settings.budgets, readings))
        for key in grown:
            self._residency.resize(key, self._amounts(key, sizes.get(key, 0)))
        self._note_unexplained(has_workers=bool(sizes))
        self._swept_s = now_s

    def _note_unexplained(self, *, has_workers: bool) -> None:
        """Charge what the process has beyond the sizes of its models to all of them; the lock is held."""
        residency, budget_bytes = self._residency, self._settings.budget_bytes
        if not budget_bytes:
            return
        loading = residency.of_phase(ResidencePhase.LOADING)
        if residency.count(ResidencePhase.COLD) == len(residency.models) and self._meter.is_quiet:
            self._sizes.begin_again()
        loading_bytes = sum(residency.models[key].charged.get(HOST, 0) for key in loading)
        unexplained_bytes = self._sizes.note_unexplained(loading_bytes, budget_bytes)
        # What a model with workers is charged while it loads is not in this process.
        residency.unexplained = {HOST: max(0, unexplained_bytes) if has_workers else unexplained_bytes}

    def _worker_ids(self, key: str) -> list[int]:
        versions = self._catalog.loaded_versions(key).values()
        return [process_id for version in versions for process_id in self._use_of(version).process_ids]

    def _mapped_bytes(self, key: str) -> int:
        return sum(self._use_of(version).mapped_bytes for version in self._catalog.loaded_versions(key).values())

    def uses(self) -> dict[str, Use]:
        """Return how the loaded models are used now; the lock is held."""
        found: dict[str, Use] = {}
        self.workers = {}
        for key in self._residency.of_phase(ResidencePhase.LOADED):
            uses = [self._use_of(version) for version in self._catalog.loaded_versions(key).values()]
            found[key] = Use(
                max((use.last_s for use in uses), default=0.0),
                is_busy=any(use.in_flight_count for use in uses),
                is_bound=any(use.is_bound for use in uses),
            )
            self.workers[key] = [process_id for use in uses for process_id in use.process_ids]
        return found
