"""SIGINT and SIGTERM: the first asks for a graceful exit, the second ends the process at once."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignal:
    """Whether the server was asked to exit."""

    def __init__(self, exit_now: Callable[[int], object] = os._exit) -> None:
        self._event = asyncio.Event()
        self._exit_now = exit_now

    def install(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take the signals over for as long as `loop` runs; before, `cli.serve` has them end the process."""
        for number in SIGNALS:
            loop.add_signal_handler(number, self.receive, number)

    def receive(self, number: int) -> None:
        """Handle one signal; called on the event loop."""
        # Triton prints this line as it is, outside the log.
        print(f"Signal ({int(number)}) received.", file=sys.stderr, flush=True)
        if self._event.is_set():
            self._exit_now(1)
        self._event.set()

    @property
    def is_set(self) -> bool:
        """Whether a signal has come."""
        return self._event.is_set()

    async def wait(self) -> None:
        """Wait for the first signal."""
        await self._event.wait()
