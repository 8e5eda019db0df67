"""Frames: the messages in the pipes between the server and a worker.

A frame is a prefix, a table of 64-bit words, a text, a JSON object (rare) and a payload: the raw tensor data, each
tensor aligned to `ALIGNMENT`, either after the JSON or in a block of shared memory. The two sides take turns, but
workers of decoupled models send responses at any time. Repeated parts (the header of a request or a response) are
sent once, and are a number in the table from then on.
"""

from __future__ import annotations

import json
import struct
from typing import Any, Callable, Sequence

PREFIX = struct.Struct("<6I2Q")
"""Frame bytes, kind, words, text bytes, JSON bytes, block (0: payload inline), payload bytes, allowance."""
MAX_FRAME_BYTES = 1 << 28
"""Limit of a frame: large payloads are in blocks, so only a broken peer sends more."""
ALIGNMENT = 16
PADDING = [bytes(count) for count in range(ALIGNMENT)]

# Server to worker:
INITIALIZE = 1
EXECUTE = 2
FINALIZE = 3
TIDY = 4
"""Carries only notices about blocks; it has no response."""
SEQUENCES_ENDED = 5
"""Ids and reasons of ended sequences; it has no response."""
EXECUTE_COMPLETELY = 6
"""A batch of an ordinary model that waits for all its responses, also late ones."""
# Worker to server:
DONE = 17
EXECUTED = 18
FAILED = 19
EMITTED = 20
"""Responses of a decoupled model, of any of its requests, or late ones of an ordinary model."""
WAITING = 21
"""A sender waits for a block or for a slow client: the server checks again."""
# On the channel of calls, worker to server:
CALL = 33
"""A request to another model."""
CALL_CANCEL = 34
CALL_TAKEN = 35
"""The model has taken responses of a call."""
COMMAND = 36
"""Load or unload a model, or query its readiness."""
METRIC = 37
"""Create or join a family of metrics, or a metric."""
METRIC_RELEASED = 38
"""The end of a family of metrics; it has no response."""
# On the channel of calls, server to worker:
ANSWER = 49


class ChannelError(Exception):
    """The peer sent a malformed frame."""


class ChannelClosedError(ChannelError):
    """The peer has closed its end."""


class Frame:
    """A received frame."""

    __slots__ = ("allowance_bytes", "block", "extra", "kind", "payload", "payload_bytes", "text", "words")

    def __init__(
        self,
        kind: int,
        words: tuple[int, ...],
        text: str,
        extra: dict[str, Any],
        payload: Any,
        payload_bytes: int,
        block: int,
        allowance_bytes: int,
    ) -> None:
        self.kind = kind
        self.words = words
        self.text = text
        self.extra = extra
        self.payload = payload
        """A buffer of unsigned bytes."""
        self.payload_bytes = payload_bytes
        self.block = block
        self.allowance_bytes = allowance_bytes
        """Allowance: bytes of blocks that the receiver may have."""


_SIZE = struct.Struct("<I")
_FEW = 65
_HEADS = [struct.Struct("<6I2Q%dQ" % count) for count in range(_FEW)]
_WORDS = [struct.Struct("<%dQ" % count) for count in range(_FEW)]


def encode_frame(
    kind: int,
    words: Sequence[int],
    text: str,
    extra: dict[str, Any] | None,
    parts: Sequence[Any],
    payload_bytes: int,
    block: int,
    allowance_bytes: int,
) -> bytes:
    """Return a frame. `parts` are the inline payload, C-contiguous buffers; empty for a payload in a block."""
    # hot: bench/micro_worker.py
    text_part = text.encode("utf-8", "surrogatepass")
    extra_part = json.dumps(extra).encode("ascii") if extra else b""
    count = len(words)
    head = _HEADS[count] if count < _FEW else struct.Struct("<6I2Q%dQ" % count)
    size = head.size + len(text_part) + len(extra_part)
    packed = head.pack(
        size if block else size + payload_bytes,
        kind,
        count,
        len(text_part),
        len(extra_part),
        block,
        payload_bytes,
        allowance_bytes,
        *words,
    )
    return b"".join([packed, text_part, extra_part, *parts])


def frame_bytes(data: bytes | bytearray, position: int = 0) -> int:
    """Return the length of the frame that begins at `position`. Raises ChannelError for an invalid length."""
    (size,) = _SIZE.unpack_from(data, position)
    if not PREFIX.size <= size <= MAX_FRAME_BYTES:
        raise ChannelError(f"a frame of {size} bytes")
    return int(size)


def decode_frame(
    data: bytes | bytearray, own: Callable[[memoryview], Any], settle: Callable[[Frame], None] | None = None
) -> Frame:
    """Return the frame that is exactly `data`; `own` makes the inline payload the receiver's. Raises ChannelError.

    `settle` completes a frame that has notes or a payload in a block.
    """
    # hot: bench/micro_worker.py
    _, kind, count, text_bytes, extra_bytes, block, payload_bytes, allowance_bytes = PREFIX.unpack_from(data)
    text_at = PREFIX.size + 8 * count
    extra_at = text_at + text_bytes
    payload_at = extra_at + extra_bytes
    if payload_at + (0 if block else payload_bytes) != len(data):
        raise ChannelError(f"the parts of a frame do not add up to its {len(data)} bytes")
    table = _WORDS[count] if count < _FEW else struct.Struct("<%dQ" % count)
    try:
        text = data[text_at:extra_at].decode("utf-8", "surrogatepass")
        extra = json.loads(data[extra_at:payload_at]) if extra_bytes else {}
    except ValueError as error:
        raise ChannelError(f"unreadable frame: {error}") from None
    if not isinstance(extra, dict):
        raise ChannelError("unreadable frame: its notes are no object")
    words = table.unpack_from(data, PREFIX.size)
    payload = b"" if block else own(memoryview(data)[payload_at:])
    frame = Frame(kind, words, text, extra, payload, payload_bytes, block, allowance_bytes)
    if (extra or block) and settle is not None:
        settle(frame)
    return frame
