"""What an adaptive batcher tells about itself.

What can be asked about a server and its models: states, index rows, metadata.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from naiad.core.tensor import TensorSpec

UNLOADED = "unloaded"
"""Triton: the reason of a version that was unloaded on purpose; strict readiness looks for exactly this text."""


class ModelKey(str):
    """What tells models of equal names apart: the repository (the namespace) and the name.

    As text it is `namespace::name`. Whatever knows models by name knows them by this in a server with
    --model-namespacing, and by the plain name in any other.
    """

    __slots__ = ("name", "namespace")

    name: str
    namespace: str

    def __new__(cls, namespace: str, name: str) -> "ModelKey":
        """Make the key of a model in a namespace."""
        key = super().__new__(cls, f"{namespace}::{name}")
        key.namespace = namespace
        key.name = name
        return key

    def __getnewargs__(self) -> tuple[str, str]:  # type: ignore[override]  # what __new__ takes, as for any class
        """Return what a copy is made of, in this process or another."""
        return self.namespace, self.name


def model_key(namespace: str, name: str) -> str:
    """Return what a model is known by: its name alone where there are no namespaces."""
    return ModelKey(namespace, name) if namespace else name


def name_of(key: str) -> str:
    """Return the name that clients know a model by."""
    return key.name if isinstance(key, ModelKey) else key


class ModelState(enum.Enum):
    """The life of a model version."""

    UNKNOWN = "UNKNOWN"
    READY = "READY"
    UNAVAILABLE = "UNAVAILABLE"
    LOADING = "LOADING"
    UNLOADING = "UNLOADING"


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """A row of the repository index. A model that was never loaded has neither version nor state."""

    name: str
    """A `ModelKey` where there are namespaces."""
    version: str = ""
    state: ModelState | None = None
    reason: str = ""

    @property
    def is_wanted(self) -> bool:
        """Whether somebody wants this version served, be it in vain."""
        is_out = self.state is ModelState.UNAVAILABLE and self.reason == UNLOADED
        return not (is_out or self.state is ModelState.UNLOADING)


@dataclass(frozen=True, slots=True)
class ServerMetadata:
    """Name, version and extensions of the server."""

    name: str
    version: str
    extensions: Sequence[str]


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """What `GET /v2/models/m` tells; shapes are the config's, with -1 where free, batch dimension included."""

    name: str
    versions: Sequence[str]
    platform: str
    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]


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
