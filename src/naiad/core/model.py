"""Descriptions of a server and its models: states, index rows, metadata, registered regions of shared memory, and the
state of adaptive batchers.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from naiad.core.tensor import TensorSpec
from naiad.core.texts.html_table import html_table, shape_text

UNLOADED = "unloaded"
"""Triton: the reason of a version that was unloaded on purpose; strict readiness compares exactly this text."""


MISFIT = "it does not fit its members any more"
"""Reason of an ensemble that has left service because of an update of a member; what does not fit follows."""
COLD = "on demand: not loaded now, the next request loads it"
"""naiad: the reason of a version that its next request loads."""


class ModelKey(str):
    """Identifies a model among models of equal names: the repository (the namespace) and the name.

    As text it is `namespace::name`. In a server with --model-namespacing it replaces the name as the key of models
    everywhere; other servers use the plain name.
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

    def __getnewargs__(self) -> tuple[str, str]:  # type: ignore[override]  # arguments of __new__
        """Return the arguments for a copy, in this process or another."""
        return self.namespace, self.name


def model_key(namespace: str, name: str) -> str:
    """Return the key of a model: its name alone without namespaces."""
    return ModelKey(namespace, name) if namespace else name


def version_number(version: str) -> str:
    """Return a version without leading zeros. Triton: a version is a number, so 01 is 1."""
    return version.lstrip("0") or "0" if version.startswith("0") and version.isdecimal() else version


def name_of(key: str) -> str:
    """Return the name of a model for clients."""
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
    """A `ModelKey` if there are namespaces."""
    version: str = ""
    state: ModelState | None = None
    reason: str = ""

    @property
    def is_wanted(self) -> bool:
        """Whether this version should be served, successfully or not."""
        is_out = self.state is ModelState.UNAVAILABLE and self.reason in (UNLOADED, COLD)
        return not (is_out or self.state is ModelState.UNLOADING)


@dataclass(frozen=True, slots=True)
class ServerMetadata:
    """Name, version and extensions of the server."""

    name: str
    version: str
    extensions: Sequence[str]

    def _repr_html_(self) -> str:
        return html_table(f"{self.name} {self.version}", (), [("extensions", ", ".join(self.extensions))])


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """The metadata of `GET /v2/models/m`; shapes are the config's, with -1 for variable dimensions, including the
    batch dimension.
    """

    name: str
    versions: Sequence[str]
    platform: str
    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]

    def _repr_html_(self) -> str:
        rows = [
            (kind, spec.name, spec.datatype.value, shape_text(spec.shape))
            for kind, specs in (("input", self.inputs), ("output", self.outputs))
            for spec in specs
        ]
        versions = ", ".join(self.versions)
        return html_table(
            self.name, ("", "tensor", "datatype", "shape"), rows, f"{self.platform}, versions {versions}"
        )


@dataclass(frozen=True, slots=True)
class SystemRegionStatus:
    """A registered part of a POSIX shared-memory object."""

    name: str
    key: str
    """The object's name as the client sent it."""
    offset: int
    byte_size: int


@dataclass(frozen=True, slots=True)
class CudaRegionStatus:
    """A registered allocation of a GPU's memory."""

    name: str
    device_id: int
    byte_size: int


DECISIONS = ("full", "turn", "burst", "goal", "limit", "no_gain")
"""Why a batch was sent: it was full or limited; its turn had come; a burst was complete; for the latency goal; at the
maximum delay; because waiting would not pay or too little was known."""


@dataclass(frozen=True, slots=True)
class AdaptiveState:
    """The learned values and counters of an adaptive batcher, at one moment."""

    fixed_ns: float
    """Fixed cost of a batch, independent of its rows."""
    row_ns: float
    """Cost of each row."""
    tail_ratio: float
    """99 of 100 executions took at most this many times the expected time."""
    parallelism: float
    """Throughput of several instances together, in instances; 1.0 while unknown."""
    arrival_rate: float
    """Requests per second, from the mean of recent gaps."""
    hold_count: int
    """Number of delayed batches."""
    hold_ns: int
    """Total delay; waiting for a busy instance does not count."""
    decisions: Mapping[str, int]
    """Batches by each of `DECISIONS`."""
    drift_ratio: float | None = None
    """Learned time of a batch / its time in the model's profile; None without a profile."""
