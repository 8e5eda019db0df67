"""Coroutines of tests on the event loop that the server uses."""

import asyncio
from collections.abc import Awaitable, Callable

import uvloop


def run(main: Callable[[], Awaitable[None]]) -> None:
    """Run a test's coroutine on uvloop, for half a minute at the most."""

    async def limited() -> None:
        async with asyncio.timeout(30):
            await main()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(limited())
