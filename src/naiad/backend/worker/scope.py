"""What a worker is doing just now: its calls of other models tell, so that the server knows whose calls they are."""

from __future__ import annotations

import contextvars
import threading
from typing import Any, Sequence


class Scope:
    """The batch that executes, and where."""

    __slots__ = ("is_executing", "is_initializing", "is_open", "serial", "thread")

    def __init__(self) -> None:
        self.serial = 0
        """Number of the last batch; the server counts too."""
        self.is_executing = False
        self.thread = threading.get_ident()
        """The thread that executes."""
        self.is_initializing = False
        self.is_open = False
        """Whether the model may call others: it is initialized and not being finalized."""

    @property
    def holds_execution(self) -> bool:
        """Whether the execution cannot go on before the calling thread does."""
        return self.is_executing and threading.get_ident() == self.thread


streams: contextvars.ContextVar[Sequence[Any]] = contextvars.ContextVar("streams", default=())
"""Decoupled models: weak references to the streams of the batch that a thread or a coroutine works on."""


def open_slots() -> list[int]:
    """Return the slots of the requests that the caller works on, as far as that is known."""
    found = [reference() for reference in streams.get()]
    return [stream.slot for stream in found if stream is not None and not stream.is_closed]
