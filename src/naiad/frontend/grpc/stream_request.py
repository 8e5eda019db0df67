"""A request of a `ModelStreamInfer` call: its decoding in slices, and its turn among the responses of the stream."""

from collections.abc import Sequence

from naiad.core.request import InferRequest
from naiad.core.slices import Slices
from naiad.core.tensor import Buffer
from naiad.engine.admission import count_elements
from naiad.frontend.grpc.compression import Sender
from naiad.protocol.grpc.infer import Decoded, InferRequestDecoder

Prepared = tuple[Decoded, Sequence[int] | None]
"""A decoded request, and the number of elements of its large string inputs."""


class StreamRequest(InferRequest):
    """A request of a stream."""

    __slots__ = ()

    @property
    def unread_bytes(self) -> int:
        """Bytes of responses of its stream that wait for the client."""
        turn: StreamTurn = self.context  # type: ignore[assignment]  # set in `InferStream.take`
        return turn.sender.queued_bytes

    @property
    def keeps_order(self) -> bool:
        """Whether its response waits until the responses to earlier requests are sent."""
        turn: StreamTurn = self.context  # type: ignore[assignment]  # set in `InferStream.take`
        return turn.is_ordered


class StreamTurn:
    """Position of a request in the response order of its stream."""

    __slots__ = ("is_ordered", "message_bytes", "reserved_bytes", "response_parts", "sender")

    def __init__(self, message_bytes: int, sender: Sender, *, is_ordered: bool) -> None:
        self.sender = sender
        self.message_bytes = message_bytes
        self.reserved_bytes = 0
        """Bytes reserved in the server's budget while the request is open."""
        self.is_ordered = is_ordered
        self.response_parts: Sequence[Buffer] | None = None
        """The response, if it is ready before its turn."""


def prepare(decoder: InferRequestDecoder, message: Buffer) -> Slices[Prepared]:
    """Decode a large message and count the elements of its large inputs, in slices. Raises InferError."""
    decoded = yield from decoder.decode_in_slices(message)
    return decoded, (yield from count_elements(*decoded))
