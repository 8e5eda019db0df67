"""The interface between a job in parts and the workers that execute them, and the errors between the two."""

from abc import ABC, abstractmethod
from typing import Protocol

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import InferError
from naiad.core.model import ModelMetadata
from naiad.tools.predict.distributed.part import JobPart, OpenedModel, PartOutcome, WorkerProblem
from naiad.tools.predict.files.row_writer import WrittenRows
from naiad.tools.predict.row_requests import FATAL
from naiad.tools.predict.stored_output.segment import Segment


class PartFailedError(Exception):
    """A part was not executed; another try may succeed."""


class WorkerLostError(PartFailedError):
    """The worker ended before the part did, or with the rows of the part."""


class ExecutedPart(Protocol):
    """A part whose rows may still be where they were made."""

    @property
    def outcome(self) -> PartOutcome:
        """What came of it."""

    async def fetch(self) -> WrittenRows | Segment:
        """Return the rows, or where they are. Raises WorkerLostError if they are gone."""


class WorkerPool(ABC):
    """Workers that hold the model of a job."""

    @property
    @abstractmethod
    def workers(self) -> int:
        """Those that have loaded the model."""

    @property
    @abstractmethod
    def max_parts(self) -> int:
        """Parts that may be executed and not written: those in progress, and those that wait for an earlier one."""

    @abstractmethod
    async def model(self) -> OpenedModel:
        """Wait for the first worker. Raises InferError if none can start, or the model does not load."""

    @abstractmethod
    async def execute(self, part: JobPart) -> ExecutedPart:
        """Execute a part when a worker is free.

        Raises PartFailedError, and InferError for an error that ends the job.
        """

    async def metadata(self) -> ModelMetadata:
        """Return inputs, outputs and versions of the model."""
        return (await self.model()).metadata

    async def config(self) -> ModelConfig:
        """Return the complete configuration."""
        return ModelConfig.FromString((await self.model()).config)


def raise_problem(problem: WorkerProblem) -> None:
    """Raise the error of a part: InferError if it is one of the model's server or of an object store, which are not
    about rows, and PartFailedError for another one.
    """
    if problem.code is not None and (problem.is_of_store or problem.code in FATAL):
        raise InferError(problem.code, problem.message)
    raise PartFailedError(problem.message)
