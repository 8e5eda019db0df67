"""What rooms ask of their surroundings: ports that the composition root fills with the real thing."""

from collections.abc import Callable
from typing import Any, Protocol


class TimerHandle(Protocol):
    """A scheduled call that can be called off."""

    def cancel(self) -> None:
        """Call it off; harmless after it ran."""


class Wakeable(Protocol):
    """Something that sleeps until there is something to do."""

    def wake_now(self) -> None:
        """End its sleep at once; callable on any thread."""


class Loop(Protocol):
    """The part of an event loop that the engine needs; every asyncio loop has it."""

    def call_soon(self, callback: Callable[..., object], *args: Any) -> object:
        """Run `callback` after what the loop already has to do; callable on the loop only."""

    def add_reader(self, fd: int, callback: Callable[..., object], *args: Any) -> object:
        """Run `callback` whenever `fd` is readable; callable on the loop only."""

    def remove_reader(self, fd: int) -> object:
        """Stop watching `fd`; callable on the loop only."""

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any) -> object:
        """Run `callback` on the loop soon; callable from any thread."""

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> TimerHandle:
        """Run `callback` on the loop after `delay` seconds; callable on the loop only."""
