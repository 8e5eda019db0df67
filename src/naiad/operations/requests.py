"""Decoded requests for operations, as processes of a server send them to each other.

This module imports nothing of the engine: the supervisor of the processes passes requests on without it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

OrderKey = tuple[str, ...]
"""Subject of a command: kind and name, and more if several commands with one subject are kept."""


class CommandOrder(NamedTuple):
    """What a command is about, for the order of commands and for processes that start later."""

    key: OrderKey
    """Commands whose keys begin with the same two words run one after the other; the last one of a key counts."""
    undoes: bool = False
    """It removes all earlier commands whose keys begin with its key, and itself."""
    outdates: OrderKey = ()
    """It removes all earlier commands whose keys begin with this one, if it is not empty."""


class ModelVersion(NamedTuple):
    """A request about a model, or about one of its versions."""

    model: str
    version: str = ""


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """Load or reload a model."""

    model: str
    parameters: Mapping[str, str | bytes | bool]
    is_owner: bool = False
    """Whether the configuration in the parameters may change anything."""


@dataclass(frozen=True, slots=True)
class UnloadRequest:
    """Unload a model."""

    model: str
    parameters: Mapping[str, bool]


@dataclass(frozen=True, slots=True)
class TraceChanges:
    """Changed trace settings of a model, or of the server without a name; None resets a setting."""

    model: str
    changes: Mapping[str, Sequence[str] | None]


@dataclass(frozen=True, slots=True)
class SystemRegistration:
    """Register a region of system shared memory."""

    name: str
    key: str
    offset: int
    byte_size: int


@dataclass(frozen=True, slots=True)
class CudaRegistration:
    """Register a region of CUDA memory."""

    name: str
    handle: bytes
    device_id: int
    byte_size: int
