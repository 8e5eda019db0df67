"""The servers of a client: which one gets the next call, and which are away. Pure: time is an argument."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from naiad.client.connecting import ServerAddress
from naiad.core.errors import excerpt, unavailable
from naiad.core.limits.bounded_cache import BoundedCache
from naiad.core.request import RequestHeader

_MAX_SEQUENCES, _MAX_SEQUENCES_BYTES, _MAX_SEQUENCE_BYTES = 1 << 16, 16 << 20, 1 << 16
"""The longest silent ones are forgotten; their next requests are errors."""
_ENTRY_BYTES = 128

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """One server of a client."""

    url: str
    problem: str
    """Why there was no connection at the last try; empty while there is one, or none was needed."""
    calls: int
    """Calls that were sent there, retries included."""
    moved: int
    """Calls that this server had not begun, and that another one got."""


class Replica(Generic[T]):
    """One server; `calls` sends to it."""

    __slots__ = (
        "address",
        "aside_s",
        "call_count",
        "calls",
        "is_doubted",
        "is_removed",
        "looked_s",
        "moved_count",
        "open_count",
        "problem",
        "since_s",
    )

    def __init__(self, address: ServerAddress, calls: T) -> None:
        self.address = address
        self.calls = calls
        self.problem = ""
        self.since_s = 0.0
        """When the problem was seen last."""
        self.aside_s = 0.0
        """Until then other servers are preferred, because it has refused a call."""
        self.is_doubted = False
        """A call has ended without an answer since the client has looked whether the server answers."""
        self.looked_s = 0.0
        """When such a look began last."""
        self.is_removed = False
        """Its name does not have it any more."""
        self.open_count = self.call_count = self.moved_count = 0

    @property
    def url(self) -> str:
        """Its address."""
        return self.address.url

    @property
    def state(self) -> ReplicaState:
        """What users may read."""
        return ReplicaState(self.url, self.problem, self.call_count, self.moved_count)


class ReplicaSet(Generic[T]):
    """Round robin over the servers that are not away; the requests of a sequence go to the one that has it."""

    def __init__(self, replicas: Sequence[Replica[T]]) -> None:
        self.all = list(replicas)
        self._next = 0
        self._sequences: BoundedCache[int | str, Replica[T]] = BoundedCache(
            max_entries=_MAX_SEQUENCES, max_bytes=_MAX_SEQUENCES_BYTES, max_entry_bytes=_MAX_SEQUENCE_BYTES
        )

    def choose(self, now_s: float, excluded: Collection[Replica[T]] = ()) -> Replica[T] | None:
        """Return the server for a call; None if all are excluded.

        One that has just refused a call is left out while another one has not: it starts, ends or has full queues.
        While all others are away, the one that has been away for the longest time: it may be back.
        """
        left = [each for each in self.all if each not in excluded]
        ready = [each for each in left if not each.problem]
        if not ready:
            return min(left, key=lambda each: each.since_s, default=None)
        ready = [each for each in ready if now_s >= each.aside_s] or ready
        self._next += 1
        return ready[self._next % len(ready)]

    def keep(self, header: RequestHeader, replica: Replica[T]) -> None:
        """Note that a server has begun a sequence."""
        sequence = header.sequence_id
        if header.sequence_end:
            self._sequences.forget(sequence)
        else:
            size = len(sequence) if isinstance(sequence, str) else 0
            self._sequences.remember(sequence, replica, _ENTRY_BYTES + size)

    def holding(self, header: RequestHeader) -> Replica[T]:
        """Return the server that has begun a sequence. Raises InferError(UNAVAILABLE) if there is none."""
        found = self._sequences.get(header.sequence_id)
        if found is None or found.is_removed:
            name = excerpt(str(header.sequence_id))
            why = f"{found.url}, which has it, is none of the servers any more" if found else "no server has begun it"
            raise unavailable(f"sequence {name}: {why}; its first request needs sequence_start")
        return found
