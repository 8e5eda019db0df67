"""How far the messages of a partition are done: what may be committed, in order. Pure.

Kafka keeps one offset for a group and a partition, and does not count deliveries. So the offset that is committed is
that of the first message that is not done, and its metadata has how often the messages from there on were delivered.
"""

import heapq
import re
from dataclasses import dataclass

_METADATA = re.compile(r"naiad (\d{1,9}) (\d{1,18})")


@dataclass(frozen=True, slots=True)
class PartitionCommit:
    """What is kept of a partition at the broker."""

    offset: int
    """Of the first message that is not done."""
    metadata: str


class PartitionProgress:
    """A partition that this consumer was given."""

    def __init__(self, offset: int, metadata: str = "") -> None:
        """`offset` and `metadata` as they were committed by the consumer before."""
        found = _METADATA.fullmatch(metadata)
        before, self._seen_end = (int(found[1]), int(found[2])) if found else (0, offset)
        self._deliveries = before + 1
        """Of messages before `_seen_end`; of later ones this is the first delivery."""
        self._offset = offset
        """Behind the last message that was delivered."""
        self._open: set[int] = set()
        self._order: list[int] = []
        """A heap of the open ones and of some that are done."""
        self._committed = PartitionCommit(offset, metadata)

    def deliver(self, offset: int) -> int:
        """Note that a message is delivered; return how often, this time included."""
        self._open.add(offset)
        heapq.heappush(self._order, offset)
        self._offset = max(self._offset, offset + 1)
        return self._deliveries if offset < self._seen_end else 1

    def reach(self, offset: int) -> None:
        """Note that there is no message before an offset that was not delivered."""
        self._offset = max(self._offset, offset)

    def finish(self, offset: int) -> None:
        """Note that a message is done."""
        self._open.discard(offset)

    def is_idle_but(self, waiting: set[int]) -> bool:
        """Return whether all messages that were delivered are done, or among those that wait."""
        return self._open <= waiting

    @property
    def next_commit(self) -> PartitionCommit | None:
        """What to commit now; None if it is committed."""
        while self._order and self._order[0] not in self._open:
            heapq.heappop(self._order)
        offset = self._order[0] if self._order else self._offset
        if offset >= self._offset:
            commit = PartitionCommit(offset, "")
        elif offset < self._seen_end:
            commit = PartitionCommit(offset, f"naiad {self._deliveries} {self._seen_end}")
        else:
            commit = PartitionCommit(offset, f"naiad 1 {self._offset}")
        return None if commit == self._committed else commit

    def note_committed(self, commit: PartitionCommit) -> None:
        """Note what the broker has."""
        self._committed = commit
