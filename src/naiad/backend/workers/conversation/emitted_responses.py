"""The decoders of responses that arrive after, or without, the response of their batch."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from naiad.backend.workers.conversation.server_codec import BatchResponseDecoder, ResponseShape
from naiad.backend.workers.conversation.tensor_rules import TensorRules
from naiad.core.errors import ErrorCode, FailureReason, InferError, internal
from naiad.core.request import InferRequest
from naiad.core.response import RESCHEDULE, InferResponse
from naiad.core.tensor import Buffer
from naiad.worker.channel.frame import ChannelError, Frame
from naiad.worker.execution.codec import FINAL, HAS_RESPONSE, RESCHEDULED, SLOT_SHIFT

_UNTOLD = internal("the model sent an error")
"""Placeholder of the error of a failed response, which follows in the notes of the same frame."""


class DecoupledDecoder(BatchResponseDecoder):
    """Decodes the emitted frames of one worker."""

    may_vary: ClassVar[bool] = True

    def emitted(self, frame: Frame) -> list[tuple[int, InferResponse]]:
        """Return slots and responses in the order of the model's calls. Raises ChannelError.

        The data are views on the frame's payload.
        """
        # hot: bench/micro_emission.py
        extra = frame.extra
        if extra:
            self._learn(extra)
        view = memoryview(frame.payload)
        shapes = self._shapes
        may_vary = self.may_vary
        header = self.failed_header
        emitted: list[tuple[int, InferResponse]] = []
        position = 0
        words = iter(frame.words)
        try:
            for word in words:
                is_final = word & FINAL != 0
                if word & RESCHEDULED:
                    response = RESCHEDULE
                elif not word & HAS_RESPONSE:
                    response = InferResponse(header, final=True, empty_final=True)
                elif (number := next(words)) == 0:
                    response = InferResponse(header, final=is_final, error=_UNTOLD)
                else:
                    shape = shapes[number]
                    spans, size = shape.layout.read(words)
                    data: list[Buffer] = [view[position + begin : position + end] for begin, end in spans]
                    position += size
                    if may_vary and shape.is_sound:
                        response = InferResponse(shape.header, data, final=is_final)
                    else:
                        response = self._examined(word >> SLOT_SHIFT, shape, data)
                        response.final = is_final
                emitted.append((word >> SLOT_SHIFT, response))
        except (LookupError, StopIteration) as error:
            raise ChannelError(f"unreadable table: {error!r}") from None
        if position != len(view):
            raise ChannelError(f"responses of {position} bytes in {len(view)}")
        if extra:
            self._complete(emitted, extra)
        return emitted

    def _examined(self, slot: int, shape: ResponseShape, data: list[Buffer]) -> InferResponse:
        """Return the response with this data, or the error for it."""
        return InferResponse(self.failed_header, error=internal(shape.problem))

    def _complete(self, emitted: Sequence[tuple[int, InferResponse]], extra: dict[str, Any]) -> None:
        try:
            for index, code, message in extra.get("errors", ()):
                emitted[index][1].error = InferError(ErrorCode(code), str(message), reason=FailureReason.BACKEND)
            for index, parameters in extra.get("parameters", ()):
                emitted[index][1].parameters = parameters
        except (LookupError, TypeError, ValueError) as error:
            raise ChannelError(f"unreadable errors or parameters: {error!r}") from None


class LateDecoder(DecoupledDecoder):
    """Decodes late responses, which must match the configuration."""

    may_vary: ClassVar[bool] = False

    def __init__(self, model: str, version: str, rules: TensorRules, requests: Mapping[int, InferRequest]) -> None:
        """`requests` are the open ones by their slots."""
        super().__init__(model, version, rules)
        self._requests = requests

    def _examined(self, slot: int, shape: ResponseShape, data: list[Buffer]) -> InferResponse:
        return self._checked(shape, self._requests[slot], data)
