"""An event loop and a transport that do nothing but remember, for protocols without sockets."""

from collections.abc import Callable, Iterable
from typing import Any


class Loop:
    """Runs what is to be run soon when it is told to; timers never fire."""

    def __init__(self) -> None:
        self._soon: list[Callable[..., object]] = []

    def call_soon(self, callback: Callable[..., object], *_: Any) -> None:
        self._soon.append(callback)

    def call_later(self, delay_s: float, callback: Callable[..., object], *_: Any) -> "Loop":
        return self

    def cancel(self) -> None:
        """Nothing is pending."""

    def run(self) -> None:
        soon, self._soon = self._soon, []
        for callback in soon:
            callback()


class Transport:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.is_closed = False

    def write(self, data: bytes) -> None:
        self.written += data

    def writelines(self, pieces: Iterable[bytes]) -> None:
        for piece in pieces:
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

    def get_extra_info(self, name: str) -> None:
        return None

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """It takes everything."""
