"""The breakdown of the requests whose response had the server's times."""

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from naiad.perf.records import Columns
from naiad.perf.result import Parts
from naiad.perf.statistics.latency import percents
from naiad.perf.statistics.timing import Waterfall, parse_server_timing, part_percentiles, waterfall

if TYPE_CHECKING:
    from naiad.perf.records import Int64s

_MAX_REQUESTS = 10_000
"""More are thinned evenly."""


def parts(columns: Columns, places: "Int64s", percentile: int | None) -> Parts | None:
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


def _waterfalls(columns: Columns, places: "Int64s") -> Sequence[Waterfall]:
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
