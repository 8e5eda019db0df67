"""Conversations with the workers of ordinary models, with responses that may follow after their batch.

A worker responds to a batch once `execute` has returned. For responses that a model sends later through a response
sender it names slots instead; those requests stay open, the next batch may be sent, and the late responses arrive
like the responses of a decoupled model.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from naiad.backend.python.conversation.codec import ResponseShape
from naiad.backend.python.conversation.conversation import OpenConversation, Terms
from naiad.backend.python.conversation.decoupled import DecoupledDecoder
from naiad.backend.python.conversation.tensors import TensorRules
from naiad.backend.python.worker.process import WorkerProcess
from naiad.core.batch import Batch
from naiad.core.request import InferRequest
from naiad.core.response import LATE, InferResponse
from naiad.core.tensor import Buffer
from naiad.worker.channel import frame as frames
from naiad.worker.channel.flags_page import CANCELLED, FIRST_LATE_PLACE, FIRST_LATE_SLOT, SLOTS
from naiad.worker.channel.frame import ChannelError, Frame


class LateDecoder(DecoupledDecoder):
    """Decodes late responses, which must match the configuration."""

    may_vary: ClassVar[bool] = False

    def __init__(self, model: str, version: str, rules: TensorRules, requests: Mapping[int, InferRequest]) -> None:
        """`requests` are the open ones by their slots."""
        super().__init__(model, version, rules)
        self._requests = requests

    def _examined(self, slot: int, shape: ResponseShape, data: list[Buffer]) -> InferResponse:
        return self._checked(shape, self._requests[slot], data)


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
            self._process.board.slots[slot] = CANCELLED if request.cancelled else 0

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
                marks[slot] = CANCELLED if request.cancelled else 0
                requests.append(request)
        except (LookupError, TypeError, ValueError) as error:
            raise ChannelError(f"unreadable slots of late responses: {error!r}") from None
        self._emit = batch.late.emit
        batch.left_open = requests
        batch.late.open(requests, self.owner)

    def _emit_late(self, frame: Frame) -> None:
        marks, emit = self._process.board.slots, self._emit
        for slot, response in self._late_decoder.emitted(frame):
            request = self._open.pop(slot, None)
            if request is None or emit is None or not response.final:
                raise ChannelError(f"a late response for slot {slot}, which is not open")
            del self._slots[request]
            marks[slot] = 0
            emit(request, response)
