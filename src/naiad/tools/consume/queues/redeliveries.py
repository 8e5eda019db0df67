"""What a broker without it leaves to its client: delays before another delivery, and writes that were half done."""

import heapq
import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from naiad.tools.consume.queues.message_queue import QueueMessage


class Redeliveries:
    """Messages that this process keeps and delivers once more after a delay."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, QueueMessage]] = []
        self._number = itertools.count()
        """Messages that are due at the same time leave in order, without a comparison of their fields."""

    def add(self, message: QueueMessage, delay_s: float) -> None:
        """Deliver a message once more after a delay."""
        heapq.heappush(self._due, (time.monotonic() + delay_s, next(self._number), message))

    def take(self, limit: int) -> Sequence[QueueMessage]:
        """Return up to `limit` messages whose delay is over, with the new count of deliveries."""
        now_s = time.monotonic()
        found: list[QueueMessage] = []
        while self._due and len(found) < limit and self._due[0][0] <= now_s:
            message = heapq.heappop(self._due)[2]
            found.append(message if message.is_gone else replace(message, deliveries=message.deliveries + 1))
        return found

    def withdraw(self, is_lost: Callable[[QueueMessage], bool]) -> None:
        """Note that another consumer gets some of the messages: the next `take` returns them as gone."""
        self._due = [
            (0.0, number, replace(message, is_gone=True, fields={})) if is_lost(message) else (due_s, number, message)
            for due_s, number, message in self._due
        ]
        heapq.heapify(self._due)


class HalfWritten:
    """Which messages of the last write are certainly in the queue; a repeated write leaves them out."""

    def __init__(self) -> None:
        self._messages: Sequence[Mapping[bytes, bytes]] = ()
        self._done: set[int] = set()
        self._number = itertools.count()
        self.write_number = 0
        """Of this write; the same when it is repeated."""

    def begin(self, messages: Sequence[Mapping[bytes, bytes]]) -> Iterable[tuple[int, Mapping[bytes, bytes]]]:
        """Return the messages that are missing, each with its offset. A write is repeated with the same sequence."""
        if messages is not self._messages:
            self._messages, self._done = messages, set()
            self.write_number = next(self._number)
        return [(offset, each) for offset, each in enumerate(messages) if offset not in self._done]

    def note(self, offset: int) -> None:
        """Note that a message is written."""
        self._done.add(offset)

    def end(self) -> None:
        """Forget a write that is complete."""
        self._messages, self._done = (), set()
