"""The decisions about rollouts, carried out in an engine whose versions a test answers."""

import asyncio
import logging
from collections.abc import Callable, Mapping

import pytest

from naiad.config.rollout.guard import RolloutCounts
from naiad.config.rollout.state import RolloutState
from naiad.core.errors import InferError, internal, unavailable
from naiad.server.reporting.rollout_metrics import show_rollouts
from naiad.server.rollout_guards import RolloutKeeper
from naiad.telemetry.metrics.metrics import Registry
from support.rollout_parts import Scene


class Kept:
    """A scene with its keeper."""

    def __init__(self, **fields: object) -> None:
        self.scene = Scene(1, 2)
        self.scene.change(stable=1, canary=2, **fields)
        self.keeper = RolloutKeeper(self.scene.engine, self._count)

    async def _count(self) -> Mapping[str, RolloutCounts]:
        return self.scene.engine.rollout_commands.counts()

    def check(self) -> None:
        asyncio.run(self.keeper.check())

    @property
    def state(self) -> RolloutState:
        found = self.scene.engine.rollouts.state("m")
        assert found is not None
        return found

    @property
    def weight(self) -> float:
        assert self.state.rollout is not None
        return self.state.rollout.weight


def test_violation_rolls_back_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    kept = Kept(weight=50, guard={"min_requests": 10, "max_error_rate": 0.1})
    kept.scene.send(40)
    kept.scene.versions[1].answer()
    kept.check()
    assert kept.weight == 50
    kept.scene.versions[2].answer(error=internal("broken"))
    with caplog.at_level(logging.WARNING):
        kept.check()
        kept.check()
    assert kept.weight == 0
    assert "rolled back by the guard (error_rate): 20 of 20 requests failed" in kept.state.note
    (record,) = [each for each in caplog.records if "rolled back" in each.getMessage()]
    assert "model 'm': canary version 2 was rolled back (error_rate)" in record.getMessage()
    assert kept.scene.send()[0].model.version == "1"


def test_steps_go_on_to_promotion() -> None:
    kept = Kept(steps={"weights": [50, 100], "every_s": 1e-9}, guard={"min_requests": 5, "max_error_rate": 0.1})
    kept.check()
    assert kept.weight == 50
    for weight in (100.0, 0.0):
        kept.scene.send(20)
        kept.scene.answer()
        kept.check()
        assert kept.weight == weight
    assert kept.state.rollout is not None
    assert (kept.state.rollout.stable, kept.state.previous) == (2, 1)
    assert "promoted after" in kept.state.note


def test_last_step_is_compared_with_stable_before_it() -> None:
    kept = Kept(steps={"weights": [50, 100], "every_s": 1e-9}, guard={"min_requests": 10, "max_p99_ratio": 1e9})
    kept.scene.send(40)
    kept.scene.answer()
    kept.check()
    kept.check()
    assert kept.weight == 100
    kept.scene.send(20)
    kept.scene.versions[2].answer(error=internal("broken"))
    kept.check()
    assert kept.weight == 0
    assert "stable 0.00%, and there is no max_error_rate" in kept.state.note


def test_counts_of_another_state_decide_nothing() -> None:
    kept = Kept(weight=50, guard={"min_requests": 10, "max_error_rate": 0.1})
    kept.scene.send(40)
    kept.scene.versions[2].answer(error=internal("broken"))
    old = kept.scene.engine.rollout_commands.counts()

    async def count() -> Mapping[str, RolloutCounts]:
        return old

    kept.scene.change(weight=20)
    asyncio.run(RolloutKeeper(kept.scene.engine, count).check())
    assert kept.weight == 20


def test_rollouts_without_a_guard_need_no_counts() -> None:
    kept = Kept(weight=50)

    async def count() -> Mapping[str, RolloutCounts]:
        raise AssertionError("no counts are needed")

    asyncio.run(RolloutKeeper(kept.scene.engine, count).check())
    assert kept.weight == 50


def test_decision_that_did_not_arrive_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept(weight=50, guard={"min_requests": 10, "max_error_rate": 0.1})
    kept.scene.send(40)
    kept.scene.versions[2].answer(error=internal("broken"))
    refused: list[str] = []

    def refuse(key: str, state: RolloutState, on_done: Callable[[InferError | None], object]) -> None:
        refused.append(key)
        on_done(unavailable("a process was replaced"))

    with monkeypatch.context() as patched:
        patched.setattr(kept.scene.engine.rollout_commands, "broadcast", refuse)
        kept.check()
        kept.check()
    assert refused == ["m", "m"]
    assert kept.weight == 50
    kept.check()
    assert kept.weight == 0


def test_next_decision_waits_for_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept(weight=50, guard={"min_requests": 10, "max_error_rate": 0.1})
    kept.scene.send(40)
    kept.scene.versions[2].answer(error=internal("broken"))
    made: list[RolloutState] = []
    monkeypatch.setattr(
        kept.scene.engine.rollout_commands, "broadcast", lambda key, state, on_done: made.append(state)
    )
    kept.check()
    kept.check()
    assert len(made) == 1


def test_metrics_have_roles_weights_and_rollbacks() -> None:
    kept = Kept(weight=50, shadow=100, guard={"min_requests": 10, "max_error_rate": 0.1})
    registry = Registry()
    show_rollouts(registry, kept.scene.engine.rollouts)
    scene = kept.scene
    scene.send(40)
    scene.versions[1].answer()
    scene.loop.run()
    for request in scene.versions[2].waiting[20:]:
        scene.versions[2].cancel(request)
    scene.versions[2].answer(error=internal("broken"))

    def lines() -> set[str]:
        return {line for line in registry.render().decode().split("\n") if line.startswith("naiad_rollout")}

    found = lines()
    assert 'naiad_rollout_requests_total{model="m",outcome="success",role="stable",version="1"} 20' in found
    assert 'naiad_rollout_requests_total{model="m",outcome="failure",role="canary",version="2"} 20' in found
    assert 'naiad_rollout_weight_percent{model="m",role="canary",version="2"} 50' in found
    assert 'naiad_rollout_shadow_total{model="m",result="skipped"} 20' in found
    kept.check()
    found = lines()
    assert 'naiad_rollout_rollbacks_total{model="m",reason="error_rate"} 1' in found
    assert 'naiad_rollout_weight_percent{model="m",role="canary",version="2"} 0' in found
    assert 'naiad_rollout_step{model="m"} 0' in found


def test_engine_of_one_process_applies_at_once() -> None:
    scene = Scene(1, 2)
    engine = scene.engine
    outcomes: list[InferError | None] = []
    state = engine.rollout_commands.changed("m", {"to": 1})
    other = engine.rollout_commands.changed("m", {"to": 2})
    for each in (state, state, other):
        engine.rollout_commands.broadcast("m", each, outcomes.append)
    assert outcomes[:2] == [None, None]
    assert outcomes[2] is not None


def test_keeper_without_guards_looks_less_often() -> None:
    kept = Kept(weight=50)
    kept.check()
    assert kept.keeper.pause_s == 1.0
    guarded = Kept(weight=50, guard={"min_requests": 10, "max_error_rate": 0.1})
    guarded.scene.send(1)
    guarded.check()
    assert guarded.keeper.pause_s == 0.25
