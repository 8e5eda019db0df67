"""The breakdown of a request on one clock: the server's `Server-Timing` joined with the moments of the client.

The server names CLOCK_MONOTONIC at the first byte of the request. On the same host that is the client's clock, so the
parts of both sides fit together without a gap; the parts sum to the end-to-end time.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import fmean
from typing import NamedTuple

import numpy as np

from naiad.tools.measure.intervals import Int64s, percents
from naiad.tools.measure.result import Parts
from naiad.tools.perf.records import Columns

_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_PARAMETER = re.compile(rf"\s*;\s*({_TOKEN})(?:=({_TOKEN}|{_QUOTED}))?")
_METRIC = re.compile(rf"({_TOKEN})((?:{_PARAMETER.pattern})*)")
_STEP = "step_"
_MAX_MILLISECONDS = 1e12
"""A longer duration, or a non-finite one, is not a time of a request."""


@dataclass(frozen=True, slots=True)
class ServerTiming:
    """What a server has said about one request; durations in ns, contiguous and in this order."""

    arrival_ns: int
    """The server's CLOCK_MONOTONIC at the first byte of the request."""
    parse_ns: int = 0
    queue_ns: int = 0
    hold_ns: int = 0
    cache_ns: int = 0
    gather_ns: int = 0
    compute_ns: int = 0
    scatter_ns: int = 0
    encode_ns: int = 0
    steps: tuple[tuple[str, int], ...] = ()
    """Steps of an ensemble, by the names of their models; they lie within `compute_ns`."""

    @property
    def durations_ns(self) -> tuple[int, ...]:
        """The parts in order, without the steps."""
        return (
            self.parse_ns,
            self.queue_ns,
            self.hold_ns,
            self.cache_ns,
            self.gather_ns,
            self.compute_ns,
            self.scatter_ns,
            self.encode_ns,
        )


def parse_server_timing(value: str) -> ServerTiming | None:
    """Return the timing in the value of `Server-Timing` (W3C), several fields joined by commas.

    None without naiad's `clock`: another server or a proxy has sent it. Metrics of others are ignored.
    """
    arrival_ns = None
    durations_ns: dict[str, int] = {}
    steps: list[tuple[str, int]] = []
    for metric in _METRIC.finditer(value):
        name = metric[1]
        parameters = {each[1].lower(): (each[2] or "").strip('"') for each in _PARAMETER.finditer(metric[2])}
        if name == "clock":
            described = parameters.get("desc", "")
            if described.isascii() and described.isdigit() and len(described) < 20:
                arrival_ns = int(described)
            continue
        duration_ns = _nanoseconds(parameters.get("dur", ""))
        if duration_ns is None:
            continue
        if name.startswith(_STEP):
            steps.append((name.removeprefix(_STEP), duration_ns))
        elif name in _SERVER_PARTS:
            durations_ns[f"{name}_ns"] = duration_ns
    return None if arrival_ns is None else ServerTiming(arrival_ns, **durations_ns, steps=tuple(steps))


def _nanoseconds(milliseconds: str) -> int | None:
    try:
        value = float(milliseconds)
    except ValueError:
        return None
    return round(value * 1e6) if 0 <= value < _MAX_MILLISECONDS and math.isfinite(value) else None


class RequestParts(NamedTuple):
    """The parts of one request in ns, in order; their sum is the end-to-end time of the client."""

    client_encode: int
    """Until the request was handed to the socket, or its first byte was read by the server."""
    send: int
    """Until the server read the first byte."""
    parse: int
    """Until the server had decoded the whole request."""
    queue: int
    """While every instance of the model was busy."""
    hold: int
    """While the instance was free: batching delays, and its wake-up."""
    cache: int
    """The response came from the cache."""
    gather: int
    """The inputs of the batch were put together."""
    compute: int
    """The model was executed; for an ensemble, all of its steps."""
    scatter: int
    """The outputs of the batch were split."""
    encode: int
    """Until the response was handed to the server's transport."""
    receive: int
    """Until the client had the whole response."""


_SERVER_PARTS = frozenset(RequestParts._fields) - {"client_encode", "send", "receive"}


class Waterfall(NamedTuple):
    """The parts of a request, and how they were joined."""

    parts: RequestParts
    is_one_clock: bool
    """Client and server share a clock. Otherwise half of the time on the network counts as `send`."""


def waterfall(sent_begin_ns: int, sent_ns: int, first_byte_ns: int, end_ns: int, timing: ServerTiming) -> Waterfall:
    """Return the contiguous parts of a request from `sent_begin_ns` to `end_ns`.

    The moments are the client's CLOCK_MONOTONIC: before the request was encoded, after it was handed to the socket,
    when the first byte of the response had arrived, and when the whole response had. They must ascend.
    """
    durations_ns = timing.durations_ns
    total_ns = sum(durations_ns)
    arrival_ns = timing.arrival_ns
    # The server may read the beginning of a large request while its end is being sent.
    is_one_clock = sent_begin_ns <= arrival_ns and arrival_ns + total_ns <= first_byte_ns
    if not is_one_clock:
        arrival_ns = sent_ns + max(0, first_byte_ns - sent_ns - total_ns) // 2
    moments = (sent_begin_ns, min(sent_ns, arrival_ns), *accumulate(durations_ns, initial=arrival_ns), end_ns)
    # Times of a server that do not fit in are cut off, so that the sum holds.
    bounded = accumulate((min(moment, end_ns) for moment in moments), max)
    return Waterfall(RequestParts(*(end - begin for begin, end in pairwise(bounded))), is_one_clock)


def part_percentiles(parts: Sequence[RequestParts], percentiles: Sequence[float]) -> dict[str, Int64s]:
    """Return the percentiles of each part over many requests in ns, by nearest rank: name to one value for each.

    Raises ValueError without requests, and for a percentile outside 0 to 100.
    """
    if not parts:
        raise ValueError("percentiles of parts need at least one request")
    columns = np.percentile(np.array(parts, np.int64), percentiles, axis=0, method="inverted_cdf")
    return {name: columns[:, index].astype(np.int64) for index, name in enumerate(RequestParts._fields)}


# --- parts of many requests ---------------------------------------------------------------------------------------

_MAX_REQUESTS = 10_000
"""More are thinned evenly."""


def parts(columns: Columns, places: Int64s, percentile: int | None) -> Parts | None:
    """Parts of the requests at `places`, ascending; None where no response had times."""
    falls = _waterfalls(columns, places)
    if not falls:
        return None
    each_parts = [fall.parts for fall in falls]
    wanted = percents(percentile)
    return Parts(
        requests=len(falls),
        is_same_host=fmean(fall.is_one_clock for fall in falls) > 0.5,
        percentiles_us={
            name: dict(zip(wanted, (values_ns / 1e3).tolist(), strict=True))
            for name, values_ns in part_percentiles(each_parts, wanted).items()
        },
        mean_us=dict(zip(each_parts[0]._fields, (np.mean(each_parts, axis=0) / 1e3).tolist(), strict=True)),
    )


def _waterfalls(columns: Columns, places: Int64s) -> Sequence[Waterfall]:
    timed = np.array([place for place, _ in columns.timings], np.int64)
    chosen = np.flatnonzero(np.isin(timed, places))
    falls = []
    for number in chosen[:: len(chosen) // _MAX_REQUESTS + 1].tolist():
        place, value = columns.timings[number]
        timing = parse_server_timing(value)
        if timing is not None:
            start_ns, sent_ns = int(columns.start_ns[place]), int(columns.sent_ns[place])
            falls.append(
                waterfall(start_ns, sent_ns, int(columns.first_ns[place]), int(columns.end_ns[place]), timing)
            )
    return falls
