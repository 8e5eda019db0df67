"""Interfaces to the environment; the composition root provides the implementations."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from naiad.core.environment.model_call import ModelCall, ModelCommand
    from naiad.core.errors import InferError


class TimerHandle(Protocol):
    """A scheduled call that can be cancelled."""

    def cancel(self) -> None:
        """Cancel the call; has no effect after it ran."""


class Wakeable(Protocol):
    """A sleeping component that can be woken."""

    def wake_now(self) -> None:
        """End its sleep at once; callable on any thread."""


class Loop(Protocol):
    """The part of an event loop that the engine needs; every asyncio loop has it."""

    def call_soon(self, callback: Callable[..., object], *args: Any) -> object:
        """Run `callback` after the pending callbacks of the loop; callable on the loop only."""

    def add_reader(self, fd: int, callback: Callable[..., object], *args: Any) -> object:
        """Run `callback` whenever `fd` is readable; callable on the loop only."""

    def remove_reader(self, fd: int) -> object:
        """Stop watching `fd`; callable on the loop only."""

    def add_writer(self, fd: int, callback: Callable[..., object], *args: Any) -> object:
        """Run `callback` whenever `fd` is writable; callable on the loop only."""

    def remove_writer(self, fd: int) -> object:
        """Stop watching whether `fd` is writable; callable on the loop only."""

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any) -> object:
        """Run `callback` on the loop soon; callable from any thread."""

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> TimerHandle:
        """Run `callback` on the loop after `delay` seconds; callable on the loop only."""


class InferencePort(Protocol):
    """The engine, as executing models use it to reach other models."""

    loop: Loop

    def submit(self, call: "ModelCall") -> None:
        """Submit a call; its responses arrive through `call.on_response` on the loop.

        Raises InferError if it is rejected at admission. Otherwise the caller must `close` it. On the loop only.
        """

    def cancel(self, call: "ModelCall") -> None:
        """Cancel a submitted call; it still gets a response. On the loop only."""

    def close(self, call: "ModelCall") -> None:
        """Note that a call has had its final response. On the loop only."""

    def is_decoupled(self, name: str, version: str) -> bool:
        """Return whether a model is decoupled. Raises NOT_FOUND or UNAVAILABLE for one that is not ready."""

    def is_ready(self, name: str, version: str) -> bool:
        """Return whether a model is ready; an unknown one is not."""

    def command(self, command: "ModelCommand", on_done: "Callable[[InferError | None], object]") -> None:
        """Load or unload a model without blocking; `on_done` is called on the loop, with the error if it failed."""
