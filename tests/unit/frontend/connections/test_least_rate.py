"""A least rate with a grace."""

from hypothesis import given
from hypothesis import strategies as st

from naiad.frontend.connections.linger import LeastRate

SECOND_NS = 10**9


def test_a_silent_peer_has_its_grace():
    rate = LeastRate(1000, 10, SECOND_NS)
    assert not rate.is_too_slow(0, 10 * SECOND_NS)
    assert rate.is_too_slow(0, 11 * SECOND_NS)


def test_the_grace_begins_with_the_first_look():
    rate = LeastRate(1000, 10)
    assert not rate.is_too_slow(0, 500 * SECOND_NS)
    assert not rate.is_too_slow(0, 509 * SECOND_NS)
    assert rate.is_too_slow(0, 510 * SECOND_NS)


def test_one_byte_now_and_then_is_too_slow():
    rate = LeastRate(1024, 60)
    too_slow = [second for second in range(0, 300, 15) if rate.is_too_slow(second // 15, (second + 1) * SECOND_NS)]
    assert too_slow[0] == 75


def test_the_least_rate_is_enough_for_good():
    rate = LeastRate(1000, 5)
    assert not any(rate.is_too_slow(second * 1000, (second + 1) * SECOND_NS) for second in range(1000))


def test_a_fast_beginning_pays_for_no_later_silence():
    rate = LeastRate(1000, 10)
    assert not rate.is_too_slow(0, SECOND_NS)
    assert not rate.is_too_slow(10**9, 2 * SECOND_NS)
    assert rate.is_too_slow(10**9, 12 * SECOND_NS)


def test_excused_time_does_not_count():
    rate = LeastRate(1000, 10)
    assert not rate.is_too_slow(0, SECOND_NS)
    rate.excuse(1000 * SECOND_NS)
    assert not rate.is_too_slow(0, 1009 * SECOND_NS)
    assert rate.is_too_slow(0, 1010 * SECOND_NS)


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(0, 30_000)), max_size=60))
def test_a_peer_is_slow_only_behind_the_rate(steps):
    """A sender that is too slow has in some stretch of time sent less than the rate, by the whole grace."""
    rate, looks = LeastRate(1000, 10), [(1, 0)]
    assert not rate.is_too_slow(0, SECOND_NS)
    for seconds, size in steps:
        looks.append((looks[-1][0] + seconds, looks[-1][1] + size))
        second, total = looks[-1]
        is_behind = any(second - then - (total - before) / 1000 >= 10 for then, before in looks)
        assert rate.is_too_slow(total, second * SECOND_NS) == is_behind
        if is_behind:
            return
