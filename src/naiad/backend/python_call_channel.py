"""The server's end of a line of calls: a channel that never makes the event loop wait for a worker."""

import array
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from naiad.backend.worker.channel import Channel
from naiad.backend.worker.frame import ChannelClosedError
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
        self._unpassed: deque[int] = deque()
        """Descriptors of blocks that frames tell of: a socket holds some hundred. Bounded by shared memory."""

    @property
    def write_fds(self) -> tuple[int, int]:
        """The descriptors that `flush` writes to."""
        return self._write_fd, self._descriptors.fileno()

    @property
    def full_fds(self) -> list[int]:
        """Those of them that have to take more before all is sent."""
        waiting = (self._unsent, self._unpassed)
        return [descriptor for descriptor, left in zip(self.write_fds, waiting, strict=True) if left]

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
        data = self._encode_with_notices(kind, words, text, extra, parts, payload_bytes, block, allowance_bytes)
        if self._unsent:
            self._unsent.append(data)
            return
        rest = self._write(data)
        if rest:
            self._unsent.append(rest)
            self.on_full()

    def flush(self) -> None:
        """Send what waits, as far as pipe and socket take it. Raises ChannelClosedError."""
        self._pass_waiting()
        unsent = self._unsent
        while unsent:
            rest = self._write(unsent[0])
            if rest:
                unsent[0] = rest
                return
            unsent.popleft()

    def close(self) -> None:
        """Close pipes, socket and blocks."""
        super().close()
        while self._unpassed:
            os.close(self._unpassed.popleft())

    def _told(self) -> None:
        lender = self.lender
        self._unpassed.extend(descriptor for _, _, descriptor in lender.opened)
        lender.opened = []
        lender.told()
        if not self._pass_waiting():
            self.on_full()

    def _pass_waiting(self) -> bool:
        """Pass descriptors, as far as the socket takes them: a worker that reads nothing must not hold up the loop.

        Who reads a frame before the descriptor that it tells of has come waits for that.
        """
        while self._unpassed:
            passed = array.array("i", [self._unpassed[0]])
            try:
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)]
                self._descriptors.sendmsg([b"."], rights, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return False
            except OSError as error:
                raise ChannelClosedError(str(error)) from None
            os.close(self._unpassed.popleft())
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
