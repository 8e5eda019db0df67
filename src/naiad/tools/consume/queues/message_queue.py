"""What a broker has to do: the interface of queues, at-least-once.

A source delivers each message of its group to one consumer. A message stays pending until it is acknowledged. When
its consumer ends before, or is not heard of for `claim_after_s`, the message is delivered again, to any consumer of
the group, with a larger count of deliveries.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from naiad.core.errors import ErrorCode, InferError

KEY = b"kafka-key"
"""Field with the key of a message of Kafka; answers and dead letters keep it."""


class QueueAwayError(InferError):
    """The broker does not answer, or refuses work for now; the same call may succeed later."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.UNAVAILABLE, message)


class QueueLostError(InferError):
    """The queue or the group of this consumer was deleted; a call cannot succeed any more."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.NOT_FOUND, message)


@dataclass(frozen=True, slots=True)
class QueueMessage:
    """A message as it was delivered."""

    id: str
    fields: Mapping[bytes, bytes]
    deliveries: int = 1
    """How often it was delivered, this time included."""
    is_gone: bool = False
    """It was delivered before, and has been removed from the queue meanwhile: it needs no answer."""

    @property
    def size_bytes(self) -> int:
        """Size of names and values."""
        return sum(len(name) + len(value) for name, value in self.fields.items())


class MessageSource(Protocol):
    """Delivers messages. All methods raise QueueAwayError, and QueueLostError where it applies."""

    async def open(self) -> None:
        """Connect. Raises InferError for an address that cannot have a queue."""

    async def place(self) -> tuple[object, ...]:
        """Return what the queue has alone, also where several addresses lead to it."""

    async def join(self) -> None:
        """Make queue and group if they do not exist. A new group gets all messages, from the first one."""

    async def read(self, limit: int, wait_s: float, *, may_be_new: bool = True) -> Sequence[QueueMessage]:
        """Return up to `limit` messages; none if none has come within `wait_s`.

        Without `may_be_new` only messages that were delivered before.
        """

    async def acknowledge(self, messages: Sequence[QueueMessage]) -> None:
        """Note that messages are done. They may have been acknowledged before."""

    def retry(self, message: QueueMessage, delay_s: float) -> None:
        """Deliver a message to this consumer once more, by `read`, after a delay."""

    async def keep(self) -> None:
        """Report that this consumer is alive and works on the messages that it was given."""

    async def is_empty(self) -> bool:
        """Return whether no message of the group is pending, for any consumer."""

    async def close(self) -> None:
        """Disconnect. Messages that are not acknowledged stay pending."""


class MessageSink(Protocol):
    """Takes messages. All methods raise QueueAwayError."""

    async def open(self) -> None:
        """Connect. Raises InferError for an address that cannot have a queue."""

    async def place(self) -> tuple[object, ...]:
        """Return what the queue has alone, also where several addresses lead to it."""

    def excess(self, fields: Mapping[bytes, bytes]) -> str:
        """Return why a message is larger than the queue ever takes; "" if it is not."""

    async def write(self, messages: Sequence[Mapping[bytes, bytes]]) -> None:
        """Write messages. After QueueAwayError some or all may be written all the same.

        The same write is then repeated with the same sequence.
        """

    async def close(self) -> None:
        """Disconnect."""
