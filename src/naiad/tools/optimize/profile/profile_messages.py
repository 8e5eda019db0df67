"""Messages between the process that measures and the process of a profiled model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from naiad.core.tensor import Array

Arrays: TypeAlias = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class ProfileJob:
    """A model to measure."""

    directory: Path
    """Of the model in a repository."""
    backend: str
    configurations: Sequence[str]
    """Texts of `config.pbtxt`; the first one that the backend accepts is used."""
    inputs: Sequence[str]
    """The source's names."""
    samples: Sequence[Arrays]
    """By the source's names, all with the same shapes."""
    has_batch: bool


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model that has been loaded."""

    load_s: float
    max_batch: int
    """Greatest number of samples in a call; 0 for any."""
    is_fixed: bool
    """Every call has `max_batch` samples."""


@dataclass(frozen=True, slots=True)
class TimedCalls:
    """Calls of a model with one batch size."""

    durations_ns: Sequence[int]
    memory_mib: float
    """Resident memory that loading and all calls so far have added."""
