"""Decisions about rollouts, for any weights, keys, sequences and counts."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from naiad.config.rollout.guard import (
    GuardVerdict,
    RolloutCounts,
    SideCounts,
    bucket_of,
    decide,
    quantile_ns,
    upper_ns,
)
from naiad.config.rollout.pins import SequencePins
from naiad.config.rollout.rollout_declaration import Guard, Rollout, Steps, parse_tree
from naiad.config.rollout.splitter import EvenSplit, position_of, salt_of, threshold
from naiad.config.rollout.state import RolloutState, changed, ended, promoted, rolled_back, started, stepped
from naiad.core.errors import InferError

percents = st.floats(0, 100)
keys = st.text(max_size=30)


@given(percents, st.integers(0, 2**64), st.integers(1, 3000))
def test_even_split_stays_close_to_its_share(percent: float, start: int, count: int) -> None:
    split, share = EvenSplit(start), threshold(percent)
    taken = sum(split.takes(share) for _ in range(count))
    # The discrepancy of the sequence grows with the logarithm of the number.
    assert abs(taken - count * percent / 100) <= 5


@given(st.integers(0, 2**64), st.integers(2, 60), st.integers(0, 59))
def test_even_split_has_no_period_of_clients(start: int, period: int, phase: int) -> None:
    split, share = EvenSplit(start), threshold(10)
    taken = [split.takes(share) for _ in range(period * 1000)][phase % period :: period]
    assert 50 <= sum(taken) <= 150  # of a thousand requests of one kind


@given(keys, st.lists(percents, max_size=20))
def test_key_never_leaves_the_canary_while_weights_grow(key: str, weights: list[float]) -> None:
    position = position_of(salt_of("m", 2), key)
    taken = [position < threshold(weight) for weight in sorted(weights)]
    assert taken == sorted(taken)


@given(keys)
def test_extreme_weights_take_all_keys_or_none(key: str) -> None:
    position = position_of(salt_of("m", 2), key)
    assert position < threshold(100)
    assert position >= threshold(0)


@given(st.text(max_size=12), st.integers(0, 10**9))
def test_numbered_keys_are_evenly_distributed(prefix: str, start: int) -> None:
    salt = salt_of("m", 2)
    taken = sum(position_of(salt, f"{prefix}{start + number}") < threshold(20) for number in range(1500))
    assert 0.12 <= taken / 1500 <= 0.28  # eight standard deviations


@given(st.lists(st.integers(0, 10**11), min_size=1, max_size=200), st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_quantile_is_the_value_within_a_bucket(durations: list[int], share: float) -> None:
    latencies: dict[int, int] = {}
    for duration in durations:
        bucket = bucket_of(duration)
        latencies[bucket] = latencies.get(bucket, 0) + 1
    found = quantile_ns(latencies, share)
    needed = sorted(durations)[max(0, -(-round(share * len(durations) * 1000) // 1000) - 1)]
    assert found == upper_ns(bucket_of(needed))


@given(st.integers(0, 10**12), st.integers(0, 10**12))
def test_buckets_keep_the_order(one: int, other: int) -> None:
    assert (bucket_of(one) <= bucket_of(other)) or one > other


# --- sequences ------------------------------------------------------------------------------------------------------

steps_of_sequences = st.lists(
    st.tuples(st.sampled_from(["start", "more", "last", "response", "wait"]), st.integers(1, 4), st.integers(1, 2)),
    max_size=80,
)


@given(steps_of_sequences)
def test_live_sequence_never_changes_its_version(events: list[tuple[str, int, int]]) -> None:
    idle_ns = 100
    pins = SequencePins(idle_ns)
    live: dict[int, list[int]] = {}
    """Sequence to version, requests in flight, time of the last activity, whether it has ended."""
    now_ns = 0
    for event, sequence_id, chosen in events:
        now_ns += idle_ns * 2 if event == "wait" else 1
        known = live.get(sequence_id)
        is_live = known is not None and (known[1] > 0 or now_ns - known[2] <= idle_ns)
        if event in ("start", "more", "last"):
            found = pins.find(sequence_id, now_ns)
            if is_live and known is not None:
                assert found == known[0]
            version = chosen if event == "start" or found is None else found
            pins.begin(sequence_id, version, now_ns, is_last=event == "last")
            in_flight = known[1] if known is not None else 0
            live[sequence_id] = [version, in_flight + 1, now_ns, event == "last"]
        elif event == "response" and known is not None and known[1]:
            pins.end(sequence_id, now_ns)
            known[1] -= 1
            known[2] = now_ns
            if known[3] and not known[1]:
                del live[sequence_id]
    assert len(pins) <= 4


@given(st.integers(1, 50), st.integers(1, 200))
def test_pins_are_bounded(limit: int, count: int) -> None:
    pins = SequencePins(10**9, limit)
    for sequence_id in range(count):
        pins.begin(sequence_id, 1, sequence_id, is_last=False)
        pins.end(sequence_id, sequence_id)
    assert len(pins) <= limit + 1


# --- states and decisions -------------------------------------------------------------------------------------------

READY = (1, 2, 3)
changes = st.one_of(
    st.fixed_dictionaries({"canary": st.sampled_from([None, 1, 2, 3, 9])}, optional={"weight": percents}),
    st.fixed_dictionaries({"weight": percents}, optional={"shadow": percents}),
    st.fixed_dictionaries({"to": st.integers(0, 4)}),
    st.fixed_dictionaries({"action": st.sampled_from(["promote", "rollback", "x"])}),
    st.dictionaries(
        st.sampled_from(["stable", "steps", "guard", "sticky"]), st.none() | st.integers(0, 4) | st.text(), max_size=3
    ),
)


@given(st.lists(changes, max_size=15))
def test_every_state_is_a_valid_declaration(trees: list[dict[str, Any]]) -> None:
    state: RolloutState | None = None
    for tree in trees:
        try:
            after = changed(state, tree, READY, "m")
        except InferError:
            continue
        assert after.revision == (0 if state is None else state.revision + 1)
        assert after.rollout is not None
        assert parse_tree(after.rollout.as_tree()) == (after.rollout, [])
        assert after.rollout.stable not in after.refused
        state = after


weights = st.lists(st.integers(1, 100), min_size=1, max_size=5, unique=True).map(sorted)
sides = st.builds(
    lambda requests, share, ms: SideCounts(
        requests, int(requests * share), {bucket_of(int(ms * 1e6)): requests - int(requests * share)}
    ),
    st.integers(0, 1000),
    st.floats(0, 1),
    st.floats(0.01, 1000),
)


@given(weights, st.lists(st.tuples(sides, sides, st.floats(0, 30)), max_size=30))
def test_steps_never_pass_a_violation(
    chosen: list[int], observed: list[tuple[SideCounts, SideCounts, float]]
) -> None:
    guard = Guard(50, max_error_rate=0.1, max_p99_ms=100.0)
    state = started(Rollout(1, 2, steps=Steps(tuple(map(float, chosen)), 10.0), guard=guard))
    for stable, canary, age_s in observed:
        before = state
        found = decide(state, RolloutCounts(state.era, stable, canary), 0, int(age_s * 1e9))
        if found.verdict is GuardVerdict.ROLL_BACK:
            state = rolled_back(state, "m")
            assert state.rollout is not None
            assert (state.rollout.stable, state.rollout.weight) == (1, 0)
            return
        if canary.requests >= 50:
            assert canary.error_rate <= 0.1
        if found.verdict is GuardVerdict.STEP:
            state = stepped(state, "")
            assert state.rollout is not None
            assert before.rollout is not None
            assert state.rollout.weight > before.rollout.weight
        elif found.verdict is GuardVerdict.PROMOTE:
            state = promoted(state, "m")
            assert state.rollout == Rollout(2, guard=guard)
            return
        if found.verdict is not GuardVerdict.KEEP:
            assert age_s >= 10
            assert canary.requests >= 50


@given(st.lists(st.sampled_from(["end", "to1", "to2", "canary"]), max_size=10))
def test_rollback_of_switch_returns_to_version_before(actions: list[str]) -> None:
    state = changed(None, {"stable": 1}, READY, "m")
    for action in actions:
        if action == "end":
            state = ended(state)
        elif action == "canary":
            stable = 1 if state.rollout is None else state.rollout.stable
            state = changed(state, {"stable": stable, "canary": 3 - stable, "weight": 5}, READY, "m")
        else:
            before = None if state.rollout is None else state.rollout.stable
            state = changed(state, {"to": int(action[2:])}, READY, "m")
            if before is not None and state.rollout is not None and before != state.rollout.stable:
                back = rolled_back(state, "m")
                assert back.rollout is not None
                assert back.rollout.stable == before
