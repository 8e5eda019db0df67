"""A sample: the tensors of one row of a request of any source."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from naiad.core.tensor import Array


@dataclass(frozen=True, slots=True)
class Step:
    """One sample, without a batch dimension."""

    tensors: Mapping[str, Array]
    source: str
    """For error messages: `data.json step 3`."""
    expected: Mapping[str, Array] = field(default_factory=dict)
    """Outputs that the response must equal."""
    timestamp_ms: float | None = None
    """When a fixed schedule sends it, from the start of the run."""


Stream: TypeAlias = list[Step]
"""Samples in the order in which they are sent; a sequence for a stateful model."""
