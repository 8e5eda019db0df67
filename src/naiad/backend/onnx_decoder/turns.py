"""What a decoder computes next: the prompts of new rows, or one token for all others. Pure.

    rows     A decodes   B decodes   C waits (900 tokens)   D waits (20)
    turns    C: 512 | A B: a token | C: 388 | A B C: a token | D: 20 | A B C D: a token | ...

A turn with prompts is followed by one in which all others get their next token, so a prompt delays them by a bounded
number of tokens. Short prompts share a turn, padded to the longest; a long one is read in parts, alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

_PADDING_SHARE = 1.25
_PADDING_TOKENS = 32
"""A turn of prompts has at most this much more positions than tokens: the rest would be computed for nothing."""


class PlannedRow(Protocol):
    """One text that is being made."""

    @property
    def length(self) -> int:
        """Tokens in its cache."""

    @property
    def prompt_left(self) -> int:
        """Tokens of its prompt that are not in the cache yet; 0 when it has begun to decode."""

    @property
    def is_waiting(self) -> bool:
        """Whether its client is too slow for another token."""


R = TypeVar("R", bound=PlannedRow)


@dataclass(frozen=True, slots=True)
class Turn(Generic[R]):
    """The rows of one execution."""

    rows: Sequence[R]
    prompt_tokens: int = 0
    """The most tokens of each prompt that are read; 0: each row gets one token."""


class TurnPlanner(Generic[R]):
    """Chooses the rows of each turn."""

    def __init__(self, prompt_tokens: int, *, can_pad: bool) -> None:
        """`prompt_tokens` is the most positions of a turn with prompts, `can_pad` whether lengths may differ."""
        self._prompt_tokens = prompt_tokens
        self._can_pad = can_pad
        self._read_prompts = False
        """Whether the last turn read prompts."""
        self._next_length = 0
        """Without padding: rows of at least this length are next."""

    def next(self, rows: Sequence[R]) -> Turn[R] | None:
        """Return the next turn for rows in the order of their arrival; None if all wait for their clients."""
        prompts = [row for row in rows if row.prompt_left and not row.is_waiting]
        decoding = [row for row in rows if not row.prompt_left and not row.is_waiting]
        self._read_prompts = bool(prompts) and not (self._read_prompts and decoding)
        if self._read_prompts:
            return self._prompt_turn(prompts)
        return Turn(self._decoding_rows(decoding)) if decoding else None

    def _prompt_turn(self, prompts: Sequence[R]) -> Turn[R]:
        first = prompts[0]
        if first.length or first.prompt_left > self._prompt_tokens:
            return Turn((first,), min(first.prompt_left, self._prompt_tokens))
        chosen = [first]
        longest = total = first.prompt_left
        for row in prompts[1:]:
            if row.length or (row.prompt_left != first.prompt_left and not self._can_pad):
                continue
            next_longest = max(longest, row.prompt_left)
            positions = next_longest * (len(chosen) + 1)
            is_dense = positions <= _PADDING_SHARE * (total + row.prompt_left) + _PADDING_TOKENS
            if positions <= self._prompt_tokens and is_dense:
                chosen.append(row)
                longest, total = next_longest, total + row.prompt_left
        return Turn(chosen, longest)

    def _decoding_rows(self, decoding: Sequence[R]) -> Sequence[R]:
        if self._can_pad:
            return decoding
        lengths = sorted({row.length for row in decoding})
        length = next((each for each in lengths if each >= self._next_length), lengths[0])
        # After its step this group is longer by one: the next turn begins behind it.
        self._next_length = length + 2 if len(lengths) > 1 else 0
        return [row for row in decoding if row.length == length]
