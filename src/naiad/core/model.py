"""What can be asked about a server and its models: states, index rows, metadata."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from naiad.core.tensor import TensorSpec


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
    version: str = ""
    state: ModelState | None = None
    reason: str = ""


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
