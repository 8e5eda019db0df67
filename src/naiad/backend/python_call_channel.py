"""The server's end of a line of calls: a channel that never makes the event loop wait for a worker."""

import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from naiad.backend.worker.channel import Channel
from naiad.backend.worker.frame import ChannelClosedError, encode_frame
from naiad.core.tensor import Buffer


class CallChannel(Channel):
    """Sends what the pipe takes; the rest waits until `flush`. Used on the event loop only."""

    def __init__(self, read_fd: int, write_fd: int, descriptors: socket.socket) -> None:
        super().__init__(read_fd, write_fd, descriptors, limit_bytes=0, own=memoryview)
        os.set_blocking(write_fd, False)
        self.on_full: Callable[[], object] = _nothing
        """Called when something has begun to wait."""
        self._unsent: deque[Buffer] = deque()
        """Bounded by the calls of the worker and by the responses that it may have ahead of each."""

    @property
    def write_fd(self) -> int:
        """The descriptor that `flush` writes to."""
        return self._write_fd

    def send(
        self,
        kind: int,
        words: Sequence[int] = (),
        text: str = "",
        extra: dict[str, Any] | None = None,
        parts: Sequence[Any] = (),
        payload_bytes: int = 0,
        block: int = 0,
        allowance_bytes: int = 0,
    ) -> None:
        """Send a frame, or have it wait behind others. Raises ChannelClosedError when the worker is gone."""
        # hot: once a response
        notices = self._notices()
        if notices:
            extra = dict(extra or {}, blocks=notices)
        data = encode_frame(kind, words, text, extra, parts, payload_bytes, block, allowance_bytes)
        if self._unsent:
            self._unsent.append(data)
            return
        rest = self._write(data)
        if rest:
            self._unsent.append(rest)
            self.on_full()

    def flush(self) -> bool:
        """Send what waits, as far as the pipe takes it; whether all of it is sent. Raises ChannelClosedError."""
        unsent = self._unsent
        while unsent:
            rest = self._write(unsent[0])
            if rest:
                unsent[0] = rest
                return False
            unsent.popleft()
        return True

    def _write(self, data: Buffer) -> Buffer:
        """Return what the pipe did not take."""
        try:
            written = os.write(self._write_fd, data)
        except BlockingIOError:
            return data
        except OSError as error:
            raise ChannelClosedError(str(error)) from None
        return memoryview(data)[written:] if written < len(data) else b""


def _nothing() -> None:
    """Nobody has asked."""
