"""Models on demand over a catalog whose loader only counts."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from naiad.config.load_policy import LoadPolicy
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import InferError, invalid_argument
from naiad.repository.catalog import Catalog
from naiad.repository.control.control_modes import RepositoryControl, explicit_control, no_control
from naiad.repository.control.controller import ModelController
from naiad.repository.control.on_demand.memory.budgets import HOST
from naiad.repository.control.on_demand.memory.memory_meter import MemoryMeter
from naiad.repository.control.on_demand.on_demand_models import OnDemandModels
from naiad.repository.control.on_demand.on_demand_settings import OnDemandSettings, VersionUse
from naiad.repository.control.on_demand.resident import Ask
from naiad.repository.control.poll import PollTrigger
from naiad.repository.lifecycle import ReadyRule
from naiad.repository.model_plan import ModelPlan
from naiad.repository.stores.store import LocalStore, ModelEntry

MB = 1 << 20
WAIT_S = 60.0


class Version:
    def __init__(self, name: str, config: ModelConfig, stop: Callable[[], None]) -> None:
        self.name, self.config = name, config
        self.last_s, self.in_flight_count, self.is_bound = 0.0, 0, False
        self._stop = stop
        self.is_stopping = threading.Event()
        self.before_stop: Callable[[], object] = lambda: None

    def stop(self, timeout_s: float) -> bool:
        self.is_stopping.set()
        self.before_stop()
        self._stop()
        return True


class Loader:
    """A model has the size of its files; a file `broken` makes its load fail, `uses-x` makes it an ensemble of x."""

    def __init__(self) -> None:
        self.loads: list[str] = []
        self.resident_bytes = 100 * MB
        self.factor = 1
        self._lock = threading.Lock()
        self.may_load = threading.Event()
        self.may_load.set()
        self.has_begun = threading.Event()
        self.fails_next = False

    def plan(self, entry: ModelEntry) -> ModelPlan:
        config = ModelConfig(name=entry.name)
        for child in entry.model_dir.iterdir():
            if child.name.startswith("uses-"):
                config.ensemble_scheduling.step.add(model_name=child.name.removeprefix("uses-"))
            if child.name == "pinned":
                config.parameters["load_policy"].string_value = "pinned"
            if child.name == "on-demand":
                config.parameters["load_policy"].string_value = "on-demand"
        return ModelPlan(entry, config, list(entry.version_dirs))

    def add(self, size: int) -> None:
        with self._lock:
            self.resident_bytes += size

    def config_of(self, loaded: Version) -> ModelConfig:
        return loaded.config

    def update(self, plan: ModelPlan, version: int, loaded: Version) -> None:
        return None

    def load(self, plan: ModelPlan, version: int) -> Version:
        self.has_begun.set()
        self.may_load.wait(WAIT_S)
        self.loads.append(plan.entry.name)
        if self.fails_next:
            self.fails_next = False
            raise invalid_argument("failed once")
        directory = plan.entry.version_dirs[version]
        if (directory / "broken").exists():
            raise invalid_argument("broken")
        size = self.factor * sum(path.stat().st_size for path in directory.iterdir())
        self.add(size)

        def stop() -> None:
            self.add(-size)

        return Version(plan.entry.name, plan.config, stop)


class Scene:
    """`budget` in bytes. Time stands still unless `now_s` is set."""

    def __init__(self, root: Path, *, budget: int = 0, mode: str = "none", hold_s: float = WAIT_S) -> None:
        self.root, self.mode = root, mode
        self.loader = Loader()
        self.ready: Mapping[str, Mapping[int, Version]] = {}
        self.now_s = 1000.0
        self.catalog: Catalog[Version] = Catalog(
            [LocalStore(root)], self.loader, self._publish, ready_rule=ReadyRule()
        )
        self.settings = OnDemandSettings(LoadPolicy(is_on_demand=True), {HOST: budget}, hold_s)
        self.at_start = ["*"]
        self.ended: dict[str, list[InferError | None]] = {}
        self._has_ended = threading.Condition()
        self.control: RepositoryControl[Version] | None = None

    def open(self) -> "OnDemandModels[Version]":
        if self.mode == "none":
            self.control = no_control(self.catalog, make_on_demand=self.make)
        else:
            self.control = explicit_control(self.catalog, lambda: None, self.at_start, make_on_demand=self.make)
        assert self.control.load_at_start()
        assert self.control.on_demand is not None
        return self.control.on_demand

    def make(self, controller: ModelController[Version]) -> OnDemandModels[Version]:
        models = OnDemandModels(
            controller,
            self.settings,
            lambda version: VersionUse(version.last_s, version.in_flight_count, version.is_bound),
            clock=lambda: self.now_s,
            meter=MemoryMeter(lambda: self.loader.resident_bytes),
        )
        models.on_settled = self._note_end
        return models

    def _publish(self, ready: Mapping[str, Mapping[int, Version]], name: str) -> None:
        self.ready = dict(ready)

    def _note_end(self, key: str, failure: InferError | None) -> None:
        with self._has_ended:
            self.ended.setdefault(key, []).append(failure)
            self._has_ended.notify_all()

    def write(self, name: str, size: int = MB) -> Path:
        directory = self.root / name / "1"
        directory.mkdir(parents=True)
        (directory / "model").write_bytes(bytes(size))
        return directory

    def request(self, models: "OnDemandModels[Version]", name: str) -> InferError | None:
        """Ask for a model and wait for the end of its load, whose error is returned."""
        before = len(self.ended.get(name, ()))
        if models.ask(name) is Ask.READY:
            return None
        with self._has_ended:
            assert self._has_ended.wait_for(lambda: len(self.ended.get(name, ())) > before, WAIT_S)
        models.release(name)
        return self.ended[name][-1]

    def settled(self, name: str, count: int = 1) -> list[InferError | None]:
        """Wait until loads of a model have ended; return their errors."""
        with self._has_ended:
            assert self._has_ended.wait_for(lambda: len(self.ended.get(name, ())) >= count, WAIT_S)
        return self.ended[name]

    def loaded(self) -> set[str]:
        return set(self.ready)

    @contextmanager
    def polled(self) -> "Iterator[tuple[OnDemandModels[Version], Callable[[], None]]]":
        """Yield the models of a server that polls, and what has it look at the repository."""
        controller = ModelController(self.catalog, lambda: None)
        models = self.make(controller)
        trigger = PollTrigger(controller, poll_s=WAIT_S, settle_s=0.0, on_demand=models)
        assert trigger.start()
        yield models, trigger._poll_once
        trigger.stop(WAIT_S)
        models.abandon()
        assert controller.unload_all(WAIT_S)
