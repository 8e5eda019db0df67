from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from threading import Event

import pytest

from naiad.backend.load_stop import LoadStop
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import InferError, invalid_argument
from naiad.core.model import ModelState
from naiad.repository import loads as loads_module
from naiad.repository.catalog import Catalog
from naiad.repository.lifecycle import ReadyRule
from naiad.repository.model_plan import ModelPlan
from naiad.repository.stores.store import LocalStore, ModelEntry
from naiad.repository.stores.stores import DUPLICATE


class Version:
    def __init__(self, name: str, number: int, *, finishes: bool = True) -> None:
        self.key = (name, number)
        self.finishes = finishes
        self.stopped = 0

    def stop(self, timeout_s: float) -> bool:
        self.stopped += 1
        return self.finishes


class Loader:
    """Loads every version that is there, but for what `failures` says."""

    def __init__(self, failures: Mapping[tuple[str, int], list[Exception]] | None = None) -> None:
        self.failures = {key: list(errors) for key, errors in (failures or {}).items()}
        self.loaded: dict[tuple[str, int], Version] = {}
        self.on_load: Callable[[], None] = lambda: None

    def plan(self, entry: ModelEntry) -> ModelPlan:
        if not entry.version_dirs:
            raise invalid_argument(f"no version of '{entry.name}'")
        return ModelPlan(entry, ModelConfig(name=entry.name), list(entry.version_dirs))

    def load(self, plan: ModelPlan, version: int) -> Version:
        self.on_load()
        key = (plan.entry.name, version)
        if self.failures.get(key):
            raise self.failures[key].pop(0)
        self.loaded[key] = Version(*key)
        return self.loaded[key]


class Published:
    def __init__(self) -> None:
        self.ready: dict[str, list[int]] = {}

    def __call__(self, ready: Mapping[str, Mapping[int, Version]], name: str) -> None:
        self.ready = {name: sorted(versions) for name, versions in ready.items()}


def make_repository(root: Path, models: Mapping[str, tuple[int, ...]]) -> LocalStore:
    for name, versions in models.items():
        (root / name).mkdir(parents=True)
        for version in versions:
            (root / name / str(version)).mkdir()
    return LocalStore(root)


def test_load_all_publishes_every_ready_version(tmp_path: Path) -> None:
    published = Published()
    catalog = Catalog([make_repository(tmp_path, {"a": (1, 2), "b": (7,)})], Loader(), published)
    assert catalog.load_all()
    assert published.ready == {"a": [1, 2], "b": [7]}
    assert [(r.name, r.version, r.state) for r in catalog.index()] == [
        ("a", "1", ModelState.READY),
        ("a", "2", ModelState.READY),
        ("b", "7", ModelState.READY),
    ]
    assert catalog.is_ready()


def test_only_duplicated_model_is_unavailable(tmp_path: Path) -> None:
    stores = [
        make_repository(tmp_path / "x", {"m": (1,), "only": (1,)}),
        make_repository(tmp_path / "y", {"m": (1,)}),
    ]
    published = Published()
    catalog = Catalog(stores, Loader(), published)
    assert not catalog.load_all()
    row = next(row for row in catalog.index() if row.name == "m")
    assert (row.version, row.state, row.reason) == ("", ModelState.UNAVAILABLE, DUPLICATE)
    assert published.ready == {"only": [1]}
    assert catalog.is_ready()


def test_failed_version_releases_siblings_only(tmp_path: Path) -> None:
    loader = Loader({("a", 2): [invalid_argument("bad dims")]})
    published = Published()
    catalog = Catalog([make_repository(tmp_path, {"a": (1, 2), "b": (1,)})], loader, published)
    assert not catalog.load_all()
    assert loader.loaded["a", 1].stopped == 1
    assert loader.loaded["b", 1].stopped == 0
    assert published.ready == {"b": [1]}
    assert [(r.name, r.version, r.state, r.reason) for r in catalog.index()] == [
        ("a", "1", ModelState.UNAVAILABLE, "unloaded"),
        ("a", "2", ModelState.UNAVAILABLE, "Invalid argument: bad dims"),
        ("b", "1", ModelState.READY, ""),
    ]
    assert [r.name for r in catalog.index(ready_only=True)] == ["b"]
    assert catalog.load_failure_count == 1


def test_model_that_cannot_be_planned_keeps_its_reason(tmp_path: Path) -> None:
    catalog = Catalog([make_repository(tmp_path, {"empty": ()})], Loader(), Published())
    assert not catalog.load_all()
    (row,) = catalog.index()
    assert (row.version, row.state, row.reason) == ("", ModelState.UNAVAILABLE, "no version of 'empty'")
    assert catalog.load_failure_count == 1


def test_unforeseen_exception_becomes_the_reason_with_its_type(tmp_path: Path) -> None:
    loader = Loader({("a", 1): [ValueError("boom")]})
    catalog = Catalog([make_repository(tmp_path, {"a": (1,)})], loader, Published())
    assert not catalog.load_all()
    assert catalog.index()[0].reason == "Internal: ValueError: boom"


def test_load_is_retried_as_often_as_asked(tmp_path: Path) -> None:
    store = make_repository(tmp_path, {"a": (1,)})
    errors = [invalid_argument("first"), invalid_argument("second")]
    assert Catalog([store], Loader({("a", 1): errors}), Published(), load_retry_count=2).load_all()
    once = Catalog([store], Loader({("a", 1): errors}), Published(), load_retry_count=1)
    assert not once.load_all()
    assert once.index()[0].reason == "Invalid argument: second"


def test_abandoned_loading_begins_nothing_more(tmp_path: Path) -> None:
    loader = Loader()
    catalog = Catalog([make_repository(tmp_path, {"a": (1,), "b": (1,)})], loader, Published(), load_thread_count=1)
    loader.on_load = catalog.abandon
    assert not catalog.load_all()
    assert set(loader.loaded) == {("a", 1)}


def test_unreadable_repository_is_an_error_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(InferError):
        Catalog([LocalStore(tmp_path / "nothing")], Loader(), Published()).load_all()


def test_unload_all_stops_and_reports_unfinished_versions(tmp_path: Path) -> None:
    loader = Loader()
    published = Published()
    catalog = Catalog([make_repository(tmp_path, {"a": (1, 2), "b": (1,)})], loader, published)
    catalog.load_all()
    loader.loaded["a", 2].finishes = False
    assert not catalog.unload_all(timeout_s=1.0)
    assert [version.stopped for version in loader.loaded.values()] == [1, 1, 1]
    assert {row.reason for row in catalog.index()} == {"unloaded"}
    assert published.ready == {}
    assert catalog.unload_all(timeout_s=1.0)


def test_ready_rule_is_the_operators(tmp_path: Path) -> None:
    loader = Loader({("b", 1): [invalid_argument("broken")]})
    store = make_repository(tmp_path, {"a": (1,), "b": (1,)})
    catalog = Catalog([store], loader, Published(), ready_rule=ReadyRule("a"))
    assert not catalog.load_all()
    assert catalog.is_ready()


def ended_once_begun(loader: Loader, blocked: Event) -> LoadStop:
    """Have loads go on until `blocked` is set; return a stop that is requested when the first one has begun."""
    stop = LoadStop()

    def load() -> None:
        stop.request("it was unloaded")
        blocked.wait(60.0)

    loader.on_load = load
    return stop


class TestEndedLoads:
    """Loads that are asked to end inside a step that nothing can interrupt."""

    @pytest.fixture
    def scene(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Catalog, Loader, Event]]:
        monkeypatch.setattr(loads_module, "_STOP_S", 0.0)
        loader, blocked = Loader(), Event()
        catalog = Catalog([make_repository(tmp_path, {"a": (1, 2)})], loader, Published())
        yield catalog, loader, blocked
        blocked.set()

    def test_load_that_cannot_be_interrupted_is_deserted(self, scene: tuple[Catalog, Loader, Event]) -> None:
        catalog, loader, blocked = scene
        stop = ended_once_begun(loader, blocked)
        plan = catalog.plan(catalog.stores.find("a"))
        with pytest.raises(InferError, match="version 1 is at UNAVAILABLE state: Unavailable: it was unloaded"):
            catalog.load(plan, stop=stop)
        assert not catalog.is_served("a")
        with pytest.raises(InferError, match="an earlier load of 'a', which was asked to end, has not ended yet"):
            catalog.load(plan)
        assert not catalog.unload_all(0.0), "the process ends although the load goes on"
        blocked.set()
        assert catalog.unload_all(60.0)
        assert all(version.stopped for version in loader.loaded.values()), "the results are discarded"

    def test_load_is_possible_again_after_it_has_ended(self, scene: tuple[Catalog, Loader, Event]) -> None:
        catalog, loader, blocked = scene
        stop = ended_once_begun(loader, blocked)
        plan = catalog.plan(catalog.stores.find("a"))
        with pytest.raises(InferError):
            catalog.load(plan, stop=stop)
        blocked.set()
        assert catalog.unload_all(60.0)
        catalog.load(plan)
        assert catalog.is_served("a")

    def test_finished_load_that_had_to_end_is_released(self, scene: tuple[Catalog, Loader, Event]) -> None:
        catalog, loader, _ = scene
        stop = LoadStop()
        loader.on_load = lambda: stop.request("too late")
        with pytest.raises(InferError, match="too late"):
            catalog.load(catalog.plan(catalog.stores.find("a")), stop=stop)
        assert loader.loaded
        assert all(version.stopped for version in loader.loaded.values())

    def test_ended_load_is_not_tried_again(self, tmp_path: Path) -> None:
        stop = LoadStop()
        loader = Loader({("a", 1): [invalid_argument("broken")] * 5})
        loader.on_load = lambda: stop.request("it was unloaded")
        catalog = Catalog([make_repository(tmp_path, {"a": (1,)})], loader, Published(), load_retry_count=5)
        with pytest.raises(InferError, match="it was unloaded"):
            catalog.load(catalog.plan(catalog.stores.find("a")), stop=stop)
        assert len(loader.failures["a", 1]) == 4
