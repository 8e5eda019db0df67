"""Control mode POLL where looks and work meet, with a catalog that is made up."""

import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import invalid_argument
from naiad.repository.catalog import Catalog as RealCatalog
from naiad.repository.control import poll
from naiad.repository.control.control_modes import RepositoryControl
from naiad.repository.control.controller import ModelController
from naiad.repository.control.poll import PollTrigger
from naiad.repository.model_plan import ModelPlan, member_names
from naiad.repository.stores.store import LocalStore, ModelEntry, ModelListing
from naiad.repository.stores.stores import RepositoryListing
from support.waiting import wait_until


class Stores:
    def __init__(self) -> None:
        self.on_look: Callable[[], object] = lambda: None
        self.models: dict[str, bytes] = {}
        self.read: list[str] = []

    def look(self) -> RepositoryListing:
        self.on_look()
        return RepositoryListing({name: [("/models", _listing(look))] for name, look in self.models.items()})

    def contents(self, name: str) -> bytes:
        self.read.append(name)
        raise RuntimeError(f"a defect in reading {name}")


def _listing(fingerprint: bytes) -> ModelListing:
    return ModelListing(lambda: pytest.fail("nothing is opened"), fingerprint)


class Catalog:
    namespaces = None

    def __init__(self) -> None:
        self.stores = Stores()
        self.unload_s: list[float] = []

    def abandon(self) -> None:
        pass

    def unload_all(self, timeout_s: float) -> bool:
        self.unload_s.append(timeout_s)
        return True

    def is_served(self, name: str) -> bool:
        return False

    def note_failure(self, name: str, reason: str) -> None:
        pass


@pytest.fixture
def catalog() -> Any:
    return Catalog()


@pytest.fixture
def controller(catalog: Any) -> ModelController[Any]:
    return ModelController(catalog, lambda: None)


@pytest.fixture
def trigger(controller: ModelController[Any]) -> PollTrigger[Any]:
    return PollTrigger(controller, poll_s=0.001, settle_s=0.0)


def test_unreachable_store_does_not_delay_the_end(
    catalog: Any,
    controller: ModelController[Any],
    trigger: PollTrigger[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(poll, "_LAST_LISTING_S", 0.01)
    control = RepositoryControl(controller, trigger.start, trigger.stop, takes_commands=False)
    assert control.load_at_start()
    looks, answers = threading.Event(), threading.Event()

    def wait() -> None:
        looks.set()
        answers.wait(60)

    catalog.stores.on_look = wait
    assert looks.wait(60)
    assert control.unload_all(6.0)
    assert catalog.unload_s[0] > 3
    # The late listing of the store has no effect.
    catalog.stores.models["late"] = b"1"
    answers.set()
    trigger._thread.join(60)
    assert not trigger._thread.is_alive()
    assert not catalog.stores.read


def test_unexpected_error_of_a_step_is_logged(
    catalog: Any, trigger: PollTrigger[Any], caplog: pytest.LogCaptureFixture
) -> None:
    catalog.stores.models["m"] = b"1"
    trigger._poll_once()
    trigger._pool.shutdown()
    assert catalog.stores.read == ["m"]
    (message,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert message.startswith("working on model 'm' failed unexpectedly: RuntimeError: a defect")
    assert not trigger._busy


class Version:
    def stop(self, timeout_s: float) -> bool:
        return True


class Loader:
    """A file `uses-x` makes a model an ensemble of x, which loads only if x is served."""

    def __init__(self) -> None:
        self.ready: Mapping[str, object] = {}
        self.loads: list[str] = []

    def publish(self, ready: Mapping[str, Mapping[int, Version]], name: str) -> None:
        self.ready = dict(ready)

    def plan(self, entry: ModelEntry) -> ModelPlan:
        config = ModelConfig(name=entry.name)
        for child in entry.model_dir.glob("uses-*"):
            config.ensemble_scheduling.step.add(model_name=child.name.removeprefix("uses-"))
        return ModelPlan(entry, config, list(entry.version_dirs))

    def config_of(self, loaded: Version) -> ModelConfig:
        return ModelConfig()

    def update(self, plan: ModelPlan, version: int, loaded: Version) -> None:
        return None

    def load(self, plan: ModelPlan, version: int) -> Version:
        self.loads.append(plan.entry.name)
        if not member_names(plan.config) <= self.ready.keys():
            raise invalid_argument("a member is not available")
        return Version()


class Repository:
    """A directory of models in poll mode; the test makes each poll."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.loader = Loader()
        catalog: RealCatalog[Version] = RealCatalog([LocalStore(root)], self.loader, self.loader.publish)
        self._trigger = PollTrigger(ModelController(catalog, lambda: None), poll_s=60.0, settle_s=0.0)

    def write(self, name: str, *members: str) -> None:
        (self.root / name / "1").mkdir(parents=True)
        for member in members:
            (self.root / name / f"uses-{member}").touch()

    def poll(self) -> list[str]:
        """Poll once and wait for all steps; return what is served."""
        self._trigger._poll_once()
        wait_until(lambda: not self._trigger._busy)
        return sorted(self.loader.ready)


def test_ensemble_is_loaded_after_its_missing_members(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    repository.write("e", "x", "y")
    assert repository.poll() == []
    repository.write("x")
    assert repository.poll() == ["x"]
    assert repository.poll() == ["x"]
    repository.write("y")
    assert repository.poll() == ["x", "y"]
    assert repository.poll() == ["e", "x", "y"]
    assert repository.loader.loads.count("e") == 2


def test_removed_member_suspends_its_ensemble(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    for name, members in {"x": (), "y": (), "e": ("x", "y")}.items():
        repository.write(name, *members)
    assert repository.poll() == ["e", "x", "y"]
    (tmp_path / "x" / "1").rmdir()
    (tmp_path / "x").rmdir()
    assert repository.poll() == ["y"]
    assert repository.poll() == ["y"]
    repository.write("x")
    assert repository.poll() == ["e", "x", "y"]


def test_changed_member_loads_its_ensemble_again_once(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    repository.write("x")
    repository.write("e", "x")
    repository.poll()
    repository.loader.loads.clear()
    (tmp_path / "x" / "1" / "weights").write_text("new")
    for _ in range(3):
        assert repository.poll() == ["e", "x"]
    assert repository.loader.loads == ["x", "e"]


def test_model_that_cannot_be_opened_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stores = [LocalStore(tmp_path / name) for name in ("a", "b")]
    loader = Loader()
    catalog: RealCatalog[Version] = RealCatalog(stores, loader, loader.publish)
    trigger = PollTrigger(ModelController(catalog, lambda: None), poll_s=60.0, settle_s=0.0)
    for name in ("a", "b"):
        (tmp_path / name / "m" / "1").mkdir(parents=True)
    for _ in range(3):
        trigger._poll_once()
    assert [row.reason.partition(":")[0] for row in catalog.index()] == ["model appears in two or more repositories"]
    assert catalog.load_failure_count == 1
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 1
    (tmp_path / "b" / "m" / "1").rmdir()
    (tmp_path / "b" / "m").rmdir()
    trigger._poll_once()
    wait_until(lambda: "m" in loader.ready)
    (tmp_path / "b" / "m" / "1").mkdir(parents=True)
    trigger._poll_once()
    assert catalog.load_failure_count == 2


def test_ignored_directories_are_reported_with_each_load(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    repository = Repository(tmp_path)
    repository.write("m")
    (tmp_path / "m" / "02").mkdir()

    def warnings() -> int:
        return len([record for record in caplog.records if "leading zeros" in record.getMessage()])

    for _ in range(3):
        assert repository.poll() == ["m"]
    assert warnings() == 1
    (tmp_path / "m" / "1" / "weights").write_text("new")
    repository.poll()
    assert warnings() == 2
