"""The server's end of a channel: it never blocks its caller on a worker that does not read.

A worker may be stopped (by a debugger, by a frozen container) or busy, and a pipe holds 64 KiB, or 4 KiB for a user
with many pipes. The event loop sends batches, and all other models depend on it.
"""

import array
import os
import socket
import threading
from collections import deque
from collections.abc import Callable

from naiad.core.tensor import Buffer
from naiad.worker.channel.channel import Channel
from naiad.worker.channel.frame import ChannelClosedError


class ServerChannel(Channel):
    """Sends as much as the pipe takes; the rest waits until `flush`, which any thread may call while another
    sends.
    """

    def __init__(self, read_fd: int, write_fd: int, descriptors: socket.socket, *, limit_bytes: int) -> None:
        super().__init__(read_fd, write_fd, descriptors, limit_bytes=limit_bytes, own=memoryview)
        os.set_blocking(write_fd, False)
        self.on_full: Callable[[], object] = lambda: None
        """Called when data begins to wait, on the sending thread."""
        self._unsent: deque[Buffer] = deque()
        """Bounded by the batch being sent and ended sequences before it; on a channel of calls by the calls of the
        worker and by the responses that it may have ahead of each."""
        self._unpassed: deque[int] = deque()
        """Descriptors of announced blocks: a socket holds some hundred. Bounded by shared memory."""
        self._rest_lock = threading.Lock()
        """Held while one of the two changes."""

    @property
    def write_fds(self) -> tuple[int, int]:
        """The descriptors that `flush` writes to."""
        return self._write_fd, self._descriptors.fileno()

    @property
    def full_fds(self) -> list[int]:
        """The descriptors that must take more before all is sent."""
        waiting = (self._unsent, self._unpassed)
        return [descriptor for descriptor, left in zip(self.write_fds, waiting, strict=True) if left]

    def flush(self) -> None:
        """Send the waiting data, as far as pipe and socket take it.

        Raises ChannelClosedError, and then drops the data.
        """
        with self._rest_lock:
            try:
                self._pass_waiting()
                self._write_waiting()
            except ChannelClosedError:
                self._forget_waiting()
                raise

    def close(self) -> None:
        """Close pipes, socket and blocks."""
        super().close()
        with self._rest_lock:
            self._forget_waiting()

    def _write_rest(self, rest: Buffer) -> None:
        with self._rest_lock:
            was_full = bool(self._unsent)
            self._unsent.append(rest)
        if not was_full:
            self.on_full()

    def _deliver_notices(self) -> None:
        buffer_owner = self.buffer_owner
        with self._rest_lock:
            self._unpassed.extend(descriptor for _, _, descriptor in buffer_owner.opened)
            buffer_owner.opened = []
            buffer_owner.note_reported()
            self._pass_waiting()
            is_full = bool(self._unpassed)
        if is_full:
            self.on_full()

    def _pass_waiting(self) -> None:
        """Pass descriptors, as far as the socket takes them.

        The reader of a frame waits for the descriptor that it announces.
        """
        while self._unpassed:
            passed = array.array("i", [self._unpassed[0]])
            try:
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)]
                self._descriptors.sendmsg([b"."], rights, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError as error:
                raise ChannelClosedError(str(error)) from None
            os.close(self._unpassed.popleft())

    def _write_waiting(self) -> None:
        # A partial write continues first, and is removed only when complete: senders check the queue without the
        # lock.
        unsent = self._unsent
        while unsent:
            data = unsent[0]
            try:
                written = os.write(self._write_fd, data)
            except BlockingIOError:
                return
            except OSError as error:
                raise ChannelClosedError(str(error)) from None
            if written < len(data):
                unsent[0] = memoryview(data)[written:]
                return
            unsent.popleft()

    def _forget_waiting(self) -> None:
        self._unsent.clear()
        while self._unpassed:
            os.close(self._unpassed.popleft())
