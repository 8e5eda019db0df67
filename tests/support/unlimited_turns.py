"""Turns of the loop without an end: most fake loops run no callbacks, and a slow machine must not make reads wait."""

from collections.abc import Iterator

import pytest

from naiad.frontend.connections import reading_turns


@pytest.fixture(scope="module", autouse=True)
def unlimited_turns() -> Iterator[None]:
    """Have every read of the module's tests handled at once."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_LONGEST_NS", "_UNWATCHED_NS"):
            patch.setattr(reading_turns, name, reading_turns.NEVER_NS)
        yield
