"""Messages between the supervisor and its server processes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from naiad.cluster.packed_live import PackedLive
from naiad.cluster.packed_statistics import PackedStatistics
from naiad.config.rollout.guard import RolloutCounts
from naiad.config.rollout.state import RolloutState
from naiad.core.errors import ErrorCode, InferError
from naiad.core.model import IndexEntry
from naiad.operations.requests import CommandOrder
from naiad.options.options import ServerOptions
from naiad.telemetry.live.live_answer import LiveQuery

# --- from the supervisor to a process -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Welcome:
    """The first message: slot and options of the process."""

    options: ServerOptions
    slot: int
    process_count: int
    ports: Mapping[str, int]
    """Flag prefixes and numbers of the ports; each connection is passed with its position in this mapping."""
    directory: str
    """Directory of the sockets between processes, private to the user of the server."""
    is_successor: bool
    """Whether an earlier process of the slot has died."""
    quiet_below: int
    """The process logs nothing below this level until it is ready: one process logs the start, not all."""
    started_ms: int = 0
    """Unix time of the start of the server; 0 for the start of the process."""


@dataclass(frozen=True, slots=True)
class StopBeingReady:
    """The server is about to end; continue to serve."""


@dataclass(frozen=True, slots=True)
class Finish:
    """No more connections follow; complete the requests in flight and exit."""


# --- from a process to the supervisor -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Listening:
    """Connections may be passed; the models are loading."""


@dataclass(frozen=True, slots=True)
class ModelsLoaded:
    """The start is over: the models are loaded or have failed."""

    is_ready: bool
    model: str
    """The name of a ready model; empty without one."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The process cannot start, and exits."""

    reason: str


# --- queries, from the supervisor to all processes, and from a process to the supervisor ------------------------


@dataclass(frozen=True, slots=True)
class IsReady:
    """Whether the server is ready for traffic: bool."""


@dataclass(frozen=True, slots=True)
class IsModelReady:
    """Whether a model version is ready: bool."""

    name: str
    version: str


@dataclass(frozen=True, slots=True)
class AskActivity:
    """A number that changes with each request that was answered: int."""


@dataclass(frozen=True, slots=True)
class AskStatistics:
    """Statistics of all ready model versions: PackedStatistics."""


@dataclass(frozen=True, slots=True)
class AskIndex:
    """The repository index: a sequence of IndexEntry."""


@dataclass(frozen=True, slots=True)
class AskMetrics:
    """The Prometheus exposition: bytes."""


@dataclass(frozen=True, slots=True)
class AskRollouts:
    """The counts of all rollouts, by the keys of the models."""


@dataclass(frozen=True, slots=True)
class AskLive:
    """What the live streams of a process show: PackedLive."""

    query: LiveQuery


Query = IsReady | IsModelReady | AskActivity | AskStatistics | AskIndex | AskMetrics | AskRollouts | AskLive
Answer = bool | int | bytes | PackedStatistics | PackedLive | Sequence[IndexEntry] | Mapping[str, RolloutCounts]


# --- control calls, which every process executes --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OperationCall:
    """A command of a client: an operation of `naiad.operations` by its name, with its decoded request."""

    operation: str
    request: object

    @property
    def description(self) -> str:
        """Its name in the log."""
        return f"the operation {self.operation}"


@dataclass(frozen=True, slots=True)
class ModelControl:
    """The load or unload of a model by another model."""

    name: str
    is_load: bool
    parameters: Mapping[str, object]

    @property
    def description(self) -> str:
        """Its name in the log."""
        return f"the {'load' if self.is_load else 'unload'} of model '{self.name}' by a model"


@dataclass(frozen=True, slots=True)
class RolloutControl:
    """The state of a model's rollout, as it applies from now on."""

    key: str
    """Key of the model."""
    state: RolloutState
    is_stored: bool = False
    """Whether it is what the record says, and no new decision."""
    loads: bool = False
    """Whether versions have to be loaded for it; then it does not delay others, such as a rollback."""

    @property
    def description(self) -> str:
        """Its name in the log."""
        return f"a change of the rollout of model '{self.key}'"


ControlCall = OperationCall | ModelControl | RolloutControl


@dataclass(frozen=True, slots=True)
class ControlOutcome:
    """The outcome of a control call: its result, or the text and the codes of an error."""

    is_success: bool
    result: object = None
    text: str = ""
    code: ErrorCode = ErrorCode.UNKNOWN
    triton_code: ErrorCode = ErrorCode.UNKNOWN

    @classmethod
    def of(cls, error: InferError | None, result: object = None) -> "ControlOutcome":
        """Return the outcome of a call that has failed with an error, or ended with a result."""
        if error is None:
            return cls(True, result)
        return cls(False, text=error.message, code=error.code, triton_code=error.triton_code)

    @property
    def error(self) -> InferError | None:
        """The error of a call that has failed."""
        return None if self.is_success else InferError(self.code, self.text, triton_code=self.triton_code)


@dataclass(frozen=True, slots=True)
class BroadcastRequest:
    """A request to the supervisor to broadcast a control call, with an Outcome as its answer."""

    call: ControlCall
    order: CommandOrder
