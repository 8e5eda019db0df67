"""Waiting for what happens, never for a time: the machine that runs the tests may be slow and busy."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")

DEADLINE_S = 60.0
"""What takes milliseconds is done after this, however busy the machine is."""


def wait_until(
    condition: Callable[[], Found], what: object = "it did not happen", timeout_s: float = DEADLINE_S
) -> Found:
    """Return what `condition` returns as soon as that is true; `what`, or what it returns, describes the failure."""
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, what() if callable(what) else what
        time.sleep(0.01)
    return found


async def until(condition: Callable[[], object]) -> None:
    """Let the loop go on until `condition` is true."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.001)
