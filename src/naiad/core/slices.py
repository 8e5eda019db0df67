"""Work in slices: a generator that yields about every millisecond and returns its result.

The event loop advances such a generator between other events, so that one large request does not delay other
requests. Code that can block, a thread or a test, calls `finish`.
"""

from collections.abc import Generator
from typing import TypeAlias, TypeVar

_T = TypeVar("_T")

Slices: TypeAlias = Generator[None, None, _T]
"""Yields after each slice, returns the result."""

SLICE_BYTES = 128 * 1024
"""Size of a document or of tensor data in one slice of work: a millisecond or less."""


def finish(slices: Slices[_T]) -> _T:
    """Do all of the work at once and return its result."""
    while True:
        try:
            next(slices)
        except StopIteration as end:
            result: _T = end.value
            return result
