"""Parts of a job: consecutive rows of one file that one worker executes, and how many rows a part has.

Everything here is sent between processes: it is picklable and small, except `WrittenRows`, which travels by itself.
"""

from dataclasses import dataclass

from naiad.core.errors import ErrorCode
from naiad.core.model import ModelMetadata
from naiad.tools.predict.files.row_reader import FileSpan
from naiad.tools.predict.stored_output.segment import SegmentFolder

TARGET_S = 1.0
"""The work of a part: what is repeated when its worker is killed."""
MAX_PART_BYTES = 16 << 20
"""Of its inputs and outputs."""
MAX_PART_ROWS = 1 << 20
_GROWTH = 4


@dataclass(frozen=True, slots=True)
class JobPart:
    """Consecutive rows of one file."""

    span: FileSpan
    row: int
    """Number of its first row among all rows of the job."""
    segments: SegmentFolder | None = None
    """Where the worker stores the rows; None if it returns them."""


@dataclass(frozen=True, slots=True)
class PartOutcome:
    """What came of a part whose rows have been executed."""

    rows: int
    failed_rows: int
    last_reason: str
    """Of the failed rows; "" without one."""
    seconds: float
    size_bytes: int
    """Of its inputs and outputs as tensors."""


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """What a worker says about its model after the load."""

    metadata: ModelMetadata
    config: bytes
    """The configuration, serialized."""
    version: str
    """Of naiad."""
    host: str


@dataclass(frozen=True, slots=True)
class WorkerProblem:
    """An error of a worker. Errors themselves do not always survive pickling."""

    message: str
    code: ErrorCode | None = None
    """None for an error that is no `InferError`."""
    is_of_store: bool = False
    """Whether an object store has failed, which ends the job for any code."""


class PartSize:
    """How many rows the next part has: one request at first, later about `TARGET_S` of work. Pure."""

    def __init__(self, rows_per_request: int) -> None:
        self._unit = rows_per_request
        self.rows = rows_per_request
        """A multiple of the rows of a request."""

    def learn(self, outcome: PartOutcome) -> None:
        """Take a part that has been executed into account."""
        by_time = outcome.rows * TARGET_S / max(1e-6, outcome.seconds)
        by_bytes = outcome.rows * MAX_PART_BYTES / max(1, outcome.size_bytes)
        limit = int(min(by_time, by_bytes, _GROWTH * self.rows, max(MAX_PART_ROWS, self._unit)))
        self.rows = max(1, limit // self._unit) * self._unit
