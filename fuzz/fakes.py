"""An event loop and a transport that do nothing but remember, for protocols without sockets."""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from naiad.core.tensor import Buffer


class _NeverCalled:
    """The handle of a timer that never fires."""

    def cancel(self) -> None:
        """Nothing is pending."""


class Loop:
    """Runs what is to be run soon when it is told to; timers never fire, no file is ever ready."""

    def __init__(self) -> None:
        self._soon: list[Callable[[], object]] = []

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        self._soon.append(partial(callback, *args))

    call_soon_threadsafe = call_soon

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> _NeverCalled:
        return _NeverCalled()

    def add_reader(self, fd: int, callback: Callable[..., object], *args: Any) -> None:
        """Nothing comes."""

    def remove_reader(self, fd: int) -> None:
        """Nothing came."""

    add_writer = add_reader
    remove_writer = remove_reader

    def run(self) -> None:
        soon, self._soon = self._soon, []
        for callback in soon:
            callback()


class Transport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.is_closed = False

    def write(self, data: Buffer) -> None:
        self.written += data

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        for piece in list_of_data:
            self.written += piece

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None:
        """Everything is handed over anyway."""

    resume_reading = pause_reading

    def can_write_eof(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """It takes everything."""
