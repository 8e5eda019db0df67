"""Statistics on their way between processes: pickled in pieces, so that no event loop waits for all of them."""

import pickle
from collections.abc import Sequence
from dataclasses import dataclass

from naiad.core.slices import Slices
from naiad.telemetry.statistics.version_statistics import VersionStatistics

_ROWS = 8
"""Rows of a piece: a millisecond or less."""


@dataclass(frozen=True, slots=True)
class PackedStatistics:
    """Statistics of model versions, in pieces for `unpack`. A pickle of them copies bytes alone."""

    pieces: tuple[bytes, ...]


def pack(rows: Sequence[VersionStatistics]) -> Slices[PackedStatistics]:
    """Return statistics in packed form; yields about every millisecond."""
    pieces = []
    for start in range(0, len(rows), _ROWS):
        pieces.append(pickle.dumps(list(rows[start : start + _ROWS]), pickle.HIGHEST_PROTOCOL))
        yield
    return PackedStatistics(tuple(pieces))


def unpack(packed: PackedStatistics) -> Slices[list[VersionStatistics]]:
    """Return the statistics of a packed form; yields about every millisecond."""
    rows: list[VersionStatistics] = []
    for piece in packed.pieces:
        rows += pickle.loads(piece)
        yield
    return rows
