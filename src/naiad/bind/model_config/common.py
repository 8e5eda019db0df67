"""Parts of a model's configuration; each field is the field of `config.pbtxt` with the same meaning."""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


class DeviceKind(enum.Enum):
    """Kind of an instance group. Bound models execute where their function does: KIND_CPU."""

    KIND_AUTO = "KIND_AUTO"
    KIND_CPU = "KIND_CPU"
    KIND_GPU = "KIND_GPU"


class TimeoutAction(enum.Enum):
    """What happens to a request that has waited longer than its timeout."""

    REJECT = "REJECT"
    DELAY = "DELAY"
    """It is executed after all requests of its priority that are in time."""


@dataclass
class QueuePolicy:
    """Bounds of one queue: by number of requests, and by the time that they wait."""

    timeout_action: TimeoutAction = TimeoutAction.REJECT
    default_timeout_microseconds: int = 0
    """0: no timeout."""
    allow_timeout_override: bool = False
    """Whether a request may bring a shorter timeout of its own."""
    max_queue_size: int = 0
    """0: no limit."""


@dataclass
class DynamicBatcher:
    """How requests are put together into batches."""

    max_queue_delay_microseconds: int = 0
    """How long a request may wait for others while an instance is free."""
    preferred_batch_size: Sequence[int] | None = None
    preserve_ordering: bool = False
    priority_levels: int = 0
    default_priority_level: int = 0
    default_queue_policy: QueuePolicy | None = None
    priority_queue_policy: Mapping[int, QueuePolicy] | None = None
    """By priority, from 1."""


@dataclass
class WarmupInput:
    """The data of one input of a warm-up sample: exactly one of zeros, random values, or a file."""

    dtype: Any
    shape: Sequence[int]
    """Without the batch dimension."""
    zero_data: bool | None = False
    random_data: bool | None = False
    input_data_file: str | None = None
    """An array written by `numpy.save`, for one row or for the rows of the whole sample."""


@dataclass
class ModelWarmup:
    """A sample that every instance executes `count` times before its model is ready."""

    name: str
    batch_size: int
    inputs: Mapping[str, WarmupInput]
    count: int
