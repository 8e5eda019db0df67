"""Control mode POLL where looks and work meet, with a catalog that is made up."""

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from naiad.repository.control import poll
from naiad.repository.control.controller import ModelController
from naiad.repository.control.poll import PollTrigger
from naiad.repository.control.triggers import RepositoryControl
from naiad.repository.store import ModelListing
from naiad.repository.stores import RepositoryListing


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
    # What the store tells in the end is not acted upon.
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
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR] == [
        "working on model 'm' failed"
    ]
    assert not trigger._busy
