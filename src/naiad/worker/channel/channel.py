"""A channel between server and worker: two pipes for frames, a socket that passes descriptors, and two buffer pools.

Theory of operation.

- Frames. A frame (`frame.py`) is one write to a pipe; its reader knows the length from the prefix. Payloads up to
  `INLINE_BYTES` are part of the frame, larger ones are in a block of the sender's buffer pool. Pipes cost 4 us of CPU
  per message and side where a socketpair costs 6.5 us (bench/micro_worker.py); the socket only passes descriptors.
- Turns. Ordinary models alternate: the server sends a batch, the worker sends its responses. So each side writes only
  while the other reads, and a blocking write cannot deadlock. Decoupled models and calls of other models also send
  out of turn; a thread that sends then holds `lock`, and the server's end
  (`backend/workers/process/server_channel.py`) never blocks: its `flush` continues a partial write when the pipe is
  writable.
- Notices. Each frame may carry notices about blocks: opened, freed, dropped. The notices and the descriptors that
  belong to them must arrive in the same order, so an encoding failure leaves both for the next frame.
- Back pressure. A full pipe stops the writer. A pool at its limit stops `send` with TransportFullError; the sender
  waits for released blocks. The prefix of each frame has the allowance of the receiver's pool, so the server divides
  the memory of all channels of a worker. Slow clients are handled above the channel (`flags_page.py`).
- End. End of file means that the peer has exited; a forked child must close its copies (`close_in_child`), or the
  peer would not notice.
"""

from __future__ import annotations

import array
import os
import select
import socket
import threading
from typing import Any, Callable, Collection, Sequence

from naiad.worker.channel.buffer_pool import BufferOwner, BufferUser
from naiad.worker.channel.frame import (
    PREFIX,
    ChannelClosedError,
    ChannelError,
    Frame,
    decode_frame,
    encode_frame,
    frame_bytes,
)

INLINE_BYTES = 49152
"""Payloads up to this size go through the pipe: copying them twice costs less than managing a block."""
_READ_BYTES = 65536
"""Capacity of a pipe."""
_SOME_BYTES = 16384
"""Bytes per read if each frame holds many responses: their processing delays other events of the loop."""


def _await_input(descriptor: int) -> None:
    """Wait for input, or end of file."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    poll.poll()


class Channel:
    """One side of a channel. The sides take turns, and one thread at a time may use a side.

    Workers of decoupled models send while their other threads receive: a sending thread then holds `lock`.
    """

    def __init__(
        self,
        read_fd: int,
        write_fd: int,
        descriptors: socket.socket,
        *,
        limit_bytes: int,
        own: Callable[[memoryview], Any],
    ) -> None:
        """`own` makes an inline payload the receiver's: `bytearray` if it must be writable, else `memoryview`."""
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._descriptors = descriptors
        self._own = own
        self._rest: bytes | bytearray = b""
        """The part of the next frame that was read."""
        self._unsent: Collection[Any] = ()
        """Data for the pipe after a partial write, if writing does not block."""
        self.lock = threading.Lock()
        """Held while notices about blocks are sent or handled."""
        self.buffer_owner = BufferOwner(limit_bytes)
        self.buffer_user = BufferUser()

    def fileno(self) -> int:
        """Return the descriptor of incoming frames."""
        return self._read_fd

    @property
    def has_rest(self) -> bool:
        """Whether bytes have been read that are not part of a frame yet."""
        return bool(self._rest)

    @property
    def has_news(self) -> bool:
        """Whether there are notices about blocks to send."""
        return bool(self.buffer_owner.opened or self.buffer_owner.dropped or self.buffer_user.has_released)

    @property
    def block_bytes(self) -> int:
        """Bytes of the blocks of both sides."""
        return self.buffer_owner.total_bytes + self.buffer_user.total_bytes

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
        """Send a frame: the payload is `parts`, or in a block of the buffer pool.

        Raises ChannelClosedError when the peer has exited.
        """
        # hot: bench/micro_worker.py
        buffer_owner = self.buffer_owner
        notes: Any = extra
        if self.buffer_user.held or buffer_owner.opened or buffer_owner.dropped:
            notes = self._with_notices(extra)
        try:
            data = encode_frame(kind, words, text, notes, parts, payload_bytes, block, allowance_bytes)
        except BaseException:
            if notes is not extra:
                # If encoding fails, the next frame carries the notices. The user would take a descriptor without its
                # notice for the next block, and its memory for the next payload.
                self.buffer_user.held.update(notes["blocks"]["freed"])
            raise
        if notes is not extra:
            self._deliver_notices()
        try:
            written = 0 if self._unsent else os.write(self._write_fd, data)
        except BlockingIOError:
            written = 0
        except OSError as error:
            raise ChannelClosedError(str(error)) from None
        if written < len(data):
            self._write_rest(memoryview(data)[written:])

    def receive(self) -> Frame:
        """Wait for a frame. Raises ChannelClosedError when the peer has exited, ChannelError if malformed."""
        # hot: bench/micro_worker.py
        data: bytes | bytearray = self._rest or self._read()
        if len(data) < PREFIX.size or frame_bytes(data) != len(data):
            data = self._complete(data)
        elif self._rest:
            self._rest = b""
        return decode_frame(data, self._own, self.settle)

    def receive_whole(self) -> Frame | None:
        """Return a frame, None for an incomplete one; blocks without any input.

        Raises ChannelClosedError when the peer has exited, ChannelError if malformed.
        """
        # hot: bench/micro_worker.py
        data: bytes | bytearray = self._read()
        if self._rest:
            data = self._gather(data)
        if len(data) < PREFIX.size or frame_bytes(data) != len(data):
            if len(data) < PREFIX.size or frame_bytes(data) > len(data):
                self._rest = data
                return None
            data = self._complete(data)
        elif self._rest:
            self._rest = b""
        return decode_frame(data, self._own, self.settle)

    def receive_some(self) -> list[Frame]:
        """Return the complete frames after one read; blocks only without any input.

        Raises ChannelClosedError when the peer has exited, ChannelError if malformed.
        """
        # hot: bench/micro_emission.py
        data: bytes | bytearray = self._read(_SOME_BYTES)
        if self._rest:
            data = self._gather(data)
        return self._cut(data)

    def receive_rest(self) -> list[Frame]:
        """Return the frames that arrived together with the last one. Raises ChannelError if malformed."""
        return self._cut(self._rest)

    def _cut(self, data: bytes | bytearray) -> list[Frame]:
        # hot: bench/micro_emission.py
        frames: list[Frame] = []
        position, end = 0, len(data)
        try:
            while end - position >= PREFIX.size:
                size = frame_bytes(data, position)
                if size > end - position:
                    break
                whole = data if size == end else data[position : position + size]
                position += size
                frames.append(decode_frame(whole, self._own, self.settle))
        finally:
            self._rest = (data[position:] if position else data) if position < end else b""
        return frames

    def settle(self, frame: Frame) -> None:
        """Handle the notices of a frame, and find its payload. Raises ChannelError."""
        with self.lock:
            if frame.extra:
                self._take_notices(frame.extra.pop("blocks", None))
            if frame.block:
                try:
                    frame.payload = self.buffer_user.view(frame.block, frame.payload_bytes)
                except (LookupError, ValueError) as error:
                    raise ChannelError(f"a payload in block {frame.block}: {error!r}") from None

    def close_in_child(self) -> None:
        """Close pipes and socket in a forked process: they belong to the parent.

        The peer detects the parent's end only when no other process has its ends of the pipes.
        """
        descriptors = self._read_fd, self._write_fd
        self._read_fd = self._write_fd = -1
        for descriptor in descriptors:
            if descriptor >= 0:
                os.close(descriptor)
        self._descriptors.close()

    def close(self) -> None:
        """Close pipes, socket and blocks."""
        read_fd, write_fd = self._read_fd, self._write_fd
        # Their numbers soon belong to other files: later calls must see that the channel is closed.
        self._read_fd = self._write_fd = -1
        os.close(read_fd)
        os.close(write_fd)
        self._descriptors.close()
        self.buffer_owner.close()
        self.buffer_user.close()

    def _gather(self, data: bytes | bytearray) -> bytearray:
        """Return the read part of a frame with `data` appended, without copying all parts again each time."""
        rest = self._rest
        gathered = rest if isinstance(rest, bytearray) else bytearray(rest)
        gathered += data
        return gathered

    def _complete(self, data: bytes | bytearray) -> bytes | bytearray:
        """Return the frame that begins with `data`, which is too short or too long; keep the bytes after it."""
        while len(data) < PREFIX.size:
            data += self._read()
        size = frame_bytes(data)
        pieces, left = [data], size - len(data)
        while left > 0:
            piece = self._read()
            pieces.append(piece)
            left -= len(piece)
        data = b"".join(pieces)
        self._rest = data[size:]
        return data[:size]

    def _read(self, size_bytes: int = _READ_BYTES) -> bytes:
        while True:
            try:
                data = os.read(self._read_fd, size_bytes)
            except BlockingIOError:
                # The event loop that watched the descriptor may have made it non-blocking.
                _await_input(self._read_fd)
                continue
            except OSError as error:
                raise ChannelClosedError(str(error)) from None
            if not data:
                raise ChannelClosedError("end of file")
            return data

    def _write_rest(self, rest: memoryview) -> None:
        """Send the rest of a partial write. Raises ChannelClosedError."""
        try:
            while rest:
                rest = rest[os.write(self._write_fd, rest) :]
        except OSError as error:
            raise ChannelClosedError(str(error)) from None

    # --- blocks -----------------------------------------------------------------------------------------------------

    def _with_notices(self, extra: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return the notes with the notices about blocks; `extra` itself without any."""
        buffer_owner = self.buffer_owner
        freed = self.buffer_user.released()
        if not (freed or buffer_owner.opened or buffer_owner.dropped):
            return extra
        opened = [(number, size) for number, size, _ in buffer_owner.opened]
        return dict(extra or {}, blocks={"freed": freed, "dropped": buffer_owner.dropped, "opened": opened})

    def _deliver_notices(self) -> None:
        """Pass the descriptors that the frame about to be sent announces. Raises ChannelClosedError."""
        buffer_owner = self.buffer_owner
        while buffer_owner.opened:
            self._pass(buffer_owner.opened[0][2])
            # One by one: the number of a closed descriptor soon belongs to another file.
            os.close(buffer_owner.opened.pop(0)[2])
        buffer_owner.note_reported()

    def _pass(self, descriptor: int) -> None:
        passed = array.array("i", [descriptor])
        try:
            self._descriptors.sendmsg([b"."], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)])
        except OSError as error:
            raise ChannelClosedError(str(error)) from None

    def _take_notices(self, notices: Any) -> None:
        if notices is None:
            return
        try:
            for number, size_bytes in notices["opened"]:
                self.buffer_user.open(number, size_bytes, self._receive_descriptor())
            self.buffer_user.drop(notices["dropped"])
            self.buffer_owner.take_back(notices["freed"])
        except (LookupError, TypeError, ValueError, OSError) as error:
            raise ChannelError(f"unreadable notice about blocks: {error!r}") from None

    def _receive_descriptor(self) -> int:
        passed = array.array("i")
        _, ancillary, _, _ = self._descriptors.recvmsg(1, socket.CMSG_SPACE(passed.itemsize))
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                passed.frombytes(data[: passed.itemsize])
        return passed[0]
