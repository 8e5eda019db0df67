"""The conversation with one worker: a batch out, its responses back."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from naiad.backend.api import InstanceDiedError
from naiad.backend.python_outputs import OutputRules
from naiad.backend.python_process import WorkerProcess
from naiad.backend.python_wire import BatchEncoder, ReplyDecoder, join_ids
from naiad.backend.worker import channel as channel_module
from naiad.backend.worker import frame as frames
from naiad.backend.worker.block import TransportFullError
from naiad.backend.worker.frame import ChannelClosedError, ChannelError, Frame
from naiad.core.batch import Batch
from naiad.core.errors import ErrorCode, FailureReason, InferError
from naiad.core.response import InferResponse
from naiad.core.tensor import Buffer

if TYPE_CHECKING:
    from naiad.core.request import InferRequest

_now_ns = time.monotonic_ns
_DEATH_S = 1.0
"""How long to wait for the reason when a worker has closed its lines."""


class Conversation:
    """What is known between the server and one worker process; dies with the process."""

    def __init__(
        self,
        process: WorkerProcess,
        instance: str,
        model: str,
        version: str,
        transport_bytes: int,
        rules: OutputRules,
    ) -> None:
        self._process = process
        self._channel = process.channel
        self._instance = instance
        self._transport_bytes = transport_bytes
        self._encoder = BatchEncoder()
        self._decoder = ReplyDecoder(model, version, rules)
        self._batch_number = 0
        self._batch: Batch | None = None
        self._requests: Sequence[InferRequest] = ()
        self.executing_since_ns = 0
        """Monotonic time at which the running batch was sent, 0 when none runs."""

    @property
    def has_blocks(self) -> bool:
        """Whether there is shared memory that could be given up one day."""
        return bool(self._channel.lender.total_bytes or self._channel.borrower.total_bytes)

    def fileno(self) -> int:
        """Return the descriptor that is readable when the worker has answered or died."""
        return self._channel.fileno()

    def begin(self, batch: Batch) -> None:
        """Send a batch. Raises InstanceDiedError when the worker is dead, InferError when the batch is too large."""
        # hot: bench/micro_worker.py
        requests = batch.requests
        channel = self._channel
        lender = channel.lender
        words, extra, parts, payload_bytes = self._encoder.encode(requests)
        block = 0
        if payload_bytes > channel_module.INLINE_BYTES:
            block = self._lend(parts, payload_bytes)
            parts = []
        self._batch = batch
        self._requests = requests
        self._batch_number += 1
        batch.compute_start_ns = self.executing_since_ns = _now_ns()
        try:
            channel.send(
                frames.EXECUTE,
                words,
                join_ids(requests),
                extra,
                parts,
                payload_bytes,
                block,
                self._transport_bytes - lender.total_bytes,
            )
        except ChannelError as error:
            self._ended()
            raise self._died(error) from None

    def finish(self) -> Sequence[InferResponse]:
        """Wait for the answer to the batch sent. Raises InstanceDiedError, InferError when the batch failed."""
        # hot: bench/micro_worker.py
        batch, requests = self._batch, self._requests
        try:
            frame = self._channel.receive()
            if batch is not None:
                batch.compute_end_ns = _now_ns()
            if frame.kind != frames.EXECUTED:
                raise self._failure(frame)
            return self._decoder.decode(frame, requests)
        except ChannelError as error:
            raise self._died(error) from None
        finally:
            self._ended()

    def _lend(self, parts: Sequence[Buffer], payload_bytes: int) -> int:
        lender = self._channel.lender
        lender.limit_bytes = self._transport_bytes - self._channel.borrower.total_bytes
        try:
            return lender.lend(parts, payload_bytes)
        except TransportFullError as error:
            self._encoder.restart()
            raise self._full(error.needed_bytes) from None

    def _ended(self) -> None:
        self.executing_since_ns = 0
        self._batch = None
        self._requests = ()

    def tidy(self) -> None:
        """Give up memory that has not been used for a while and say so; no batch may be running."""
        self._channel.lender.trim()
        try:
            self._channel.send(frames.TIDY)
        except ChannelError:
            return  # it has died; the watch will see

    def finalize(self) -> bool:
        """Ask the worker to finalize the model and to end; False when it is gone already."""
        try:
            self._channel.send(frames.FINALIZE)
        except ChannelError:
            return False
        return True

    def is_cancelled(self, batch_number: int, position: int) -> bool:
        """Tell whether a request of the running batch was cancelled."""
        requests = self._requests
        return batch_number == self._batch_number and position < len(requests) and requests[position].cancelled

    def _failure(self, frame: Frame) -> InferError:
        notes = frame.extra
        if "full" in notes:
            return self._full(int(notes["full"][0]))
        return InferError(
            ErrorCode.INTERNAL,
            str(notes.get("message", "")),
            detail=str(notes.get("detail", "")),
            reason=FailureReason.BACKEND,
        )

    def _full(self, needed_bytes: int) -> InferError:
        return InferError(
            ErrorCode.UNAVAILABLE,
            f"instance '{self._instance}': {needed_bytes} bytes of tensors do not fit into the shared memory between "
            f"server and worker, which is capped at {self._transport_bytes} bytes "
            "(--backend-config=python,transport-max-byte-size)",
            reason=FailureReason.BACKEND,
        )

    def _died(self, error: ChannelError) -> InstanceDiedError:
        process = self._process
        if not isinstance(error, ChannelClosedError):
            process.kill(f"was killed because it sent nonsense ({error})")
        if process.gone.wait(_DEATH_S):
            how = process.exit_text
        else:
            process.kill("was killed because it closed its lines")
            how = process.kill_text
        return InstanceDiedError(
            ErrorCode.UNAVAILABLE,
            f"the worker of instance '{self._instance}' {how} while it executed this request",
            reason=FailureReason.BACKEND,
        )
