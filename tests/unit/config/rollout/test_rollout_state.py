"""Changes of a rollout: what each one leads to, and which are refused."""

from typing import Any

import pytest

from naiad.config.rollout.rollout_declaration import Guard, Rollout, Steps
from naiad.config.rollout.state import (
    RolloutState,
    changed,
    ended,
    is_last_step,
    promoted,
    rolled_back,
    started,
    stepped,
    switched,
    weights_left,
)
from naiad.core.errors import ErrorCode, InferError

READY = (1, 2, 3)
STEPS = Steps((5.0, 50.0, 100.0), 60.0)


def change(state: RolloutState | None, **tree: Any) -> RolloutState:
    return changed(state, tree, READY, "m")


def rollout_of(state: RolloutState) -> Rollout:
    assert state.rollout is not None
    return state.rollout


def test_steps_begin_with_the_first_weight() -> None:
    state = started(Rollout(1, 2, steps=STEPS), "digest")
    assert (rollout_of(state).weight, state.step, state.base, state.revision) == (5.0, 0, "digest", 0)
    assert weights_left(state) == (50.0, 100.0)


def test_steps_lead_to_the_last_weight() -> None:
    state = stepped(stepped(started(Rollout(1, 2, steps=STEPS)), "one"), "two")
    assert (rollout_of(state).weight, state.step, state.note, state.revision) == (100.0, 2, "two", 2)
    assert is_last_step(state)
    assert not is_last_step(started(Rollout(1, 2, steps=Steps((50.0,), 1.0))))


def test_first_change_makes_the_newest_other_version_stable() -> None:
    state = change(None, canary=2, weight=10)
    assert rollout_of(state) == Rollout(3, 2, weight=10.0)
    assert state.revision == 0


def test_change_keeps_other_fields() -> None:
    state = change(change(None, stable=1, canary=2, weight=10, sticky="user"), weight=20)
    assert rollout_of(state) == Rollout(1, 2, weight=20.0, sticky="user")
    assert state.revision == 1


def test_null_removes_a_field() -> None:
    state = change(change(None, stable=1, canary=2, weight=10, shadow=5), canary=None)
    assert rollout_of(state) == Rollout(1)


def test_weight_set_by_hand_stops_the_steps() -> None:
    state = change(started(Rollout(1, 2, steps=STEPS)), weight=30)
    assert rollout_of(state) == Rollout(1, 2, weight=30.0)
    assert state.step is None


def test_other_changes_keep_the_step() -> None:
    state = change(stepped(started(Rollout(1, 2, steps=STEPS)), "one"), sticky="user")
    assert (state.step, rollout_of(state).weight) == (1, 50.0)


def test_new_canary_begins_the_steps_again() -> None:
    state = change(stepped(started(Rollout(1, 2, steps=STEPS)), "one"), canary=3)
    assert (state.step, rollout_of(state).weight, rollout_of(state).canary) == (0, 5.0, 3)


def test_promotion_makes_the_canary_stable() -> None:
    state = change(change(None, stable=1, canary=2, weight=10), action="promote")
    assert rollout_of(state) == Rollout(2)
    assert state.previous == 1


def test_rollback_takes_the_traffic_from_the_canary() -> None:
    state = change(change(None, stable=1, canary=2, weight=10, shadow=5), action="rollback")
    assert rollout_of(state) == Rollout(1, 2)
    assert state.names == {"stable": 1, "canary": 2}


def test_rollback_removes_limits_about_shadow_copies() -> None:
    guard = {"max_different_share": 0.1, "max_p99_ms": 5}
    state = change(change(None, stable=1, canary=2, shadow=5, guard=guard), action="rollback")
    assert rollout_of(state).guard == Guard(max_p99_ms=5.0)
    alone = change(None, stable=1, canary=2, shadow=5, guard={"max_different_share": 0.1})
    assert rollout_of(rolled_back(alone, "m")).guard is None


def test_rollback_after_promotion_returns_to_the_previous_version() -> None:
    state = rolled_back(promoted(change(None, stable=1, canary=2, weight=10), "m"), "m")
    assert rollout_of(state) == Rollout(1)


def test_repeated_rollback_does_not_flip_back() -> None:
    switch = rolled_back(change(change(None, to=1), to=2), "m")
    canary = rolled_back(change(promoted(change(None, stable=1, canary=2), "m"), canary=3, weight=10), "m")
    for state in (switch, canary):
        with pytest.raises(InferError, match="nothing to roll back"):
            rolled_back(state, "m")


def test_switch_without_a_rollout_remembers_the_serving_version() -> None:
    state = change(None, to=1)
    assert rollout_of(state) == Rollout(1)
    assert state.previous == 3
    assert rollout_of(rolled_back(state, "m")).stable == 3


def test_switch_keeps_aliases() -> None:
    state = change(change(None, stable=1, canary=2, weight=10, aliases={"old": 1}), to=3)
    assert rollout_of(state) == Rollout(3, aliases={"old": 1})


def test_rollout_may_begin_again_after_its_end() -> None:
    state = ended(change(None, stable=1, canary=2, weight=10))
    assert (state.rollout, state.revision, state.names, state.versions) == (None, 1, {}, frozenset())
    assert rollout_of(change(state, canary=2, weight=5)) == Rollout(3, 2, weight=5.0)
    assert (change(state, to=1).previous, change(state, to=1).revision) == (3, 2)


def test_states_keep_the_digest_of_their_file() -> None:
    state = started(Rollout(1, 2, weight=5.0), "digest")
    assert {each.base for each in (promoted(state, "m"), ended(state), change(state, weight=6))} == {"digest"}
    assert switched(state, 2).era == ("digest", 1)


def test_previous_version_stays_needed() -> None:
    assert promoted(change(None, stable=1, canary=2), "m").versions == {1, 2}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"allow": 0}, "'allow' is 0; expected the number of a version, from 1, or a list of them"),
    ({"allow": []}, "'allow' is"),
    ({"allow": True}, "'allow' is True"),
    ({"to": "2"}, "'to' is '2'; expected the number of a version"),
    ({"action": "promot"}, "did you mean 'promote'?"),
    ({"action": 3}, "'action' is 3; expected one of promote, rollback"),
    ({"action": "promote", "weight": 3}, "action, weight together"),
    ({"weight": 10}, "weight has no canary"),
    ({"weight": "much", "canary": 1}, "weight is 'much'"),
]


@pytest.mark.parametrize(("tree", "words"), REFUSED)
def test_wrong_change_is_refused(tree: dict[str, Any], words: str) -> None:
    for state in (None, change(None, stable=1)):
        if "action" in tree and state is None:
            continue
        with pytest.raises(InferError, match=words) as caught:
            changed(state, tree, READY, "m")
        assert caught.value.code is ErrorCode.INVALID_ARG


@pytest.mark.parametrize("action", ["promote", "rollback"])
def test_action_without_a_rollout_is_not_found(action: str) -> None:
    with pytest.raises(InferError, match="has no rollout; declare one"):
        change(None, action=action)


def test_actions_without_an_object_are_refused() -> None:
    state = change(None, stable=1)
    with pytest.raises(InferError, match="no canary to promote"):
        change(state, action="promote")
    with pytest.raises(InferError, match="nothing to roll back"):
        change(state, action="rollback")


def test_canary_needs_another_ready_version() -> None:
    with pytest.raises(InferError, match="no other version of the model is ready"):
        changed(None, {"canary": 1}, (1,), "m")
