"""What the supervisor and the members of a server say to each other.

The control calls that a process which starts later has to catch up with.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from naiad.core.errors import ErrorCode
from naiad.core.model import IndexEntry
from naiad.options.options import ServerOptions
from naiad.telemetry.statistics.version import VersionStatistics
from naiad.wire.header_fields import Headers

_log = logging.getLogger(__name__)

_LIMIT = 10_000
"""Entries; settings and regions are few, and a model has one however often it was loaded."""

ControlKey = tuple[str, ...]
"""What a call is about: kind and name; a later call with the same key takes the place of an earlier one."""

_E = TypeVar("_E")


class ControlLog(Generic[_E]):
    """Calls that succeeded, the last one of each key, in the order in which they were made."""

    def __init__(self, limit: int = _LIMIT) -> None:
        self._limit = limit
        self._number = 0
        self._entries: dict[ControlKey, tuple[int, _E]] = {}

    def add(self, key: ControlKey, entry: _E) -> None:
        """Record a call."""
        self._entries.pop(key, None)
        self._number += 1
        self._entries[key] = (self._number, entry)
        if len(self._entries) > self._limit:
            oldest = next(iter(self._entries))
            del self._entries[oldest]
            _log.warning("too many control calls to remember; a process that starts later will lack %s", oldest)

    def undo(self, key: ControlKey) -> None:
        """Forget the calls whose keys begin with `key`: another call has undone them."""
        for undone in [known for known in self._entries if known[: len(key)] == key]:
            del self._entries[undone]

    def after(self, number: int) -> Iterator[tuple[int, _E]]:
        """Return the entries made after the one of that number, 0 for all, each with its own number."""
        return iter([found for found in self._entries.values() if found[0] > number])


# --- the supervisor tells a member ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Welcome:
    """The first message: who the member is and what it serves."""

    options: ServerOptions
    slot: int
    process_count: int
    ports: Sequence[str]
    """Flag prefixes of the ports; connections are handed over with a position in it."""
    directory: str
    """Where members reach each other; nobody else can enter it."""
    is_successor: bool
    """Whether another had the slot before and has died."""
    quiet_below: int
    """Level below which the member logs nothing until it serves: what happens at start is told once, not N times."""


@dataclass(frozen=True, slots=True)
class StopBeingReady:
    """The server is about to end; go on serving."""


@dataclass(frozen=True, slots=True)
class Finish:
    """No more connections come; answer what is in flight and end."""


# --- a member tells the supervisor ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Loaded:
    """The models are loaded, connections may come."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The member cannot start, and ends."""

    reason: str


# --- questions, which the supervisor asks all members, and a member asks the supervisor -----------------------------


@dataclass(frozen=True, slots=True)
class IsReady:
    """Whether the server is ready for traffic: bool."""


@dataclass(frozen=True, slots=True)
class IsModelReady:
    """Whether a model version is ready: bool."""

    name: str
    version: str


@dataclass(frozen=True, slots=True)
class AskStatistics:
    """Statistics of all ready model versions: a sequence of VersionStatistics."""


@dataclass(frozen=True, slots=True)
class AskIndex:
    """The repository index: a sequence of IndexEntry."""


@dataclass(frozen=True, slots=True)
class AskMetrics:
    """The Prometheus exposition: bytes."""


Question = IsReady | IsModelReady | AskStatistics | AskIndex | AskMetrics
Answer = bool | bytes | Sequence[VersionStatistics] | Sequence[IndexEntry]


# --- control calls, which every member carries out ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HttpCall:
    """A control request over HTTP."""

    method: str
    path: str
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes


@dataclass(frozen=True, slots=True)
class GrpcCall:
    """A control call over gRPC."""

    path: str
    metadata: Headers
    message: bytes


@dataclass(frozen=True, slots=True)
class ModelControl:
    """A model wants another one loaded or unloaded."""

    name: str
    is_load: bool
    parameters: Mapping[str, object]

    @property
    def path(self) -> str:
        """What the log calls it."""
        return f"the {'load' if self.is_load else 'unload'} of model '{self.name}' by a model"


ControlCall = HttpCall | GrpcCall | ModelControl


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer to a control call: an HTTP status and body, or a gRPC status, 0 with a message."""

    is_success: bool
    status: int
    body: bytes = b""
    headers: Headers = ()
    """HTTP fields or gRPC trailers."""
    text: str = ""
    """gRPC: the message of the status; orders of models: that of the error."""
    code: ErrorCode = ErrorCode.UNKNOWN
    """Orders of models: that of the error."""


@dataclass(frozen=True, slots=True)
class Everywhere:
    """A member asks the supervisor to have all members carry out a control call: Outcome."""

    call: ControlCall
    key: ControlKey
    undoes: bool = False
    """Nothing is left of it and of earlier calls with that key."""
