"""Records of rollouts: for all decisions, and in each order in which servers read and write, they end up the same."""

import json
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from naiad.config.rollout.rollout_declaration import Guard, Rollout, Steps
from naiad.config.rollout.rollout_record import RecordError, decode_record, encode_record, merge
from naiad.config.rollout.state import (
    MAX_REFUSALS,
    Refusal,
    RolloutState,
    allowed,
    bounded,
    changed,
    effective,
    ended,
    rolled_back,
    started,
)
from naiad.core.errors import InferError

versions = st.integers(1, 5)
refusals = st.dictionaries(
    versions, st.builds(Refusal, st.integers(-1, 4), st.booleans(), st.text(max_size=5)), max_size=4
)


@st.composite
def states(draw: st.DrawFn) -> RolloutState:
    stable, canary = draw(st.permutations(range(1, 6)))[:2]
    steps = draw(st.none() | st.just(Steps((5.0, 50.0, 100.0), 60.0)))
    rollout = Rollout(
        stable,
        canary,
        weight=draw(st.sampled_from([0.0, 5.0, 10.0, 100.0])),
        sticky=draw(st.sampled_from(["", "user"])),
        shadow=draw(st.sampled_from([1.0, 20.0])),
        aliases=draw(st.dictionaries(st.sampled_from(["champion", "old"]), versions, max_size=2)),
        steps=steps,
        guard=draw(st.none() | st.just(Guard(max_error_rate=0.1, max_different_share=0.5))),
    )
    return RolloutState(
        draw(st.none() | st.just(rollout)),
        draw(st.sampled_from(["", "one", "two"])),
        draw(st.integers(-1, 5)),
        None if steps is None else draw(st.none() | st.integers(0, 2)),
        draw(st.none() | versions),
        draw(st.text(max_size=20)),
        draw(refusals),
    )


def stored(state: RolloutState) -> RolloutState:
    """Return a state whose step exists only with its rollout, as decisions leave it."""
    return state if state.rollout is not None else replace(state, step=None)


@given(states().map(stored))
def test_record_is_read_as_it_was_written(state: RolloutState) -> None:
    assert decode_record(encode_record(state)) == state


@given(states(), st.data())
def test_torn_record_is_refused(state: RolloutState, data: st.DataObject) -> None:
    content = encode_record(stored(state))
    end = data.draw(st.integers(0, len(content) - 2))  # the last byte ends the line
    assert read(content[:end]) is None


def read(content: bytes) -> RolloutState | None:
    """Return the state of a record; None if it is refused, with a reason."""
    try:
        return decode_record(content)
    except RecordError as error:
        reason = str(error)
    assert reason
    return None


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=5), st.data())
def test_foreign_values_are_named_errors(value: object, data: st.DataObject) -> None:
    tree = json.loads(encode_record(RolloutState(Rollout(1, 2, weight=5.0), refusals={2: Refusal(1, True)})))
    tree[data.draw(st.sampled_from(sorted(tree)))] = value
    state = read(json.dumps(tree).encode())
    assert state is None or decode_record(encode_record(state)) == state


@given(st.binary(max_size=200))
def test_other_bytes_are_a_named_error(content: bytes) -> None:
    read(content)


@given(states(), states(), states())
def test_merge_is_independent_of_order_and_repetition(
    one: RolloutState, two: RolloutState, three: RolloutState
) -> None:
    assert merge(one, one) == one
    assert merge(one, two) == merge(two, one)
    assert merge(merge(one, two), three) == merge(one, merge(two, three))
    assert merge(one, None) == merge(None, one) == one


@given(states(), states())
def test_later_decision_counts_and_refusals_are_united(one: RolloutState, two: RolloutState) -> None:
    both = merge(one, two)
    assert both is not None
    assert both.revision == max(one.revision, two.revision)
    for each in (one, two):
        for version, refusal in each.refusals.items():
            assert both.refusals[version] >= refusal
    if one.revision > two.revision:
        assert both.rollout == one.rollout


@given(states(), states())
def test_refused_version_has_no_traffic_after_a_merge(one: RolloutState, two: RolloutState) -> None:
    both = merge(one, two)
    assert both is not None
    found = effective(both)
    if found.rollout is None:
        return
    assert found.rollout.canary not in found.refused or not (found.rollout.weight or found.rollout.shadow)
    if found.rollout.stable in found.refused:
        assert found.previous is None or found.previous in found.refused  # nothing is left to serve


servers = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["weight", "rollback", "to", "allow", "end", "read"]))
)


@given(servers)
def test_servers_that_share_a_record_agree(actions: Sequence[tuple[int, str]]) -> None:
    """Three servers decide on what they know, and write what they have merged with the record."""
    record: RolloutState | None = None
    known: list[RolloutState | None] = [started(Rollout(1, 2, weight=5.0), "file")] * 3
    for server, action in actions:
        now = known[server]
        assert now is not None
        now = effective(now)
        try:
            if action == "weight":
                now = changed(now, {"stable": 1, "canary": 2, "weight": 10.0}, {1, 2}, "m")
            elif action == "rollback":
                now = rolled_back(now, "m")
            elif action == "to":
                now = changed(now, {"to": 2}, {1, 2}, "m")
            elif action == "allow":
                now = changed(now, {"allow": 2}, {1, 2}, "m")
            elif action == "end":
                now = ended(now)
        except InferError:
            pass  # this server refuses it
        known[server] = record = merge(now, record)
    final = [merge(each, record) for each in known]
    assert final[0] == final[1] == final[2]


@given(st.dictionaries(st.integers(1, 1000), st.builds(Refusal, st.integers(0, 9), st.booleans()), max_size=200))
def test_verdicts_are_bounded_and_those_in_force_stay(verdicts: dict[int, Refusal]) -> None:
    kept = bounded(verdicts)
    assert len(kept) <= MAX_REFUSALS
    in_force = [version for version, each in verdicts.items() if each.is_refused]
    assert set(kept) >= set(sorted(in_force)[-MAX_REFUSALS:])


@given(states())
def test_allowed_version_is_not_refused(state: RolloutState) -> None:
    after = allowed(state, [1, 2, 3, 4, 5])
    assert after.refused == {}
