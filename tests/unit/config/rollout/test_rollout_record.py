"""The record of a rollout: what counts when servers disagree, and what an unusable one leads to."""

import json
from dataclasses import replace

import pytest

from naiad.config.rollout.rollout_declaration import DeclaredRollout, Guard, Rollout, Steps
from naiad.config.rollout.rollout_record import (
    MAX_RECORD_BYTES,
    FoundRollout,
    RecordError,
    decode_record,
    encode_record,
    held_back,
    is_news,
    merge,
    merge_refusals,
)
from naiad.config.rollout.state import (
    MAX_REFUSALS,
    Refusal,
    RolloutState,
    changed,
    effective,
    ended,
    promoted,
    rolled_back,
    started,
)
from naiad.core.errors import InferError

CANARY = started(Rollout(1, 2, weight=10.0), "file")


def test_rolled_back_version_is_refused_until_allowed() -> None:
    state = rolled_back(CANARY, "m", "rolled back by the guard (error_rate): 5 of 9 requests failed")
    assert state.refused == {2: "rolled back by the guard (error_rate): 5 of 9 requests failed"}
    for tree in ({"weight": 5}, {"to": 2}, {"canary": 2, "shadow": 50}, {"canary": 2, "weight": 1, "stable": 1}):
        with pytest.raises(
            InferError, match=r"version 2 was refused .*; allow it again with naiad rollout m --allow 2"
        ):
            changed(state, tree, (1, 2), "m")
    assert changed(state, {"aliases": {"bad": 2}}, (1, 2), "m").refused == state.refused
    again = changed(state, {"allow": 2, "weight": 5}, (1, 2), "m")
    assert again.rollout is not None
    assert (again.refused, again.rollout.weight) == ({}, 5.0)


def test_version_that_a_switch_left_is_refused() -> None:
    state = rolled_back(promoted(CANARY, "m"), "m")
    assert state.rollout is not None
    assert (state.rollout.stable, list(state.refused)) == (1, [2])
    assert changed(ended(state), {"canary": 3, "weight": 10}, (1, 2, 3), "m").rollout == Rollout(1, 3, weight=10.0)


def test_changed_file_allows_only_what_it_says() -> None:
    state = rolled_back(CANARY, "m")
    same = started(Rollout(1, 2, weight=20.0), "second", state)
    allows = started(Rollout(1, 2, weight=20.0, allow=(2,)), "second", state)
    for after, weight in ((same, 0.0), (allows, 20.0)):
        rollout = effective(after).rollout
        assert rollout is not None
        assert (after.revision, rollout.weight) == (state.revision + 1, weight)
    assert started(None, "", state).refused == state.refused


def test_more_cautious_one_of_equal_decisions_counts() -> None:
    more, less, back = (changed(CANARY, {"weight": weight}, (1, 2), "m") for weight in (50, 5, 0))
    assert merge(more, less) == less
    assert merge(less, back) == back
    assert merge(ended(CANARY), more) == more  # without a rollout the newest version gets everything


def test_promotion_and_rollback_leave_the_version_before() -> None:
    both = merge(promoted(CANARY, "m"), rolled_back(CANARY, "m"))
    assert both is not None
    found = effective(both)
    assert found.rollout is not None
    assert (found.rollout.stable, found.rollout.weight) == (1, 0.0)
    assert list(found.refused) == [2]


def test_refused_canary_stops_its_steps() -> None:
    steps = started(Rollout(1, 2, steps=Steps((5.0, 100.0), 60.0), guard=Guard(max_error_rate=0.1)), "file")
    state = effective(merge_refusals(steps, rolled_back(CANARY, "m")))
    assert state.rollout is not None
    assert (state.rollout.weight, state.rollout.steps, state.step) == (0.0, None, None)
    assert "version 2 was refused" in state.note


def test_refused_version_is_not_loaded_for_the_rollout() -> None:
    state = rolled_back(CANARY, "m")
    assert (CANARY.versions, state.versions) == ({1, 2}, {1})
    assert changed(state, {"aliases": {"bad": 2}}, (1, 2), "m").versions == {1, 2}


def test_change_is_later_than_a_foreign_verdict() -> None:
    state = merge_refusals(CANARY, RolloutState(None, "other", 9, refusals={3: Refusal(9, True, "bad")}))
    after = changed(state, {"allow": 3}, (1, 2), "m")
    joined = merge(after, state)
    assert joined is not None
    assert joined.refused == {}


def test_state_of_the_file_alone_is_no_news() -> None:
    assert not is_news(CANARY)
    assert is_news(promoted(CANARY, "m"))
    assert is_news(changed(None, {"to": 1}, (1, 2), "m"))
    assert not is_news(RolloutState(None, revision=-1))


class TestUnusable:
    def test_newest_version_counts_as_unproven(self) -> None:
        state = held_back(FoundRollout(None, None, "the record cannot be used", (1, 2, 7)))
        assert state is not None
        assert state.rollout == Rollout(2)
        assert "the record cannot be used" in state.note
        assert held_back(FoundRollout(None, None, "the record cannot be used", (7,))) is None

    def test_canary_of_a_file_gets_nothing(self) -> None:
        declared = DeclaredRollout(Rollout(3, 4, weight=50.0, shadow=5.0, steps=Steps((5.0,), 1.0)), "digest")
        state = held_back(FoundRollout(declared, None, "torn", (3, 4)))
        assert state is not None
        assert state.rollout == Rollout(3, 4)
        assert state.base == "digest"

    @pytest.mark.parametrize(
        ("field", "value", "words"),
        [
            ("format", "other", "'format' is not"),
            ("schema", 2, "'schema' is 2; this server knows 1"),
            ("revision", 1.5, "'revision' is 1.5"),
            ("revision", True, "'revision' is True"),
            ("step", 3, "'step' is 3, which the rollout does not have"),
            ("rollout", {"stable": 0}, "stable is 0"),
            ("rollout", [], "'rollout' is no object"),
            ("refusals", {}, "'refusals' is no list"),
            ("refusals", [{"version": 2, "revision": 1, "refused": 1, "reason": ""}], "is no verdict"),
            ("refusals", [{"version": 0, "revision": 1, "refused": True, "reason": ""}], "'version' is 0"),
            ("note", 5, "'note' is no text"),
        ],
    )
    def test_wrong_field_is_named(self, field: str, value: object, words: str) -> None:
        tree = json.loads(encode_record(CANARY))
        with pytest.raises(RecordError, match=words):
            decode_record(json.dumps({**tree, field: value}).encode())

    def test_size_is_bounded(self) -> None:
        with pytest.raises(RecordError, match="the most is"):
            decode_record(b" " * (MAX_RECORD_BYTES + 1))
        with pytest.raises(RecordError, match="not JSON"):
            decode_record(b"[" * 100_000)
        assert len(encode_record(rolled_back(CANARY, "m", "x" * 100_000))) < 5000
        many = RolloutState(
            Rollout(1, 2, aliases={f"{number:02}" * 32: number for number in range(10, 42)}),
            note="\U0001f41f" * 5000,
            refusals={version: Refusal(version, True, "\U0001f41f" * 500) for version in range(1, MAX_REFUSALS + 1)},
        )
        assert len(encode_record(many)) < MAX_RECORD_BYTES
        assert len(decode_record(encode_record(replace(many, rollout=None))).refusals) == MAX_REFUSALS

    def test_long_texts_of_others_are_cut(self) -> None:
        state = RolloutState(None, refusals={2: Refusal(1, True, "x" * 5000)})
        assert len(decode_record(encode_record(state)).refused[2]) == 500
