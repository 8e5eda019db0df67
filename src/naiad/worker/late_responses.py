"""Responses of an ordinary model that are sent after `execute` has returned.

The batch is answered without them, so that the next one may come. From then on each of its open requests has a slot
on the board and a stream, as all requests of a decoupled model have.
"""

from __future__ import annotations

import weakref
from typing import Any, Sequence

from naiad.worker.api.failure import describe
from naiad.worker.api.inference import InferenceRequest, SingleResponse
from naiad.worker.channel.channel import Channel
from naiad.worker.channel.flags_page import FIRST_LATE_PLACE, FIRST_LATE_SLOT, SLOTS, FlagsPage
from naiad.worker.execution import LATE
from naiad.worker.response_sender import ResponseSender, Stream


class LateResponses:
    """The open requests of batches that were answered without their responses. Used by the thread that executes."""

    def __init__(self, channel: Channel, board: FlagsPage) -> None:
        self.response_sender = ResponseSender(channel, board)
        self._open: dict[int, weakref.ref[Stream]] = {}
        self._next_slot = FIRST_LATE_SLOT

    @property
    def has_open(self) -> bool:
        """Whether a response is still to come."""
        while self._open:
            slot = next(iter(self._open))
            if not self._is_free(slot):
                return True
            del self._open[slot]
        return False

    def reserve(self, requests: Sequence[InferenceRequest], responses: Sequence[Any]) -> dict[int, int]:
        """Return slots for the responses of a batch that are still to come, by their indexes.

        Empty when too many requests are open.
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
            # Whether it was cancelled is found there from now on: places of the batch are soon those of the next.
            requests[index]._position = responses[index].position = FIRST_LATE_PLACE + slot
        return slots

    def divert(
        self, answers: Sequence[SingleResponse], slots: Sequence[int], outputs: Sequence[frozenset[str]]
    ) -> list[weakref.ref[Stream]]:
        """Have these responses sent when they come; the server knows of their slots. Return their streams."""
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
    """Return the responses with `LATE` for those that have slots and have not come, and the indexes of these."""
    late = [index for index in slots if not responses[index].has_arrived]
    left = list(responses)
    for index in late:
        left[index] = LATE
    return left, late
