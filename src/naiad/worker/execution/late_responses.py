"""Responses of an ordinary model that are sent after `execute` has returned.

The other responses of the batch are sent first, so that the next batch may follow. From then on each open request has
a slot on the flags page and a stream, like the requests of a decoupled model.
"""

from __future__ import annotations

import weakref
from typing import Any, Sequence

from naiad.worker.api.failure import describe
from naiad.worker.api.request import InferenceRequest
from naiad.worker.api.response import SingleResponse
from naiad.worker.channel.channel import Channel
from naiad.worker.channel.flags_page import FIRST_LATE_PLACE, FIRST_LATE_SLOT, SLOTS, FlagsPage
from naiad.worker.execution.execution import LATE
from naiad.worker.execution.response_sender import ResponseSender, Stream


class LateResponses:
    """The open requests of earlier batches. Used by the executing thread."""

    def __init__(self, channel: Channel, board: FlagsPage) -> None:
        self.response_sender = ResponseSender(channel, board)
        self._open: dict[int, weakref.ref[Stream]] = {}
        self._next_slot = FIRST_LATE_SLOT

    @property
    def has_open(self) -> bool:
        """Whether a response is pending."""
        while self._open:
            slot = next(iter(self._open))
            if not self._is_free(slot):
                return True
            del self._open[slot]
        return False

    def reserve(self, requests: Sequence[InferenceRequest], responses: Sequence[Any]) -> dict[int, int]:
        """Return slots for the pending responses of a batch, by their indexes.

        Empty if too many requests are open.
        """
        slots: dict[int, int] = {}
        for index, response in enumerate(responses):
            if type(response) is not SingleResponse:
                continue
            slot = self._next_slot
            if not self._is_free(slot):
                return {}
            self._next_slot = slot + 1 if slot + 1 < SLOTS else FIRST_LATE_SLOT
            slots[index] = slot
        for index, slot in slots.items():
            # Its cancellation is read there from now on: the next batch soon uses the places of this one.
            requests[index]._position = responses[index].position = FIRST_LATE_PLACE + slot
        return slots

    def divert(
        self, answers: Sequence[SingleResponse], slots: Sequence[int], outputs: Sequence[frozenset[str]]
    ) -> list[weakref.ref[Stream]]:
        """Send these responses through streams when they arrive; the server knows their slots. Return the streams."""
        references = []
        for answer, slot, output_names in zip(answers, slots, outputs):
            stream = Stream(self.response_sender, slot, output_names)
            reference = self._open[slot] = weakref.ref(stream)
            references.append(reference)
            try:
                answer.divert(stream)
            except Exception as error:
                self.response_sender.fail([stream], describe(error))
        return references

    def _is_free(self, slot: int) -> bool:
        reference = self._open.get(slot)
        stream = None if reference is None else reference()
        return stream is None or stream.is_closed


def without_late(responses: Sequence[Any], slots: dict[int, int]) -> tuple[list[Any], list[int]]:
    """Return the responses with `LATE` for pending ones with slots, and the indexes of these."""
    late = [index for index in slots if not responses[index].has_arrived]
    left = list(responses)
    for index in late:
        left[index] = LATE
    return left, late
