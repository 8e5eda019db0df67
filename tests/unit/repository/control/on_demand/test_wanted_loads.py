"""Requests that are held while something else happens to their model: none of them is lost or refused for it."""

import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from naiad.config.load_policy import LoadPolicy
from naiad.core.errors import invalid_argument
from naiad.repository.control.on_demand.memory.budgets import HOST
from naiad.repository.control.on_demand.resident import Ask
from support.on_demand_scene import MB, WAIT_S, Scene, Version
from support.waiting import wait_until

if TYPE_CHECKING:
    from naiad.repository.control.on_demand.on_demand_models import OnDemandModels


def hold_a(scene: Scene, models: "OnDemandModels[Version]") -> None:
    """Have a request wait for model a, whose load goes on until `may_load` is set."""
    scene.loader.may_load.clear()
    scene.loader.has_begun.clear()
    assert models.ask("a") is Ask.BEGIN
    assert scene.loader.has_begun.wait(WAIT_S)


def hold_a_behind_b(scene: Scene, models: "OnDemandModels[Version]") -> None:
    """Have a request wait for model a, for which there is no room beside b, which has a sequence."""
    assert scene.request(models, "b") is None
    scene.ready["b"][1].is_bound = True
    assert models.ask("a") is Ask.BEGIN


def pin(directory: Path) -> None:
    (directory / "on-demand").unlink(missing_ok=True)
    (directory / "pinned").touch()


@pytest.mark.parametrize("is_default", [True, False], ids=["by-default", "by-itself"])
@pytest.mark.parametrize("is_broken", [False, True])
def test_model_that_becomes_pinned_settles_once(
    scenes: Callable[..., Scene], is_default: bool, is_broken: bool
) -> None:
    scene = scenes(budget=MB)
    scene.settings = replace(scene.settings, default=LoadPolicy(is_on_demand=is_default))
    for name in ("a", "b"):
        (scene.write(name).parent / "on-demand").touch()
    with scene.polled() as (models, poll):
        hold_a_behind_b(scene, models)
        pin(scene.root / "a")
        if is_broken:
            (scene.root / "a" / "1" / "broken").touch()
        poll()
        scene.settled("a")
        wait_until(lambda: not models._loading)
        assert ["broken" in failure.message for failure in scene.ended["a"] if failure] == [True] * is_broken
        assert scene.loaded() == ({"b"} if is_broken else {"a", "b"})
        assert models.find("a") is None


def test_pinning_load_ends_what_a_failed_one_held(scenes: Callable[..., Scene]) -> None:
    scene = scenes()
    scene.write("a")
    with scene.polled() as (models, poll):
        hold_a(scene, models)
        begins_to_pin, stays_cold = threading.Event(), models.stays_cold

        def note(*arguments: object) -> bool:
            found = stays_cold(*arguments)  # type: ignore[arg-type]  # a plan
            begins_to_pin.set()
            return found

        models.stays_cold = note  # type: ignore[method-assign]  # the test waits for it
        pin(scene.root / "a")
        poll()
        assert begins_to_pin.wait(WAIT_S)
        scene.loader.fails_next = True
        scene.loader.may_load.set()
        assert scene.settled("a") == [None]
        assert scene.loaded() == {"a"}
        assert scene.loader.loads == ["a", "a"]


@pytest.mark.parametrize("is_broken", [False, True])
def test_changed_files_are_loaded_by_the_same_load(scenes: Callable[..., Scene], is_broken: bool) -> None:
    scene = scenes()
    scene.write("a")
    with scene.polled() as (models, poll):
        scene.loader.fails_next = is_broken
        hold_a(scene, models)
        second = scene.root / "a" / "2"
        shutil.copytree(scene.root / "a" / "1", second)
        poll()
        wait_until(lambda: models._residency.models["a"].has_new_files)
        scene.loader.may_load.set()
        assert scene.settled("a") == [None]
        assert set(scene.ready["a"]) == {1, 2}


def test_ensemble_with_another_member_brings_it(scenes: Callable[..., Scene]) -> None:
    scene = scenes()
    scene.write("b")
    scene.write("c")
    (scene.write("a", 0).parent / "uses-b").touch()
    with scene.polled() as (models, poll):
        hold_a(scene, models)
        (scene.root / "a" / "uses-c").touch()
        poll()
        wait_until(lambda: models._residency.models["a"].has_new_files)
        scene.loader.may_load.set()
        assert scene.settled("a") == [None]
        assert scene.loaded() == {"a", "b", "c"}
        assert models.used[HOST] == 2 * MB


def test_model_that_is_put_back_is_loaded_again(scenes: Callable[..., Scene]) -> None:
    scene = scenes()
    scene.write("a")
    with scene.polled() as (models, poll):
        hold_a(scene, models)
        shutil.rmtree(scene.root / "a")
        poll()
        failures = scene.settled("a")
        assert [failure is not None and "was unloaded" in failure.message for failure in failures] == [True]
        scene.loader.may_load.set()
        wait_until(lambda: not models._loading and not scene.loaded())
        scene.write("a")
        wait_until(lambda: poll() or models.find("a") is not None)
        assert scene.request(models, "a") is None


def test_withdrawn_load_leaves_the_new_one_alone(
    scenes: Callable[..., Scene], monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = scenes(mode="explicit")
    scene.write("a")
    models = scene.open()
    assert scene.control is not None
    load = models._wanted._load_current
    found: list[object] = []

    def load_late(key: str) -> bool:
        monkeypatch.setattr(models._wanted, "_load_current", load)
        assert scene.control is not None
        scene.control.unload_model(key, {})
        models.defers(scene.catalog.plan(scene.catalog.stores.find(key)))  # as a start or a look at the stores does
        found.append(models.ask(key))
        raise invalid_argument("its files are gone")

    monkeypatch.setattr(models._wanted, "_load_current", load_late)
    assert models.ask("a") is Ask.BEGIN
    wait_until(lambda: scene.loaded() == {"a"} and not models._loading)
    assert found == [Ask.BEGIN]
    assert sum(failure is not None for failure in scene.ended["a"]) == 1, "only the unload refuses requests"


@pytest.mark.parametrize("pins", [False, True])
def test_command_during_an_eviction_settles(scenes: Callable[..., Scene], pins: bool) -> None:
    scene = scenes(mode="explicit", budget=MB)
    scene.write("a")
    scene.write("b")
    models = scene.open()
    assert scene.control is not None
    assert scene.request(models, "a") is None
    scene.now_s += 1
    evict, may_evict, has_begun = models._controller.evict, threading.Event(), threading.Event()

    def evict_late(*arguments: object) -> None:
        has_begun.set()
        assert may_evict.wait(WAIT_S)
        evict(*arguments)  # type: ignore[arg-type]  # the arguments of the eviction

    models._controller.evict = evict_late  # type: ignore[method-assign]  # the test comes between
    assert models.ask("b") is Ask.BEGIN
    assert has_begun.wait(WAIT_S)
    assert models.ask("a") is Ask.HELD
    if pins:
        pin(scene.root / "a")
        (scene.root / "a" / "1" / "more").touch()
    scene.control.load_model("a", {})
    assert scene.settled("a", 2) == [None, None]
    may_evict.set()
    assert scene.settled("b") == [None]
    models.release("b")
    if pins:
        assert scene.loaded() == {"a", "b"}, "what was pinned meanwhile does not leave"
        assert models.find("a") is None
    else:
        assert scene.request(models, "a") is None


def test_rollout_of_a_cold_model_is_counted(scenes: Callable[..., Scene]) -> None:
    scene = scenes(mode="explicit")
    scene.write("a")
    models = scene.open()
    assert scene.control is not None
    hold_a(scene, models)
    beside = threading.Thread(target=scene.control.load_beside, args=("a",))
    beside.start()
    scene.loader.may_load.set()
    beside.join(WAIT_S)
    assert scene.settled("a") == [None]
    assert models.counts()["loaded"] == 1
    with models._changed:
        models._residency.begin_eviction("a")
    models._evict(["a"])
    assert models.counts()["cold"] == 1
    scene.control.load_beside("a")
    assert models.counts()["loaded"] == 1
    assert models.used[HOST] == MB
