"""Common ticks: what looks regularly looks at the same moments, so that an idle server wakes up once for all of it.

A wake-up costs more than most looks. The moments are the multiples of the period on the loop's clock.
"""

import asyncio

_TOO_SOON = 0.25
"""A tick that is nearer than this share of the period is left out: timers may end a millisecond early."""


def until_tick_s(now_s: float, period_s: float) -> float:
    """Return the time until the next tick, a quarter of the period to five quarters."""
    rest_s = period_s - now_s % period_s
    return rest_s if rest_s >= _TOO_SOON * period_s else rest_s + period_s


async def next_tick(period_s: float) -> None:
    """Sleep until the next tick."""
    await asyncio.sleep(until_tick_s(asyncio.get_running_loop().time(), period_s))
