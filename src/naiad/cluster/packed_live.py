"""Answers to the live stream on their way between processes: rows in pieces, so that no event loop waits for all."""

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, replace

from naiad.core.slices import Slices
from naiad.telemetry.live.live_answer import LiveAnswer, VersionKey
from naiad.telemetry.statistics.live_counts import LiveCounts

_ROWS = 64
"""Rows of a piece: a millisecond or less."""


@dataclass(frozen=True, slots=True)
class PackedLive:
    """An answer without rows, and its rows in pieces. A pickle of the pieces copies bytes alone."""

    rest: LiveAnswer
    pieces: tuple[bytes, ...]


def pack_live(answer: LiveAnswer) -> Slices[PackedLive]:
    """Return an answer in packed form; yields about every millisecond."""
    # Plain tuples: a pickle names the class of each named one.
    rows = [(key, tuple(row)) for key, row in answer.rows.items()]
    pieces = []
    for start in range(0, len(rows), _ROWS):
        pieces.append(pickle.dumps(rows[start : start + _ROWS], pickle.HIGHEST_PROTOCOL))
        yield
    return PackedLive(replace(answer, rows={}), tuple(pieces))


def unpack_live(packed: PackedLive) -> Slices[LiveAnswer]:
    """Return the answer of a packed form; yields about every millisecond."""
    rows: dict[VersionKey, LiveCounts] = {}
    for piece in packed.pieces:
        rows.update((key, LiveCounts._make(row)) for key, row in pickle.loads(piece))
        yield
    return replace(packed.rest, rows=rows)


Rows = Mapping[VersionKey, LiveCounts]
"""Counters by version."""
