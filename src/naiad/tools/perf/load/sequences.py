"""Sequences of a stateful model: their ids, lengths and data, and which flags a request carries."""

import random
from collections.abc import Sequence

from naiad.core.errors import invalid_argument
from naiad.tools.perf.perf_plan import Sequences


class SentSequence:
    """A sequence in progress: which request of it is next."""

    __slots__ = ("has_failed", "length", "outstanding", "position", "sequence_id", "templates")

    def __init__(self, sequence_id: int, length: int, templates: Sequence[int]) -> None:
        self.sequence_id = sequence_id
        self.length = length
        self.templates = templates
        self.position = 0
        """Requests sent."""
        self.outstanding = 0
        self.has_failed = False
        """A request of it failed: the server may have lost its state."""

    @property
    def is_sent(self) -> bool:
        """Whether its last request has been sent."""
        return self.position >= self.length

    def step(self) -> tuple[int, bool, bool]:
        """Return template, START and END of the next request, which is then outstanding."""
        position = self.position
        self.position = position + 1
        self.outstanding += 1
        return self.templates[position % len(self.templates)], position == 0, position + 1 == self.length

    def abandon(self) -> None:
        """Send no more of it."""
        self.length = self.position

    def cut(self) -> None:
        """End the sequence early: its next request is the last; without any it is over."""
        if not self.is_sent:
            self.length = self.position + 1 if self.position else 0


class SequenceSource:
    """Makes the sequences of a model in one of several generator processes.

    Each process has its own part of the ids, and begins at a random one unless a range was asked for: simultaneous
    runs against the same server hardly collide. Data streams are used in turn.
    """

    def __init__(
        self,
        settings: Sequences,
        streams: Sequence[Sequence[int]],
        *,
        uses_stream_length: bool = False,
        part: int = 0,
        parts: int = 1,
        chance: random.Random | None = None,
    ) -> None:
        """`streams` are the template indices of each data stream; `uses_stream_length` unless a length was asked for.

        Raises InferError(INVALID_ARG) for settings that make no sense.
        """
        _check(settings)
        self._settings = settings
        self._streams = streams
        self._has_own_length = uses_stream_length and not settings.has_length
        self._chance = chance or random.Random()
        first = settings.first_id or 1
        span = settings.last_id - first + 1
        self._first = first + span * part // parts
        self._end = first + span * (part + 1) // parts
        if self._first == self._end:
            raise invalid_argument(f"{span} sequence ids are too few for {parts} processes; widen their range")
        self._live: set[int] = set()
        self._next = self._first if settings.first_id else self._chance.randrange(self._first, self._end)
        self._stream = part
        self._stride = parts

    @property
    def capacity(self) -> int:
        """The number of sequences that can be live at once: one per id."""
        return self._end - self._first

    @property
    def has_free_id(self) -> bool:
        """Whether a sequence can begin."""
        return len(self._live) < self.capacity

    def begin(self) -> SentSequence:
        """Return a new sequence with an id that no live one has.

        Raises InferError(INVALID_ARG) when all ids are live.
        """
        if not self.has_free_id:
            raise invalid_argument(
                f"all {self.capacity} sequence ids from {self._first} to {self._end - 1} are in use; "
                "widen the range or lower the load"
            )
        while self._next in self._live:
            self._advance()
        sequence_id = self._next
        self._advance()
        self._live.add(sequence_id)
        stream = self._streams[self._stream % len(self._streams)]
        self._stream += self._stride
        return SentSequence(sequence_id, len(stream) if self._has_own_length else self._length(), stream)

    def release(self, sequence: SentSequence) -> None:
        """Make the id of a sequence that is over free again."""
        self._live.discard(sequence.sequence_id)

    def _advance(self) -> None:
        self._next = self._next + 1 if self._next + 1 < self._end else self._first

    def _length(self) -> int:
        """Return a length, uniform within the variation; perf_analyzer's."""
        base, percent = self._settings.length, self._settings.length_variation_percent
        spread = base * percent / 100
        return max(1, round(self._chance.uniform(base - spread, base + spread)))


def _check(settings: Sequences) -> None:
    if settings.length < 1:
        raise invalid_argument(f"the sequence length is {settings.length}; expected at least 1")
    if not 0 <= settings.length_variation_percent <= 100:
        raise invalid_argument(
            f"the variation of the sequence length is {settings.length_variation_percent:g} %; expected 0 to 100"
        )
    if settings.count < 1:
        raise invalid_argument(f"the number of sequences is {settings.count}; expected at least 1")
    if not 0 <= settings.first_id <= settings.last_id < 1 << 64 or not settings.last_id:
        raise invalid_argument(
            f"the sequence ids are {settings.first_id} to {settings.last_id}; expected an ascending range from 1 on"
        )
