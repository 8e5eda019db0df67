"""Conversations with requests that stay open after their batch.

Ordinary models: a worker responds to a batch once `execute` has returned. For responses that a model sends later
through a response sender it names slots instead; those requests stay open, the next batch may be sent, and the late
responses arrive like the responses of a decoupled model.

Decoupled models: responses arrive at any time. A slow client: its frontend pauses its request, and the next response
of that request sets PAUSED in its slot of the flags page. From then on the model waits in `send` until the client has
caught up; meanwhile the worker asks periodically. If other requests wait because of that, the mark is removed when
the `Patience` that slow clients share is used up. The request of a client that has taken nothing fails then. For
another one the model continues, and the request fails as soon as `_UNTAKEN_BYTES` are queued for its client, or
`_GRACE_NS` have passed while others wait. Other requests wait because of that if the thread in `send` is known to
serve them too, or if the worker has sent nothing for `_QUIET_NS`. The engine limits the time that a request may stay
paused, for all backends (engine/serving/decoupled.py).
"""

import itertools
import time
from collections.abc import Sequence
from typing import ClassVar

from naiad.backend.api import InstanceDiedError
from naiad.backend.workers.conversation.conversation import Conversation, Emit, Terms
from naiad.backend.workers.conversation.emitted_responses import DecoupledDecoder, LateDecoder
from naiad.backend.workers.conversation.patience import Patience, reads_nothing
from naiad.backend.workers.process.worker_process import WorkerProcess
from naiad.core.batch import Batch
from naiad.core.errors import ErrorCode, FailureReason, InferError, internal
from naiad.core.request import InferRequest
from naiad.core.response import LATE, InferResponse
from naiad.worker.channel import frame as frames
from naiad.worker.channel.buffer_pool import NUMBERS, RELEASED
from naiad.worker.channel.flags_page import CANCELLED, FIRST_LATE_PLACE, FIRST_LATE_SLOT, LISTENING, PAUSED, SLOTS
from naiad.worker.channel.frame import ChannelError, Frame

_now_ns = time.monotonic_ns
_FEW_OPEN = 64
"""Up to this number of open requests, all are parents of a call from a thread without requests."""
_UNTAKEN_BYTES = 4 << 20
"""Limit of the responses queued for one slow client so that its model can serve other requests."""
_RESPONSE_BYTES = 128
"""What a response occupies beside its data."""
_QUIET_NS = 400_000_000
_LEAST_NS = 40_000_000
_SLOW_NS = 500_000_000
"""Every client has the first time to catch up, however much the clients before it have used. One that reads, or may,
has the second."""
_GRACE_NS = 200_000_000
"""A client that catches up before the patience and this time are over keeps its request."""


class OpenConversation(Conversation):
    """A conversation with requests that stay open after their batch until their final responses.

    Each open request has a slot: its number in messages, and its byte on the flags page.
    """

    fate_of_open: ClassVar[str]
    """What was not finished when the worker died: the end of the error of open requests."""

    def __init__(self, process: WorkerProcess, terms: Terms) -> None:
        super().__init__(process, terms)
        self._owner = terms.owner
        self._emit: Emit | None = None
        """Takes the responses of open requests."""
        self._open: dict[int, InferRequest] = {}
        self._slots: dict[InferRequest, int] = {}

    @property
    def is_busy(self) -> bool:
        """Whether the worker executes a batch or has open requests."""
        return self._batch is not None or bool(self._open)

    def parents(self, serial: int, slots: Sequence[int]) -> Sequence[InferRequest]:
        """Return the requests in these slots, or the requests of the batch with that number."""
        if slots:
            return [request for slot in slots if (request := self._open.get(slot)) is not None]
        return super().parents(serial, slots)

    def _release_blocks(self) -> None:
        """Report released blocks on the flags page: the worker may wait for a block, and no frame may be due."""
        blocks = self._process.board.blocks
        for number in self._channel.buffer_user.released():
            blocks[number % NUMBERS] = RELEASED

    def _settle(self) -> None:
        """Fail all open requests once the cause of the worker's death is known; raise it for a batch."""
        error = self._death()
        if error is None:
            return
        was_executing = self._batch is not None
        if not error.has_begun:
            self._dismiss(self._requests)
        left = list(self._open.values())
        self._open.clear()
        self._slots.clear()
        self._ended()
        if self._emit is not None and left:
            # They were executed, unlike perhaps the batch sent last.
            text = f"the worker of instance '{self._instance}' {self._process.exit_text} {self.fate_of_open}"
            died = InstanceDiedError(error.code, text, reason=error.reason)
            response = InferResponse(self._decoder.failed_header, error=died)
            for request in left:
                self._emit(request, response)
        if was_executing:
            raise error

    def _dismiss(self, requests: Sequence[InferRequest]) -> None:
        """Close the open ones among these requests; the caller responds to them."""


class OrdinaryConversation(OpenConversation):
    """A conversation in which a batch ends with `execute`, and some of its requests perhaps later."""

    fate_of_open: ClassVar[str] = "before it answered this request"

    def __init__(self, process: WorkerProcess, terms: Terms) -> None:
        super().__init__(process, terms)
        self._late_decoder = LateDecoder(terms.model, terms.version, terms.rules, self._open)

    def mark(self, request: InferRequest) -> None:
        """Mark the cancellation of an executing or open request for the worker."""
        slot = self._slots.get(request)
        if slot is None:
            super().mark(request)
        else:
            self._process.board.slots[slot] = _marks_of(request)

    def request_at(self, serial: int, place: int) -> InferRequest | None:
        """Return the request at a place of the batch with that number, or an open one."""
        if place >= FIRST_LATE_PLACE:
            return self._open.get(place - FIRST_LATE_PLACE)
        return super().request_at(serial, place)

    def _receive(self) -> Frame | None:
        """Return the response to the batch sent, if complete; received late responses are emitted."""
        if self._emit is None:
            return super()._receive()
        return self._take(self._channel.receive_some())

    def _take(self, received: Sequence[Frame]) -> Frame | None:
        outcome = None
        for frame in received:
            if frame.kind == frames.EMITTED:
                self._process.board.count_taken()
                self._emit_late(frame)
            elif frame.kind in (frames.EXECUTED, frames.FAILED) and self._batch is not None and outcome is None:
                outcome = frame
                # Late responses of this batch may follow.
                self._leave_open(frame, self._batch)
            elif frame.kind != frames.WAITING:
                raise ChannelError(f"a frame of kind {frame.kind}")
        if self._channel.buffer_user.held:
            self._release_blocks()
        return outcome

    def _responses(self, frame: Frame, batch: Batch | None) -> Sequence[InferResponse]:
        """Return the responses of the batch, LATE for pending ones. Raises ChannelError."""
        if batch is not None and self._emit is None and "late" in frame.extra:
            self._leave_open(frame, batch)
            if self._take(self._channel.receive_rest()) is not None:
                raise ChannelError("two answers to a batch")
        late = frame.extra.pop("late", ())
        responses = self._decoder.decode(frame, self._requests)
        for index, _ in late:
            responses[index] = LATE
        return responses

    def _leave_open(self, frame: Frame, batch: Batch) -> None:
        """Open the requests with pending responses. Raises ChannelError if malformed."""
        late = frame.extra.get("late", ())
        if not late:
            return
        if batch.late is None:
            raise ChannelError("late responses of a batch that is to be answered completely")
        marks, requests = self._process.board.slots, []
        try:
            for index, slot in late:
                request = batch.requests[index]
                if slot in self._open or not FIRST_LATE_SLOT <= slot < SLOTS:
                    raise ChannelError(f"a late response in slot {slot}")
                self._open[slot] = request
                self._slots[request] = slot
                marks[slot] = _marks_of(request)
                requests.append(request)
        except (LookupError, TypeError, ValueError) as error:
            raise ChannelError(f"unreadable slots of late responses: {error!r}") from None
        self._emit = batch.late.emit
        batch.left_open = requests
        batch.late.open(requests, self._owner)

    def _emit_late(self, frame: Frame) -> None:
        marks, emit = self._process.board.slots, self._emit
        for slot, response in self._late_decoder.emitted(frame):
            request = self._open.pop(slot, None)
            if request is None or emit is None or not response.final:
                raise ChannelError(f"a late response for slot {slot}, which is not open")
            del self._slots[request]
            marks[slot] = 0
            emit(request, response)


class DecoupledConversation(OpenConversation):
    """A conversation in which every request stays open until its final response."""

    fate_of_open: ClassVar[str] = "while it executed this request"

    def __init__(self, process: WorkerProcess, terms: Terms) -> None:
        super().__init__(process, terms)
        self._emissions = DecoupledDecoder(terms.model, terms.version, terms.rules)
        self._free: list[int] = []
        self._paused: dict[int, int] = {}
        """Slots whose clients are slow, and since when."""
        self._blocking: set[int] = set()
        """Words of the worker: slots with waiting senders, and whether their threads are shared."""
        self._quiet_since_ns = self._quiet_count = 0
        """Time since the worker has sent nothing while senders wait, and its number of messages."""
        self._untaken_bytes: dict[int, int] = {}
        """Bytes queued since, for slots of slow clients with models that continue."""
        self._released_ns: dict[int, int] = {}
        """When these models went on."""
        self._unread_bytes: dict[int, int] = {}
        """What waited for the client of a slot when its request was paused; -1 if unknown."""
        self._patience = Patience()
        self._fresh = itertools.count()

    def finish(self) -> Sequence[InferResponse] | None:
        """Emit the received responses. () if the batch sent was executed, otherwise None.

        Raises InferError if the batch failed, InstanceDiedError if the worker died during one. Blocks only without
        input.
        """
        # hot: bench/micro_emission.py
        if self._broken is not None:
            self._settle()
            return None
        try:
            outcome = self._receive()
        except ChannelError as error:
            self._break(error)
            self._settle()
            return None
        if self._channel.buffer_user.held:
            self._release_blocks()
        if self._paused or self._untaken_bytes:
            self._see_which_caught_up()
        if self._blocking:
            self._unblock()
        if outcome is None:
            return None
        if self._batch is not None:
            self._batch.compute_end_ns = _now_ns()
        if outcome.kind == frames.FAILED:
            self._dismiss(self._requests)
        self._ended()
        self.has_answered = True
        if outcome.kind == frames.FAILED:
            raise self._failure(outcome)
        return ()

    def mark(self, request: InferRequest) -> None:
        """Mark the cancellation of an open request for the worker."""
        slot = self._slots.get(request)
        if slot is not None:
            self._paused.pop(slot, None)
            self._process.board.slots[slot] = _marks_of(request)

    def _receive(self) -> Frame | None:
        """Emit the received responses, and return the response to the batch sent if it is among them."""
        outcome = None
        for frame in self._channel.receive_some():
            if frame.kind == frames.EMITTED:
                self._process.board.count_taken()
                self._take(frame)
            elif frame.kind in (frames.EXECUTED, frames.FAILED):
                outcome = frame
            elif frame.kind == frames.WAITING:
                self._blocking.update(frame.words)
            else:
                raise ChannelError(f"a frame of kind {frame.kind}")
        return outcome

    def _take(self, frame: Frame) -> None:
        # hot: bench/micro_emission.py
        opened, emit = self._open, self._emit
        for slot, response in self._emissions.emitted(frame):
            request = opened.get(slot)
            if request is None or emit is None:
                raise ChannelError(f"a response for slot {slot}, which is not open")
            if response.final:
                del opened[slot], self._slots[request]
                self._free.append(slot)
                emit(request, response)
                continue
            emit(request, response)
            if request.is_paused and slot not in self._paused and (not request.cancelled or request.is_listening):
                self._hold_back(slot, request, response)

    def _hold_back(self, slot: int, request: InferRequest, response: InferResponse) -> None:
        """Pause the model for a slow client, or count the bytes queued for it."""
        gathered_bytes = self._untaken_bytes.get(slot)
        if gathered_bytes is None:
            self._paused[slot] = _now_ns()
            self._unread_bytes[slot] = request.unread_bytes
            self._process.board.slots[slot] = PAUSED | _marks_of(request)
            return
        gathered_bytes += _RESPONSE_BYTES + sum(map(len, response.data))
        self._untaken_bytes[slot] = gathered_bytes
        if gathered_bytes > _UNTAKEN_BYTES or self._is_grace_over(slot):
            del self._untaken_bytes[slot]
            self._abort(request, gathered_bytes)

    def _is_grace_over(self, slot: int) -> bool:
        """Return whether a model that went on delays other requests although its client still reads nothing."""
        now_ns = _now_ns()
        is_over = now_ns - self._released_ns.get(slot, now_ns) > _GRACE_NS
        return self._others_wait() and (not self._patience.spend(now_ns) or is_over)

    def _others_wait(self) -> bool:
        # A model may also keep the requests that it has taken waiting.
        return len(self._open) > 1 or (self._owner.others_wait is not None and self._owner.others_wait())

    def _abort(self, request: InferRequest, gathered_bytes: int) -> None:
        """Fail a request with a client that is too slow; its slot stays open until the model's final response."""
        error = InferError(
            ErrorCode.UNAVAILABLE,
            f"the client takes the responses of instance '{self._instance}' too slowly: {gathered_bytes} bytes or "
            "more wait for it, and other requests for the model",
            reason=FailureReason.OTHER,
        )
        if self._emit is not None:
            self._emit(request, InferResponse(self._emissions.failed_header, error=error))
        self._patience.settle()
        request.cancelled = True
        self._owner.mark(request)

    def _unblock(self) -> None:
        """Release senders that wait for slow clients if other requests wait because of that."""
        blocking, self._blocking = self._blocking, set()
        board, now_ns = self._process.board, _now_ns()
        if board.taken_count != self._quiet_count:
            self._quiet_count, self._quiet_since_ns = board.taken_count, now_ns
        is_quiet = now_ns - self._quiet_since_ns > _QUIET_NS
        if not self._others_wait():
            return
        if self._patience.spend(now_ns):
            return
        for word in blocking:
            slot, is_shared = word >> 1, word & 1
            paused_ns = now_ns - self._paused.get(slot, now_ns)
            request = self._open.get(slot)
            if not (is_shared or is_quiet):
                continue
            if (
                request is not None
                and paused_ns > _LEAST_NS
                and reads_nothing(self._unread_bytes.get(slot, 0), request.unread_bytes)
            ):
                self._paused.pop(slot, None)
                self._abort(request, request.unread_bytes)
            elif paused_ns > _SLOW_NS:
                self._paused.pop(slot, None)
                self._untaken_bytes[slot] = 0
                self._released_ns[slot] = now_ns
                board.slots[slot] = _marks_of(request) if request is not None else 0

    def parents(self, serial: int, slots: Sequence[int]) -> Sequence[InferRequest]:
        """Return the requests in these slots; all open ones if the worker does not know the caller's."""
        if slots:
            return super().parents(serial, slots)
        return list(self._open.values()) if len(self._open) <= _FEW_OPEN else ()

    def request_at(self, serial: int, place: int) -> InferRequest | None:
        """Return the request in a slot."""
        return self._open.get(place)

    def _enroll(self, batch: Batch, words: list[int]) -> list[int]:
        """Give each request a slot; the table begins with these. Raises InferError without enough slots."""
        if batch.emit is None:
            raise internal(f"instance '{self._instance}' has nowhere to send its responses")
        if len(self._open) + len(batch.requests) > SLOTS:
            raise InferError(
                ErrorCode.UNAVAILABLE,
                f"instance '{self._instance}' has {len(self._open)} requests without their final responses; at most "
                f"{SLOTS} may be open",
                reason=FailureReason.BACKEND,
            )
        self._emit = batch.emit
        free, marks = self._free, self._process.board.slots
        slots = []
        for request in batch.requests:
            slot = free.pop() if free else next(self._fresh)
            marks[slot] = 0
            self._paused.pop(slot, None)
            self._untaken_bytes.pop(slot, None)
            self._open[slot] = request
            self._slots[request] = slot
            slots.append(slot)
        return slots + words

    def _dismiss(self, requests: Sequence[InferRequest]) -> None:
        """Close requests that the worker has closed without a response; the caller responds to them."""
        for request in requests:
            slot = self._slots.pop(request, None)
            if slot is not None:
                del self._open[slot]
                self._free.append(slot)

    def _see_which_caught_up(self) -> None:
        """Release models that wait for clients that caught up; the worker asks periodically."""
        for slot in list(self._paused):
            request = self._open.get(slot)
            if request is None or not request.is_paused:
                self._paused.pop(slot, None)
                self._patience.give_back()
                if request is not None:
                    self._process.board.slots[slot] = _marks_of(request)
        for slot in list(self._untaken_bytes):
            request = self._open.get(slot)
            if request is None or not request.is_paused:
                del self._untaken_bytes[slot]
                self._patience.give_back()


def _marks_of(request: InferRequest) -> int:
    """Return the byte of a request that is not paused."""
    if not request.cancelled:
        return 0
    return CANCELLED | LISTENING if request.is_listening else CANCELLED
