"""Work that is done in slices: a generator that gives way about every millisecond and returns its result.

The event loop drives such a generator between other things, so that one large request does not hold up the rest.
Code that has time, a thread or a test, calls `finish`.
"""

from collections.abc import Generator
from typing import TypeAlias, TypeVar

_T = TypeVar("_T")

Slices: TypeAlias = Generator[None, None, _T]
"""Gives way at each `yield`, returns the result."""

SLICE_BYTES = 128 * 1024
"""How much of a document or of tensor data is one step of work: a millisecond or less."""


def finish(slices: Slices[_T]) -> _T:
    """Do all of the work at once and return its result."""
    while True:
        try:
            next(slices)
        except StopIteration as end:
            result: _T = end.value
            return result
