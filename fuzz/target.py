"""What a fuzzing target is: a check of one input, inputs to begin with, and how to change them."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from fuzz.mutation import mutate_bytes

CORPUS = Path(__file__).parent / "corpus"
"""Inputs that are kept: those that reached new code, and one for each bug that was found."""

Mutate = Callable[[bytes, Random], bytes]


@dataclass(frozen=True)
class Target:
    """One reader of untrusted bytes.

    `check` raises whatever must not happen, also AssertionError where two ways to read an input disagree. What it
    returns tells inputs with different outcomes apart: an input with a new outcome is worth changing further.
    """

    name: str
    check: Callable[[bytes], Hashable]
    seeds: Callable[[], Sequence[bytes]]
    tokens: Sequence[bytes] = ()
    """Words of the format, to be put anywhere."""
    restructure: Mutate | None = None
    """Changes an input without breaking the format around the change."""
    max_bytes: int = 4096

    def mutate(self, data: bytes, random: Random) -> bytes:
        """Return a changed input."""
        for _ in range(random.choice((1, 1, 2, 4))):
            if self.restructure is not None and random.random() < 0.6:
                data = self.restructure(data, random)
            else:
                data = mutate_bytes(data, random, self.tokens)
        return data[: self.max_bytes]

    def corpus(self) -> list[bytes]:
        """Return the inputs to begin with: the seeds and what is kept."""
        kept = sorted((CORPUS / self.name).glob("*"))
        return [*self.seeds(), *(path.read_bytes() for path in kept)]
