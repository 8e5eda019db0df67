"""Models on demand over a catalog whose loader only counts: threads, commands, polling, and the end."""

import shutil
import threading
import time
from collections.abc import Callable, Collection
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from naiad.config.load_policy import LoadPolicy
from naiad.core.model import COLD, ModelState
from naiad.repository.control.on_demand import on_demand_models
from naiad.repository.control.on_demand.load_pace import LoadTurns
from naiad.repository.control.on_demand.memory.budgets import HOST
from naiad.repository.control.on_demand.on_demand_settings import OnDemandSettings
from naiad.repository.control.on_demand.resident import Ask, LoadRefusal
from support.on_demand_scene import MB, WAIT_S, Scene
from support.waiting import wait_until

if TYPE_CHECKING:
    from naiad.core.errors import InferError


def test_nothing_is_loaded_before_a_request(scenes: Callable[..., Scene]) -> None:
    scene = scenes()
    scene.write("m")
    (scene.write("fixed").parent / "pinned").touch()
    models = scene.open()
    assert scene.loader.loads == ["fixed"]
    rows = {row.name: row for row in scene.catalog.index()}
    assert (rows["m"].state, rows["m"].reason) == (ModelState.UNAVAILABLE, COLD)
    assert scene.catalog.is_ready()
    assert models.find("m") == "m"
    assert models.find("fixed") is None
    assert models.find("other") is None
    assert scene.request(models, "m") is None
    assert scene.loaded() == {"m", "fixed"}
    assert {row.state for row in scene.catalog.index()} == {ModelState.READY}


def test_least_recently_used_model_makes_room(scenes: Callable[..., Scene]) -> None:
    scene = scenes(budget=2 * MB)
    for name in ("a", "b", "c"):
        scene.write(name)
    models = scene.open()
    for name in ("a", "b"):
        assert scene.request(models, name) is None
        scene.now_s += 1
    scene.ready["a"][1].last_s = scene.now_s
    assert scene.request(models, "c") is None
    assert scene.loaded() == {"a", "c"}
    assert models.used[HOST] == 2 * MB
    assert models.eviction_count == 1
    assert models.counts() == {"cold": 1, "loading": 0, "loaded": 2, "evicting": 0}
    assert {row.name: row.reason for row in scene.catalog.index()} == {"a": "", "b": COLD, "c": ""}


def test_measured_size_counts_instead_of_the_files(scenes: Callable[..., Scene]) -> None:
    scene = scenes(budget=5 * MB)
    scene.loader.factor = 3
    scene.write("a")
    scene.write("b")
    models = scene.open()
    assert scene.request(models, "a") is None
    assert models.used[HOST] == 3 * MB
    scene.now_s += 1
    assert scene.request(models, "b") is None
    # The first one leaves at once, not with the next sweep; its thread may take a moment.
    wait_until(lambda: models.used[HOST] <= 5 * MB)
    scene.now_s += 1
    assert scene.request(models, "a") is None
    assert models.used[HOST] == 3 * MB


def test_model_above_the_budget_is_refused(scenes: Callable[..., Scene]) -> None:
    scene = scenes(budget=2 * MB)
    scene.loader.factor = 3
    scene.write("a")
    models = scene.open()
    failure = scene.request(models, "a")
    assert failure is not None
    assert f"{3 * MB} bytes" in failure.message
    assert f"{2 * MB} bytes" in failure.message
    assert scene.loaded() == set()
    assert [row.reason in failure.message for row in scene.catalog.index()] == [True]
    assert scene.catalog.is_ready()
    assert scene.loader.resident_bytes == 100 * MB
    assert isinstance(models.ask("a"), LoadRefusal)
    scene.loader.factor = 1  # it was measured in a bad moment
    scene.now_s += 1
    assert scene.request(models, "a") is None
    assert models.used[HOST] == MB


def test_failed_load_has_its_reason_and_a_pause(scenes: Callable[..., Scene]) -> None:
    scene = scenes()
    (scene.write("a") / "broken").touch()
    models = scene.open()
    failure = scene.request(models, "a")
    assert failure is not None
    assert "broken" in failure.message
    assert models.ask("a") == LoadRefusal(failure.message, 1.0)
    assert not models.is_answerable("a")
    assert scene.catalog.is_ready(), "one broken model of a thousand is no reason to stop traffic"
    assert scene.loader.loads == ["a"]
    (scene.root / "a" / "1" / "broken").unlink()
    scene.now_s += 1.0
    assert scene.request(models, "a") is None
    assert scene.loader.loads == ["a", "a"]


def test_index_says_that_files_are_gone(scenes: Callable[..., Scene]) -> None:
    scene = scenes()
    directory = scene.write("a").parent
    models = scene.open()
    shutil.rmtree(directory)
    failure = scene.request(models, "a")
    assert failure is not None
    assert [(row.state, "not found" in row.reason) for row in scene.catalog.index()] == [
        (ModelState.UNAVAILABLE, True)
    ]
    scene.write("a")
    scene.now_s += 1.0
    assert scene.request(models, "a") is None
    assert [row.state for row in scene.catalog.index()] == [ModelState.READY]


def test_many_requests_load_once(scenes: Callable[..., Scene]) -> None:
    scene = scenes()
    scene.write("a")
    models = scene.open()
    scene.loader.may_load.clear()
    asked = [models.ask("a") for _ in range(100)]
    scene.loader.may_load.set()
    assert scene.request(models, "a") is None
    assert asked.count(Ask.BEGIN) == 1
    assert scene.loader.loads == ["a"]


def test_race_for_many_models_ends_without_errors(scenes: Callable[..., Scene]) -> None:
    scene = scenes(budget=5 * MB)
    names = [f"m{index:02}" for index in range(50)]
    for name in names:
        scene.write(name)
    models = scene.open()
    failures: list[InferError | None] = []

    def client(number: int) -> None:
        for step in range(10):
            name = names[(number * 7 + step * 13) % len(names)]
            failures.append(scene.request(models, name))

    clients = [threading.Thread(target=client, args=(number,)) for number in range(20)]
    for each in clients:
        each.start()
    for each in clients:
        each.join(WAIT_S)
    assert failures == [None] * 200
    assert models.used[HOST] <= 5 * MB
    assert models.load_count == len(scene.loader.loads)


def test_load_waits_for_a_sequence_and_gives_up(scenes: Callable[..., Scene]) -> None:
    scene = scenes(budget=MB, hold_s=0.0)
    scene.write("a")
    scene.write("b")
    models = scene.open()
    assert scene.request(models, "a") is None
    scene.ready["a"][1].is_bound = True
    failure = scene.request(models, "b")
    assert failure is not None
    assert f"({MB} bytes, {MB} are taken, it needs {MB}) within 0 s: the models that are loaded are in use" in (
        failure.message
    )
    assert scene.loaded() == {"a"}


def test_command_loads_a_model_that_waits_for_room(scenes: Callable[..., Scene]) -> None:
    scene = scenes(budget=MB, mode="explicit")
    scene.write("a")
    scene.write("b")
    models = scene.open()
    assert scene.request(models, "a") is None
    scene.ready["a"][1].is_bound = True
    assert models.ask("b") is Ask.BEGIN
    assert scene.control is not None
    scene.control.load_model("b", {})
    assert scene.settled("b") == [None]
    assert scene.loaded() == {"a", "b"}
    assert models.counts()["loaded"] == 2
    assert models.used[HOST] == 2 * MB
    assert models.failure_count == 0


def test_ensemble_brings_its_members_and_leaves_with_them(scenes: Callable[..., Scene]) -> None:
    scene = scenes(budget=2 * MB)
    scene.write("a")
    scene.write("b", 2 * MB)
    (scene.write("e", 0).parent / "uses-a").touch()
    models = scene.open()
    assert scene.request(models, "e") is None
    assert scene.loaded() == {"a", "e"}
    assert models.used[HOST] == MB
    scene.now_s += 1
    assert scene.request(models, "b") is None
    assert scene.loaded() == {"b"}
    scene.now_s += 1
    assert scene.request(models, "e") is None
    assert scene.loaded() == {"a", "e"}


def test_idle_model_is_unloaded_by_the_sweep(scenes: Callable[..., Scene]) -> None:
    scene = scenes()
    scene.settings = OnDemandSettings(LoadPolicy(is_on_demand=True, idle_unload_s=10.0))
    scene.write("a")
    models = scene.open()
    assert scene.request(models, "a") is None
    models.sweep()
    assert scene.loaded() == {"a"}
    scene.now_s += 11.0
    models.sweep()
    assert scene.request(models, "a") is None
    assert scene.loader.loads == ["a", "a"]


def test_only_first_loads_take_turns(scenes: Callable[..., Scene], monkeypatch: pytest.MonkeyPatch) -> None:
    scene = scenes(budget=2 * MB)
    for name in ("a", "b", "c"):
        scene.write(name)
    models = scene.open()
    for name in ("a", "b", "c"):  # the last one has the first one evicted
        assert scene.request(models, name) is None
        scene.now_s += 1
    monkeypatch.setattr(models._meter, "measure", lambda: 1 / 0)
    assert scene.request(models, "a") is None
    assert models.used[HOST] == 2 * MB
    assert scene.loader.loads == ["a", "b", "c", "a"]


def test_growth_by_pinned_models_is_not_charged(scenes: Callable[..., Scene]) -> None:
    scene = scenes(mode="explicit", budget=64 * MB)
    scene.write("a", 2 * MB)
    (scene.write("pinned-one", 40 * MB).parent / "pinned").touch()
    scene.at_start = ["a"]
    models = scene.open()
    assert scene.control is not None
    assert scene.request(models, "a") is None
    scene.control.load_model("pinned-one", {})
    scene.now_s += 1
    scene.ready["a"][1].last_s = scene.now_s
    models.sweep()
    assert models.used[HOST] == 2 * MB


@pytest.mark.parametrize("is_default", [True, False], ids=["by-default", "by-itself"])
def test_model_that_becomes_pinned_is_no_growth(scenes: Callable[..., Scene], is_default: bool) -> None:
    scene = scenes(budget=160 * MB, mode="explicit")
    scene.settings = replace(scene.settings, default=LoadPolicy(is_on_demand=is_default))
    scene.write("a", 2 * MB)
    other = scene.write("other", 60 * MB).parent
    for name in ("a", "other"):
        (scene.root / name / "on-demand").touch()
    models = scene.open()
    for name in ("a", "other"):
        assert scene.request(models, name) is None
    (other / "on-demand").unlink()
    (other / "pinned").touch()
    (other / "1" / "more").write_bytes(bytes(MB))
    assert scene.control is not None
    scene.control.load_model("other", {})
    assert models.find("other") is None
    for _ in range(5):
        scene.now_s += 1
        scene.ready["a"][1].last_s = scene.now_s
        models.sweep()
    assert models.used[HOST] == 2 * MB


@pytest.mark.parametrize("is_served", [True, False])
def test_pinned_model_that_becomes_on_demand_counts(scenes: Callable[..., Scene], is_served: bool) -> None:
    scene = scenes(mode="explicit", budget=64 * MB)
    scene.settings = replace(scene.settings, default=LoadPolicy())
    scene.at_start = ["b"] if is_served else []
    scene.write("a", 2 * MB)
    scene.write("b", 40 * MB)
    (scene.root / "a" / "on-demand").touch()
    models = scene.open()
    assert scene.control is not None
    (scene.root / "b" / "on-demand").touch()
    scene.control.load_model("b", {})
    scene.control.load_model("a", {})
    for _ in range(5):
        scene.now_s += 1
        models.sweep()
    assert models.used[HOST] == 42 * MB
    scene.control.unload_model("b", {})
    for _ in range(5):
        scene.now_s += 1
        models.sweep()
    assert models.used[HOST] == 2 * MB


def test_sizes_begin_again_when_no_model_is_loaded(scenes: Callable[..., Scene]) -> None:
    scene = scenes(mode="explicit", budget=64 * MB)
    scene.settings = replace(scene.settings, default=LoadPolicy(is_on_demand=True, idle_unload_s=10.0))
    scene.write("a", 2 * MB)
    (scene.write("pinned-one", 40 * MB).parent / "pinned").touch()
    models = scene.open()
    assert scene.request(models, "a") is None
    assert scene.control is not None
    scene.control.unload_model("pinned-one", {})
    version = scene.ready["a"][1]
    scene.now_s += 11
    models.sweep()
    assert version.is_stopping.wait(WAIT_S)
    deadline_s = time.monotonic() + WAIT_S
    while models.counts()["cold"] != 1 and time.monotonic() < deadline_s:
        time.sleep(0.01)
    models.sweep()
    assert scene.request(models, "a") is None
    models.sweep()
    assert models.used[HOST] == 2 * MB


def test_growth_beside_loads_makes_models_leave(scenes: Callable[..., Scene]) -> None:
    scene = scenes(budget=10 * MB)
    for name in ("a", "b", "c", "busy"):
        scene.write(name, 2 * MB)
    models = scene.open()
    for name in ("a", "b", "c"):
        assert scene.request(models, name) is None
    oldest = scene.ready["a"][1]
    for name in ("b", "c"):
        scene.ready[name][1].last_s = scene.now_s + 1
    scene.loader.may_load.clear()
    models.ask("busy")
    scene.loader.add(8 * MB)  # no model has it, because a load goes on meanwhile
    for _ in range(40):
        scene.now_s += 1
        models.sweep()
    assert oldest.is_stopping.wait(WAIT_S)
    scene.loader.may_load.set()
    assert scene.settled("busy") == [None]


def test_unloaded_model_is_loaded_by_no_request(scenes: Callable[..., Scene]) -> None:
    scene = scenes(mode="explicit")
    scene.write("a")
    models = scene.open()
    assert scene.control is not None
    assert scene.loader.loads == []
    scene.control.load_model("a", {})
    assert models.counts()["loaded"] == 1
    scene.control.unload_model("a", {})
    assert models.find("a") is None
    assert [row.reason for row in scene.catalog.index()] == ["unloaded"]
    scene.control.load_model("a", {})
    assert models.find("a") == "a"


def test_eviction_before_the_end_of_a_load(scenes: Callable[..., Scene], monkeypatch: pytest.MonkeyPatch) -> None:
    scene = scenes()
    scene.write("a")
    models = scene.open()
    load, load_now, has_returned = models._load, models._load_now, threading.Event()

    def load_and_note(key: str) -> None:
        load(key)
        has_returned.set()

    def load_and_evict(key: str) -> None:
        load_now(key)
        monkeypatch.setattr(models, "_load_now", load_now)
        with models._changed:
            models._residency.begin_eviction(key)
            assert models._residency.ask(key, scene.now_s) is Ask.HELD
        models._evict([key])
        assert has_returned.wait(WAIT_S)  # the thread of the next load, which this one keeps out

    monkeypatch.setattr(models._threads, "_load", load_and_note)
    monkeypatch.setattr(models, "_load_now", load_and_evict)
    assert models.ask("a") is Ask.BEGIN
    assert scene.settled("a", 2) == [None, None]
    assert scene.loaded() == {"a"}
    assert scene.loader.loads == ["a", "a"]


def test_many_urgent_calls_start_one_load(scenes: Callable[..., Scene], monkeypatch: pytest.MonkeyPatch) -> None:
    scene = scenes()
    scene.write("a")
    models = scene.open()
    load, started, may_begin = models._load, [], threading.Event()

    def load_late(key: str) -> None:
        started.append(key)
        may_begin.wait(WAIT_S)
        load(key)

    monkeypatch.setattr(models._threads, "_load", load_late)
    for _ in range(500):
        models.ask("a", is_urgent=True)
    may_begin.set()
    assert scene.settled("a") == [None]
    assert started == ["a"]


def test_loop_waits_for_no_start_of_a_thread(scenes: Callable[..., Scene], monkeypatch: pytest.MonkeyPatch) -> None:
    scene = scenes(budget=MB)
    scene.write("a")
    scene.write("b")
    models = scene.open()
    under_lock: list[str] = []

    def note(what: str) -> None:
        if models._changed._is_owned():  # type: ignore[attr-defined]  # there is no public way to ask
            under_lock.append(what)

    def start(thread: threading.Thread) -> None:
        note("start")
        begin(thread)

    def size(process_ids: Collection[int]) -> int:
        note("size")
        return 0

    begin = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", start)
    monkeypatch.setattr(on_demand_models, "workers_bytes", size)
    for name in ("a", "b"):
        assert scene.request(models, name) is None
        scene.now_s += 1
    models.sweep()
    assert scene.loaded() == {"b"}
    assert under_lock == []


def test_exit_ends_each_load_that_waits(scenes: Callable[..., Scene], monkeypatch: pytest.MonkeyPatch) -> None:
    scene = scenes()
    monkeypatch.setattr(on_demand_models, "_MOST_LOADERS", 1)
    for name in ("a", "b", "c"):
        scene.write(name)
    models = scene.open()
    assert scene.request(models, "c") is None
    scene.loader.may_load.clear()
    assert models.ask("a") is Ask.BEGIN
    assert models.ask("b") is Ask.BEGIN  # the only thread is taken
    models.abandon()
    failures = scene.settled("b")
    assert failures[0] is not None
    assert failures[0].message == "Server exiting"
    assert models.ask("b") == LoadRefusal("Server exiting", 0.0)
    assert models.ask("c") is Ask.READY
    scene.loader.may_load.set()
    assert len(scene.settled("a")) == 1


def test_exit_ends_the_wait_for_an_eviction(scenes: Callable[..., Scene]) -> None:
    scene = scenes(budget=MB)
    scene.write("a")
    scene.write("b")
    models = scene.open()
    assert scene.request(models, "a") is None
    scene.now_s += 1
    may_leave = threading.Event()
    scene.ready["a"][1].before_stop = lambda: may_leave.wait(WAIT_S)
    version = scene.ready["a"][1]
    assert models.ask("b") is Ask.BEGIN
    assert version.is_stopping.wait(WAIT_S)
    assert models.ask("a") is Ask.HELD
    models.abandon()
    failures = scene.settled("a", 2)
    may_leave.set()
    assert failures[1] is not None
    assert failures[1].message == "Server exiting"


def test_unload_during_a_load_by_request_stays(scenes: Callable[..., Scene], monkeypatch: pytest.MonkeyPatch) -> None:
    scene = scenes(mode="explicit")
    scene.write("a")
    models = scene.open()
    assert scene.control is not None
    control, controller = scene.control, models._controller
    load = controller.load

    def load_late(*arguments: object, **options: object) -> None:
        control.unload_model("a", {})  # the load has no order yet that it could end
        load(*arguments, **options)  # type: ignore[arg-type]  # the arguments of the load

    monkeypatch.setattr(controller, "load", load_late)
    assert models.ask("a") is Ask.BEGIN
    failures = scene.settled("a")
    wait_until(lambda: not models._loading)
    assert [failure is not None and "was unloaded" in failure.message for failure in failures] == [True]
    assert scene.loaded() == set()
    assert models.find("a") is None


def test_unload_before_the_turn_of_a_load_stays(scenes: Callable[..., Scene]) -> None:
    scene = scenes(mode="explicit")
    scene.write("a")
    models = scene.open()
    assert scene.control is not None
    models._turns = LoadTurns(load_count=1, core_count=1)
    with models._turns.turn():
        assert models.ask("a") is Ask.BEGIN
        scene.control.unload_model("a", {})
    wait_until(lambda: not models._loading)
    assert scene.settled("a")[0] is not None
    assert scene.loader.loads == []
    assert models.find("a") is None


def test_polled_model_is_known_and_not_loaded(scenes: Callable[..., Scene]) -> None:
    scene = scenes()
    scene.write("a")
    with scene.polled() as (models, _):
        assert scene.loader.loads == []
        assert models.find("a") == "a"
        assert scene.request(models, "a") is None
        assert scene.loader.loads == ["a"]


@pytest.mark.parametrize("mode", ["none", "explicit", "poll"])
def test_own_policy_keeps_a_model_cold_at_start(scenes: Callable[..., Scene], mode: str) -> None:
    scene = scenes(mode=mode)
    scene.settings = replace(scene.settings, default=LoadPolicy())
    scene.write("a")
    (scene.write("b").parent / "on-demand").touch()
    with scene.polled() if mode == "poll" else nullcontext((scene.open(), None)) as (models, _):
        assert scene.loader.loads == ["a"]
        assert models.find("b") == "b"
        assert models.find("a") is None
        assert scene.request(models, "b") is None
        assert scene.loader.loads == ["a", "b"]


def test_command_loads_a_model_that_stayed_cold(scenes: Callable[..., Scene]) -> None:
    scene = scenes(mode="explicit")
    scene.settings = replace(scene.settings, default=LoadPolicy())
    (scene.write("b").parent / "on-demand").touch()
    models = scene.open()
    assert scene.control is not None
    assert scene.loader.loads == []
    scene.control.load_model("b", {})
    assert models.counts()["loaded"] == 1
    assert scene.loader.loads == ["b"]
