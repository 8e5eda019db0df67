"""Iterative sequences: one request that a model executes again and again until its final response."""

import itertools
from collections.abc import Sequence

from naiad.config.execution import Control
from naiad.config.model_config_pb2 import DataType, ModelConfig
from naiad.core.batch import Batch
from naiad.core.errors import ErrorCode, FailureReason, InferError
from naiad.core.request import InferRequest
from naiad.core.response import RESCHEDULE, InferResponse
from naiad.engine.admission import prefix
from naiad.scheduler.api import Scheduler

_FIRST_ID = 1 << 62
"""Ids that clients are unlikely to use."""
_FIRST_SHORT_ID = 1 << 30
"""The same for models that get only the low 32 bits."""
_SHORT_TYPES = (DataType.TYPE_INT32, DataType.TYPE_UINT32)


class IterativeRequests:
    """Turns a request into a sequence, and tracks the executing requests of a decoupled model.

    Not thread-safe: the caller holds the model's lock.
    """

    def __init__(self, config: ModelConfig, scheduler: Scheduler) -> None:
        """Read the type of correlation ids from the configuration."""
        self._scheduler = scheduler
        id_types = [
            control.data_type
            for control_input in config.sequence_batching.control_input
            for control in control_input.control
            if control.kind == Control.CONTROL_SEQUENCE_CORRID
        ]
        self._has_text_ids = DataType.TYPE_STRING in id_types
        is_short = any(id_type in _SHORT_TYPES for id_type in id_types)
        self._ids = itertools.count(_FIRST_SHORT_ID if is_short else _FIRST_ID)
        self._executing: dict[int, InferRequest] = {}
        self._held: dict[int, InferRequest] = {}
        """Requests that were put back before the end of their batch."""

    def begin(self, request: InferRequest) -> None:
        """Make a request the first of a sequence; it gets an id if it has none. Triton: regardless of its flags."""
        header = request.header
        correlation_id = header.sequence_id
        if not correlation_id:
            number = next(self._ids)
            correlation_id = str(number) if self._has_text_ids else number
        request.header = header.in_sequence(correlation_id, is_first=True)

    def go_on(
        self, done: Sequence[InferRequest], again: Sequence[InferRequest], now_ns: int
    ) -> list[tuple[InferRequest, InferError]]:
        """End the sequences of completed requests, and put back the requests to execute again.

        Returns the requests that cannot be put back, each with its error.
        """
        dropped: list[tuple[InferRequest, InferError]] = []
        for request in again:
            error = self._put_back(request, now_ns)
            if error is not None:
                dropped.append((request, error))
        for request in (*done, *(request for request, _ in dropped)):
            self._scheduler.release(request, now_ns)
        return dropped

    def _put_back(self, request: InferRequest, now_ns: int) -> InferError | None:
        if request.cancelled:
            return InferError(ErrorCode.CANCELLED, "", reason=FailureReason.CANCELED)
        header = request.header
        # Controls and states were appended to the client's inputs.
        request.data = request.data[: len(header.inputs)]
        if header.sequence_start:
            request.header = header.in_sequence(header.sequence_id, is_first=False)
        if self._scheduler.reschedule(request, now_ns):
            return None
        message = f"{prefix(request.id)}the sequence of this request has ended while it was executed"
        return InferError(ErrorCode.UNAVAILABLE, message, reason=FailureReason.OTHER)

    # --- of decoupled models ----------------------------------------------------------------------------------------

    def took(self, batch: Batch) -> None:
        """Note that the requests of a batch execute."""
        for request in batch.requests:
            self._executing[id(request)] = request

    def may_go_on(self, request: InferRequest) -> bool:
        """Return whether a request to put back is free; otherwise `completed` returns it later."""
        is_free = id(request) not in self._executing
        if not is_free:
            self._held[id(request)] = request
        return is_free

    def completed(self, requests: Sequence[InferRequest]) -> list[InferRequest]:
        """Note the end of an execution; return the requests that were put back meanwhile."""
        for request in requests:
            self._executing.pop(id(request), None)
        held = [self._held.pop(id(request), None) for request in requests]
        return [request for request in held if request is not None]


def split(batch: Batch, responses: Sequence[InferResponse]) -> tuple[list[InferRequest], list[InferRequest]]:
    """Return the completed requests of an executed batch, and those to execute again."""
    done: list[InferRequest] = []
    again: list[InferRequest] = []
    for request, response in zip(batch.requests, responses, strict=True):
        (again if response is RESCHEDULE else done).append(request)
    return done, again
