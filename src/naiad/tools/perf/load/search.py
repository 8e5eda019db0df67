"""The loads of a run: a sweep, or a binary search for the highest load within the latency limit."""

from collections.abc import Generator

from naiad.core.errors import invalid_argument
from naiad.tools.perf.load.arrivals import MAX_CONCURRENCY, MAX_RATE_PER_S, MIN_RATE_PER_S, check_load
from naiad.tools.perf.perf_plan import Concurrency, Load, RequestRate, Search

Values = Generator[float, bool, float | None]
"""Yields values to measure, gets whether each was within the limit, and returns the highest that was."""


def values(search: Search) -> Values:
    """Return the values that a search measures, in perf_analyzer's order.

    A sweep adds `step` until it is past the end or a value breaks the limit; an end of 0 leaves only the limit. A
    binary search measures the start, which must be within the limit, then the end, and if that breaks it, halves the
    gap until it is at most `step`.
    """
    return _binary(search) if search.is_binary else _sweep(search)


def load_of(search: Search, value: float) -> Load:
    """Return the load of a value of the search."""
    return RequestRate(value, search.is_poisson) if search.is_rate else Concurrency(int(value))


def check_loads(loads: Search | Load, latency_limit_us: float) -> None:
    """Raise InferError(INVALID_ARG) for loads that make no sense; the message names the value and the fix."""
    if not isinstance(loads, Search):
        check_load(loads)
        return
    name, highest = ("request rate", MAX_RATE_PER_S) if loads.is_rate else ("concurrency", MAX_CONCURRENCY)
    check_load(load_of(loads, loads.start))
    if not loads.end <= highest:
        raise invalid_argument(f"the {name} range ends at {loads.end:g}; expected at most {highest:g}")
    least = MIN_RATE_PER_S if loads.is_rate else 1
    if not least <= loads.step <= highest:
        raise invalid_argument(f"the step of the {name} range is {loads.step:g}; expected {least:g} to {highest:g}")
    if not loads.is_binary and loads.end and (loads.end - loads.start) / loads.step > MAX_CONCURRENCY:
        raise invalid_argument(
            f"the step of the {name} range is {loads.step:g}, which makes over {MAX_CONCURRENCY} loads; "
            "use a larger one"
        )
    if loads.end < 0:
        raise invalid_argument(f"the {name} range ends at {loads.end:g}; expected 0 or more")
    if loads.end and loads.end < loads.start:
        raise invalid_argument(
            f"the {name} range ends at {loads.end:g}, below its start of {loads.start:g}; swap them"
        )
    if loads.is_binary and not (loads.end and latency_limit_us > 0):
        raise invalid_argument(
            f"a binary search needs the end of the {name} range and a latency limit; use for example 1:64:1 and -l 20"
        )
    if not loads.end and not latency_limit_us > 0:
        raise invalid_argument(f"a {name} range without an end needs a latency limit; give -l MS")


def _sweep(search: Search) -> Values:
    best: float | None = None
    number = 0
    end = search.end or (MAX_RATE_PER_S if search.is_rate else MAX_CONCURRENCY)
    while True:
        value = search.start + number * search.step
        # Steps such as 0.1 are not exact: the end itself must not be missed by a rounding error.
        if value > end * (1 + 1e-9):
            return best
        if not (yield value):
            return best
        best = value
        number += 1


def _binary(search: Search) -> Values:
    low, high = search.start, search.end
    if not (yield low):
        return None
    if high == low:
        return low
    if (yield high):
        return high
    while high - low > search.step:
        middle = (low + high) / 2 if search.is_rate else (low + high) // 2
        if (yield middle):
            low = middle
        else:
            high = middle
    return low
