"""Frames: what goes through the pipes between the server and a worker.

A frame is a prefix, a table of 64-bit words, a text, a JSON object (rare) and a payload: the raw tensor data, each
tensor aligned to `ALIGNMENT`, either behind the JSON or in a block of shared memory. The two sides take turns; what
repeats (the header of a request or a response) travels once and is a number in the table from then on.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any

PREFIX = struct.Struct("<6I2Q")
"""Frame bytes, kind, words, text bytes, JSON bytes, block (0: payload inline), payload bytes, allowance."""
MAX_FRAME_BYTES = 1 << 28
"""Longest frame that is believed: large payloads lie in blocks, so only a broken peer sends more."""
ALIGNMENT = 16
PADDING = [bytes(count) for count in range(ALIGNMENT)]

# Server to worker:
INITIALIZE = 1
EXECUTE = 2
FINALIZE = 3
TIDY = 4
"""Carries notices about blocks only; it is not answered."""
# Worker to server:
DONE = 17
EXECUTED = 18
FAILED = 19


class ChannelError(Exception):
    """The peer sent something that is no frame."""


class ChannelClosedError(ChannelError):
    """The peer has closed its end."""


class Frame:
    """A received frame."""

    __slots__ = ("allowance_bytes", "block", "extra", "kind", "payload", "payload_bytes", "text", "words")

    def __init__(self, kind: int, words: list[int], text: str, extra: dict[str, Any]) -> None:
        self.kind = kind
        self.words = words
        self.text = text
        self.extra = extra
        self.block = 0
        self.payload_bytes = 0
        self.allowance_bytes = 0
        """Bytes of blocks that the receiver may have."""
        self.payload: Any = b""
        """What `Channel.receive` makes of the payload: a buffer of unsigned bytes."""


def encode_head(
    kind: int,
    words: Sequence[int],
    text: str,
    extra: dict[str, Any] | None,
    *,
    inline_bytes: int,
    block: int,
    payload_bytes: int,
    allowance_bytes: int,
) -> bytes:
    """Return a frame without its inline payload, which has `inline_bytes`."""
    # hot: bench/micro_worker.py
    text_part = text.encode("utf-8", "surrogatepass")
    extra_part = json.dumps(extra).encode("ascii") if extra else b""
    count = len(words)
    prefix = PREFIX.pack(
        PREFIX.size + 8 * count + len(text_part) + len(extra_part) + inline_bytes,
        kind,
        count,
        len(text_part),
        len(extra_part),
        block,
        payload_bytes,
        allowance_bytes,
    )
    return b"".join((prefix, struct.pack("<%dQ" % count, *words), text_part, extra_part))


def frame_bytes(buffer: bytearray) -> int:
    """Return the length of the frame whose prefix lies in `buffer`. Raises ChannelError when it is absurd."""
    (size,) = struct.unpack_from("<I", buffer)
    if not PREFIX.size <= size <= MAX_FRAME_BYTES:
        raise ChannelError(f"a frame of {size} bytes")
    return int(size)


def decode_head(view: memoryview) -> tuple[Frame, int]:
    """Return the frame that fills `view`, and where its inline payload begins. Raises ChannelError."""
    # hot: bench/micro_worker.py
    _, kind, count, text_bytes, extra_bytes, block, payload_bytes, allowance_bytes = PREFIX.unpack_from(view)
    text_at = PREFIX.size + 8 * count
    extra_at = text_at + text_bytes
    payload_at = extra_at + extra_bytes
    if payload_at + (0 if block else payload_bytes) != len(view):
        raise ChannelError(f"the parts of a frame do not add up to its {len(view)} bytes")
    try:
        words = list(struct.unpack_from("<%dQ" % count, view, PREFIX.size))
        text = str(view[text_at:extra_at], "utf-8", "surrogatepass")
        extra = json.loads(bytes(view[extra_at:payload_at])) if extra_bytes else {}
    except ValueError as error:
        raise ChannelError(f"unreadable frame: {error}") from None
    if not isinstance(extra, dict):
        raise ChannelError("unreadable frame: its notes are no object")
    frame = Frame(kind, words, text, extra)
    frame.block = block
    frame.payload_bytes = payload_bytes
    frame.allowance_bytes = allowance_bytes
    return frame, payload_at
