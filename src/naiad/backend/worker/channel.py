"""A channel: two pipes for frames, a socket that passes new blocks, and the blocks themselves.

Pipes cost 4 us of CPU per message and side where a socketpair costs 6.5 us (bench/micro_worker.py).
"""

from __future__ import annotations

import array
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any

from naiad.backend.worker.block import Borrower, Lender
from naiad.backend.worker.frame import (
    PREFIX,
    ChannelClosedError,
    ChannelError,
    Frame,
    decode_head,
    encode_head,
    frame_bytes,
)

INLINE_BYTES = 32768
"""Payloads up to this size go through the pipe: copying them twice costs less than minding a block."""
_BUFFER_BYTES = 2 * INLINE_BYTES


class Channel:
    """One side of a channel. The sides take turns, and one thread at a time may use a side."""

    def __init__(
        self,
        read_fd: int,
        write_fd: int,
        descriptors: socket.socket,
        *,
        limit_bytes: int,
        copy: Callable[[memoryview], Any],
    ) -> None:
        """`copy` makes an inline payload the receiver's own: `bytes`, or `bytearray` where it must be writable."""
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._descriptors = descriptors
        self._copy = copy
        self._buffer = bytearray(_BUFFER_BYTES)
        self._filled = 0
        self.lender = Lender(limit_bytes)
        self.borrower = Borrower()

    def fileno(self) -> int:
        """Return the descriptor that frames arrive on."""
        return self._read_fd

    def stage(self, parts: Sequence[Any], payload_bytes: int) -> tuple[bytes, int]:
        """Copy a payload out of `parts`: return it for `send`, as bytes or as the number of a block.

        Raises TransportFullError.
        """
        if payload_bytes <= INLINE_BYTES:
            return b"".join(parts), 0
        return b"", self.lender.lend(parts, payload_bytes)

    def send(
        self,
        kind: int,
        words: Sequence[int] = (),
        text: str = "",
        extra: dict[str, Any] | None = None,
        *,
        payload: bytes = b"",
        block: int = 0,
        payload_bytes: int = 0,
        allowance_bytes: int = 0,
    ) -> None:
        """Send a frame. Raises ChannelClosedError when the peer is gone."""
        notices = self._notices()
        if notices:
            extra = dict(extra or {}, blocks=notices)
        head = encode_head(
            kind,
            words,
            text,
            extra,
            inline_bytes=len(payload),
            block=block,
            payload_bytes=payload_bytes,
            allowance_bytes=allowance_bytes,
        )
        try:
            written = os.writev(self._write_fd, (head, payload)) if payload else os.write(self._write_fd, head)
            if written < len(head) + len(payload):
                self._write_rest(memoryview(head + payload)[written:])
        except OSError as error:
            raise ChannelClosedError(str(error)) from None

    def receive(self) -> Frame:
        """Wait for a frame. Raises ChannelClosedError when the peer is gone, ChannelError for nonsense."""
        size = self._fill()
        with memoryview(self._buffer) as whole, whole[:size] as view:
            frame, payload_at = decode_head(view)
            if not frame.block and frame.payload_bytes:
                frame.payload = self._copy(view[payload_at:])
        self._filled -= size
        if self._filled:
            self._buffer[: self._filled] = self._buffer[size : size + self._filled]
        if frame.extra:
            self._take_notices(frame.extra.pop("blocks", None))
        if frame.block:
            try:
                frame.payload = self.borrower.view(frame.block, frame.payload_bytes)
            except (LookupError, ValueError) as error:
                raise ChannelError(f"a payload in block {frame.block}: {error!r}") from None
        return frame

    def close(self) -> None:
        """Close pipes, socket and blocks."""
        os.close(self._read_fd)
        os.close(self._write_fd)
        self._descriptors.close()
        self.lender.close()
        self.borrower.close()

    def _fill(self) -> int:
        """Read until the buffer begins with a whole frame; return the frame's length."""
        if self._filled < PREFIX.size:
            self._read(PREFIX.size)
        size = frame_bytes(self._buffer)
        if size > len(self._buffer):
            self._buffer.extend(bytes(size - len(self._buffer)))
        if self._filled < size:
            self._read(size)
        return size

    def _read(self, needed: int) -> None:
        while self._filled < needed:
            with memoryview(self._buffer) as whole, whole[self._filled :] as room:
                try:
                    count = os.readv(self._read_fd, [room])
                except OSError as error:
                    raise ChannelClosedError(str(error)) from None
            if not count:
                raise ChannelClosedError("end of file")
            self._filled += count

    def _write_rest(self, rest: memoryview) -> None:
        while rest:
            rest = rest[os.write(self._write_fd, rest) :]

    # --- blocks -----------------------------------------------------------------------------------------------------

    def _notices(self) -> dict[str, Any] | None:
        lender = self.lender
        freed = self.borrower.released()
        if not (freed or lender.opened or lender.dropped):
            return None
        notices: dict[str, Any] = {
            "freed": freed,
            "dropped": lender.dropped,
            "opened": [(number, size) for number, size, _ in lender.opened],
        }
        for _, _, descriptor in lender.opened:
            passed = array.array("i", [descriptor])
            try:
                self._descriptors.sendmsg([b"."], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)])
            except OSError as error:
                raise ChannelClosedError(str(error)) from None
            os.close(descriptor)
        lender.opened, lender.dropped = [], []
        return notices

    def _take_notices(self, notices: Any) -> None:
        if notices is None:
            return
        try:
            for number, size_bytes in notices["opened"]:
                self.borrower.open(number, size_bytes, self._receive_descriptor())
            self.borrower.drop(notices["dropped"])
            self.lender.take_back(notices["freed"])
        except (LookupError, TypeError, ValueError, OSError) as error:
            raise ChannelError(f"unreadable notice about blocks: {error!r}") from None

    def _receive_descriptor(self) -> int:
        passed = array.array("i")
        _, ancillary, _, _ = self._descriptors.recvmsg(1, socket.CMSG_SPACE(passed.itemsize))
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                passed.frombytes(data[: passed.itemsize])
        return passed[0]
