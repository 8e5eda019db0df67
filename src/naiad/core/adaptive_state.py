"""What an adaptive batcher tells about itself."""

from collections.abc import Mapping
from dataclasses import dataclass

DECISIONS = ("full", "turn", "burst", "goal", "limit", "no_gain", "unknown")
"""Why batches went: it was full or cut; after its turn had come; after a burst had been waited for; for the goal; at
the longest hold; because waiting did not pay; because too little was known."""


@dataclass(frozen=True, slots=True)
class AdaptiveState:
    """What an adaptive batcher has learned and done, at one moment."""

    fixed_ns: float
    """What a batch costs however few its rows are."""
    row_ns: float
    """What each row adds."""
    tail_ratio: float
    """99 of 100 executions took at most this many times what was expected of them."""
    parallelism: float
    """How many instances' worth of work the instances do together."""
    arrival_rate: float
    """Requests a second, from the mean of the last gaps."""
    hold_count: int
    """Batches that were held."""
    hold_ns: int
    """For how long, in all; waiting for a busy instance is not counted."""
    decisions: Mapping[str, int]
    """Batches by each of `DECISIONS`."""
