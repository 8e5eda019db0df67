"""The conversation with one worker: a batch out, its responses back."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from naiad.backend.api import InstanceDiedError, RemoteInstance
from naiad.backend.workers.conversation.server_codec import BatchEncoder, BatchResponseDecoder, join_ids
from naiad.backend.workers.conversation.tensor_rules import TensorRules
from naiad.backend.workers.process.worker_process import WorkerProcess
from naiad.core.batch import Batch, SequenceEnd
from naiad.core.errors import ErrorCode, FailureReason, InferError
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse
from naiad.core.tensor import Buffer
from naiad.worker.channel import channel as channel_module
from naiad.worker.channel import frame as frames
from naiad.worker.channel.buffer_pool import TransportFullError
from naiad.worker.channel.flags_page import CANCELLED, FIRST_LATE_SLOT
from naiad.worker.channel.frame import ChannelClosedError, ChannelError, Frame

_now_ns = time.monotonic_ns
Emit = Callable[[InferRequest, InferResponse], None]
_DEATH_S = 1.0
"""Time for a worker to exit after it has closed its channel."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What the conversations with all workers of an instance have in common."""

    owner: RemoteInstance
    """The instance that converses."""
    instance: str
    model: str
    version: str
    transport_bytes: int
    """Limit of the shared memory between server and worker."""
    rules: TensorRules


class Conversation:
    """The state shared with one worker process; it ends with the process."""

    def __init__(self, process: WorkerProcess, terms: Terms) -> None:
        self._process = process
        self._channel = process.channel
        self._instance = terms.instance
        self._cap_bytes = self._transport_bytes = terms.transport_bytes
        self._encoder = BatchEncoder(terms.rules)
        self._decoder = BatchResponseDecoder(terms.model, terms.version, terms.rules)
        self._inline_bytes = channel_module.INLINE_BYTES
        self._has_marks = False
        self._broken: ChannelError | None = None
        self._closed_at_s = 0.0
        self._batch: Batch | None = None
        self._requests: Sequence[InferRequest] = ()
        self._serial = 0
        """Number of the last batch; the worker counts too."""
        self.executing_since_ns = 0
        """Monotonic time at which the running batch was sent, 0 without one."""
        self.has_answered = False
        """Whether the worker has answered a batch."""

    @property
    def has_blocks(self) -> bool:
        """Whether there is shared memory to release later."""
        return bool(self._channel.buffer_owner.total_bytes or self._channel.buffer_user.total_bytes)

    @property
    def says_ready(self) -> bool:
        """Whether the model is ready, or has no check."""
        try:
            return self._process.board.says_ready(_now_ns())
        except ValueError:
            return True  # the flags page is closed with its process; `health` reports that

    def fileno(self) -> int:
        """Return the descriptor that is readable when the worker has responded or died."""
        return self._channel.fileno()

    def begin(self, batch: Batch) -> None:
        """Send a batch. Raises InferError if it is too large; `finish` reports a dead worker."""
        # hot: bench/micro_worker.py
        requests = batch.requests
        channel = self._channel
        block = 0
        try:
            words, extra, parts, payload_bytes = self._encoder.encode(requests)
            if payload_bytes > self._inline_bytes:
                block = self._lend(parts, payload_bytes)
                parts = []
            words = self._enroll(batch, words)
        except BaseException:
            # The worker gets neither the headers that were to be sent nor the payload.
            self._encoder.restart()
            channel.buffer_owner.take_back([block] if block else ())
            raise
        self._serial += 1
        self._batch = batch
        self._requests = requests
        batch.compute_start_ns = self.executing_since_ns = _now_ns()
        # Calls and batches allocate memory at the same time, so both together may exceed the limit.
        allowance_bytes = max(0, self._transport_bytes - channel.buffer_owner.total_bytes)
        kind = frames.EXECUTE if batch.late is not None else frames.EXECUTE_COMPLETELY
        try:
            channel.send(kind, words, join_ids(requests), extra, parts, payload_bytes, block, allowance_bytes)
        except ChannelError as error:
            self._break(error)

    def finish(self) -> Sequence[InferResponse] | None:
        """Wait for the response to the batch sent. None while it is incomplete, or the cause of a death is unknown.

        Raises InstanceDiedError, InferError if the batch failed.
        """
        # hot: bench/micro_worker.py
        if self._broken is not None:
            self._settle()
            return None
        batch = self._batch
        try:
            frame = self._receive()
            if frame is None:
                return None
            if batch is not None:
                batch.compute_end_ns = _now_ns()
            responses = self._responses(frame, batch) if frame.kind == frames.EXECUTED else None
        except ChannelError as error:
            self._break(error)
            self._settle()
            return None
        self._ended()
        self.has_answered = True
        if responses is None:
            raise self._failure(frame)
        return responses

    def _receive(self) -> Frame | None:
        """Return the response to the batch sent, None while it is incomplete. Raises ChannelError."""
        return self._channel.receive_whole()

    def _responses(self, frame: Frame, batch: Batch | None) -> Sequence[InferResponse]:
        """Return the responses of the batch. Raises ChannelError."""
        return self._decoder.decode(frame, self._requests)

    @property
    def is_broken(self) -> bool:
        """Whether the worker has exited, or its channel is unusable."""
        return self._broken is not None

    @property
    def is_busy(self) -> bool:
        """Whether the worker executes something."""
        return self._batch is not None

    def await_exit(self, timeout_s: float) -> None:
        """Wait until the cause of a worker's exit is known."""
        self._process.settled.wait(timeout_s)

    def mark(self, request: InferRequest) -> None:
        """Mark the cancellation of a request of the running batch for the worker."""
        for position, running in enumerate(self._requests):
            if running is request and position < FIRST_LATE_SLOT:
                self._process.board.slots[position] = CANCELLED if request.cancelled else 0
                self._has_marks = True

    def parents(self, serial: int, slots: Sequence[int]) -> Sequence[InferRequest]:
        """Return the requests of a batch number, or of slots."""
        return self._requests if serial == self._serial else ()

    def request_at(self, serial: int, place: int) -> InferRequest | None:
        """Return the request at a place of the batch with that number, or in a slot."""
        requests = self.parents(serial, ())
        return requests[place] if place < len(requests) else None

    @property
    def room_bytes(self) -> int:
        """Shared memory left for calls by batches."""
        return self._cap_bytes - self._channel.block_bytes

    def take_room(self, taken_bytes: int) -> None:
        """Note the shared memory of calls."""
        self._transport_bytes = self._cap_bytes - taken_bytes

    def _enroll(self, batch: Batch, words: list[int]) -> list[int]:
        """Return the table of a batch about to be sent."""
        if self._has_marks:
            self._process.board.slots[:FIRST_LATE_SLOT] = bytes(FIRST_LATE_SLOT)
            self._has_marks = False
        return words

    def _lend(self, parts: Sequence[Buffer], payload_bytes: int) -> int:
        buffer_owner = self._channel.buffer_owner
        buffer_owner.limit_bytes = self._transport_bytes - self._channel.buffer_user.total_bytes
        try:
            return buffer_owner.lend(parts, payload_bytes)
        except TransportFullError as error:
            raise self._full(error.needed_bytes) from None

    def _ended(self) -> None:
        self.executing_since_ns = 0
        self._batch = None
        self._requests = ()

    def tidy(self) -> None:
        """Release memory that has not been used for a while and report it; no batch may be running."""
        self._channel.buffer_owner.trim()
        # An idle worker drops blocks as well, without a frame to report it.
        self._channel.buffer_user.drop_gone(self._process.board.blocks)
        if not self._channel.has_news:
            # A stopped worker reads nothing: in the end the pipe would be full, and the data would wait.
            return
        try:
            self._channel.send(frames.TIDY)
        except ChannelError:
            return  # it has died; the watching thread detects it

    def end_sequences(self, ended: Sequence[SequenceEnd]) -> None:
        """Report ended sequences; no batch may be executing."""
        try:
            self._channel.send(frames.SEQUENCES_ENDED, extra={"ended": ended})
        except ChannelError:
            return  # it has died; the watching thread detects it

    def close(self) -> None:
        """Release all but the channel, which belongs to the process."""

    def finalize(self) -> bool:
        """Let the worker finalize the model and exit; return False if it has exited already."""
        try:
            self._channel.send(frames.FINALIZE)
        except ChannelError:
            return False
        return True

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
            f"server and worker, which is capped at {self._cap_bytes} bytes "
            "(--backend-config=python,transport-max-byte-size)",
            reason=FailureReason.BACKEND,
        )

    # --- death ------------------------------------------------------------------------------------------------------

    def _break(self, error: ChannelError) -> None:
        """Note that the worker has closed its channel or sends malformed frames; its exit is known later."""
        self._broken = error
        self._closed_at_s = time.monotonic()
        if not isinstance(error, ChannelClosedError):
            self._process.kill(f"was killed because it sent nonsense ({error})")

    def _settle(self) -> None:
        """Raise InstanceDiedError as soon as the cause of the worker's death is known."""
        error = self._death()
        if error is not None:
            self._ended()
            raise error

    def _death(self) -> InstanceDiedError | None:
        process = self._process
        if not process.settled.is_set():
            if time.monotonic() - self._closed_at_s > _DEATH_S:
                process.kill("was killed because it closed its lines")
            return None
        # A batch that the worker has not read from the pipe was certainly not executed.
        has_begun = self._batch is None or process.board.has_begun(self._serial)
        error = InstanceDiedError(
            ErrorCode.UNAVAILABLE,
            f"the worker of instance '{self._instance}' {process.exit_text} {'while' if has_begun else 'before'} it "
            "executed this request",
            reason=FailureReason.BACKEND,
        )
        error.has_begun = has_begun
        return error
