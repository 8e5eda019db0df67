"""Tasks with one period wake up at the same moments, and never twice for one of them."""

from hypothesis import given
from hypothesis import strategies as st

from naiad.server.process.common_ticks import until_tick_s

TIMES = st.floats(0, 1e7, allow_nan=False)


@given(TIMES, st.sampled_from([0.25, 0.5, 1.0, 2.0]))
def test_sleep_ends_at_a_multiple(now_s: float, period_s: float) -> None:
    pause_s = until_tick_s(now_s, period_s)
    assert 0.249 * period_s <= pause_s <= 1.251 * period_s
    ticks = (now_s + pause_s) / period_s
    assert abs(ticks - round(ticks)) < 1e-3


def test_early_timer_does_not_wake_twice() -> None:
    assert until_tick_s(4.999, 1.0) > 1.0
    assert until_tick_s(5.001, 1.0) < 1.0
