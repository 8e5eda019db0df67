"""A batch prediction: what it reads, executes and writes, how far it has come, and its result."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from naiad.core.errors import invalid_argument
from naiad.tools.predict.since_time import LAST, since_ns

DEFAULT_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class PredictJob:
    """One model over all rows of some files. Picklable.

    `PredictJob("models", "classifier", ["data.csv"], "labels.jsonl")`
    """

    target: str
    """A model repository, whose models this process loads, or the address of a server: `http://`, `grpc://`."""
    model: str
    inputs: Sequence[str]
    """Files (.npy, .npz, .jsonl, .csv, .parquet), glob patterns, and folders with a file for each row; read in this
    order, the files of a pattern or folder by name."""
    output: str
    """A file: .jsonl, .csv, .npz or .parquet. It appears when all rows are done."""
    version: str = ""
    """Version of the model; "" for the newest."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Column of the files -> input of the model, where the names differ. Several columns of one input are its
    elements, in this order."""
    outputs: Sequence[str] = ()
    """Outputs of the model to write; all without one."""
    rows_per_request: int = 0
    """0 for the `max_batch_size` of the model."""
    concurrency: int = 0
    """Requests at the same time; 0 for two for each instance of the model."""
    max_failed_rows: int | None = None
    """More failed rows end the job with an error; None for no limit, as long as some rows succeed."""
    restart: bool = False
    """Discard what an interrupted run has finished, and begin with the first row."""
    timeout_s: float = DEFAULT_TIMEOUT_S
    """For one request with its retries while the server is unavailable."""
    keys: Sequence[str] = ()
    """Columns of the files that the output repeats."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Header fields (metadata over gRPC) of each request to a server, an API key for example."""
    allow_pickle: bool = False
    """Load pickles of a repository, which execute code."""
    since: str = ""
    """`last` for the files that no run before has predicted, or a date and time with its zone, such as
    `2026-03-01T00:00:00Z`, for those changed at that time or later; "" for all files."""
    state: str = ""
    """File or URL in which runs with `since="last"` record their files; "" for `MODEL.since.json` beside the
    output."""
    ray: str = ""
    """Address of the Ray whose workers execute the model: `local`, `auto`, `HOST:PORT`, `ray://HOST:PORT`; "" for
    this process."""
    workers: int = 0
    """Workers of Ray, each with the model; 0 for as many as it has CPUs or GPUs for when the job starts."""
    worker_cpus: float = 1.0
    """Of each worker."""
    worker_gpus: float = 0.0
    """Of each worker."""

    def check(self) -> None:
        """Raise InferError(INVALID_ARG) for a value that no model and no file can have."""
        if not self.inputs:
            raise invalid_argument("the job has no input; name files, glob patterns or folders")
        for name in ("rows_per_request", "concurrency", "workers"):
            value = getattr(self, name)
            if value < 0:
                raise invalid_argument(f"{name} is {value}; expected at least 1, or 0 for the default")
        if self.max_failed_rows is not None and self.max_failed_rows < 0:
            raise invalid_argument(f"max_failed_rows is {self.max_failed_rows}; expected 0 or more")
        if not self.timeout_s > 0:
            raise invalid_argument(f"timeout_s is {self.timeout_s:g}; expected more than 0 seconds")
        if self.state and self.since != LAST:
            raise invalid_argument(f"state is '{self.state}', and only runs with since 'last' record their files")
        if self.since and self.since != LAST:
            since_ns(self.since)
        self._check_workers()

    def _check_workers(self) -> None:
        for name in ("worker_cpus", "worker_gpus"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise invalid_argument(f"{name} is {value:g}; expected 0 or more")
        if not self.ray and (self.workers, self.worker_cpus, self.worker_gpus) != (0, 1.0, 0.0):
            raise invalid_argument("workers, worker_cpus and worker_gpus are for a job on Ray; name its address")


@dataclass(frozen=True, slots=True)
class JobProgress:
    """How far a job has come."""

    phase: str
    """`load` (models), `predict`, or `write` (the output file from its parts)."""
    rows: int = 0
    """Rows that are done, with the rows of an interrupted run and failed rows."""
    failed_rows: int = 0
    fraction: float = 0.0
    """Share of the bytes of all input files that has been done, from 0 to 1."""
    rows_per_s: float = 0.0
    seconds_left: float | None = None
    """None while it is unknown."""
    workers: int = 0
    """Workers of Ray that have loaded the model; 0 for a job in this process."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The result of a job."""

    rows: int
    """Rows of the output: all rows of the input."""
    failed_rows: int
    """Rows without a prediction; their reasons are in `rejected`."""
    seconds: float
    """Duration of this run; after an interruption without the time of the runs before."""
    output: str
    """Path of the output file."""
    rejected: str
    """Path of the file with row, file and reason of each failed row; "" if there is none."""
    resumed_rows: int = 0
    """Rows that an interrupted run had finished before this one."""
    set_aside: Mapping[str, str] = field(default_factory=dict)
    """Input files that cannot be read, with the reasons; the output has no rows of them."""
    reasons: Mapping[str, int] = field(default_factory=dict)
    """The first few reasons of rows that failed in this run, and how many rows have each."""
    skipped_files: int = 0
    """Input files that are not new, with `since`."""
    earlier: "Summary | None" = None
    """Of the output of an earlier run with `since="last"` that did not end: this run has completed it first."""
    is_nothing_new: bool = False
    """Whether there was nothing to do with `since`: nothing was executed, and no output written by this run."""
