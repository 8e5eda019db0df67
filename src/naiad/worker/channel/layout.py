"""Positions of headers and tensors in frames, for the encoders and decoders of both sides.

    table     number of the header of each request or response, then the sizes of its tensors if one has BYTES
    JSON      "headers": [number, description] of new headers; "reset": all earlier ones are forgotten first
    payload   the tensors of each header in its order, each padded to `ALIGNMENT`

The four pairs: batches (server to worker), responses (worker to server), calls of other models (worker to server) and
responses to calls (server to worker). They differ in the contents of a description.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Generic, Iterable, Iterator, List, Optional, Sequence, Tuple, TypeVar

from naiad.worker.channel.frame import ALIGNMENT, PADDING

MOST_HEADERS = 1024
"""Limit of the known headers; then both sides start again."""
Key = TypeVar("Key")
Value = TypeVar("Value")
Spans = List[Tuple[int, int]]


class TensorLayout:
    """Positions of the tensors of one header, relative to the first."""

    __slots__ = ("has_sizes", "is_dense", "number", "payload_bytes", "spans")

    def __init__(self, sizes: Sequence[Optional[int]], number: int = 0) -> None:
        """`sizes` are in bytes, None for BYTES, whose sizes vary."""
        self.number = number
        self.has_sizes = None in sizes
        """Whether the table has the size of every tensor."""
        fixed = [size or 0 for size in sizes]
        self.spans, self.payload_bytes = spans_of(fixed)
        """Begin and end of each tensor and the bytes of all, padding included, unless the table has the sizes."""
        self.is_dense = not self.has_sizes and sum(fixed) == self.payload_bytes
        """Whether the tensors follow each other without padding."""

    def read(self, words: Iterator[int]) -> tuple[Spans, int]:
        """Return begin and end of each tensor and the bytes of all, with sizes from the table if it has them.

        Raises StopIteration when the table ends before.
        """
        return spans_of([next(words) for _ in self.spans]) if self.has_sizes else (self.spans, self.payload_bytes)

    def pack(self, tensors: Sequence[Any], sizes: Iterable[int], words: list[int], parts: list[Any]) -> int:
        """Append tensors and padding to a payload, and sizes to the table if it has them; return the bytes added."""
        payload_bytes = 0
        for tensor, size in zip(tensors, sizes):
            if self.has_sizes:
                words.append(size)
            parts.append(tensor)
            padding = -size % ALIGNMENT
            if padding:
                parts.append(PADDING[padding])
            payload_bytes += size + padding
        return payload_bytes


def spans_of(sizes: Iterable[int]) -> tuple[Spans, int]:
    """Return begin and end of tensors of these sizes, and the bytes that they take."""
    spans: Spans = []
    position = 0
    for size in sizes:
        spans.append((position, position + size))
        position += size + -size % ALIGNMENT
    return spans, position


class SentHeaders(Generic[Key]):
    """The sender's half: the headers that the receiver knows."""

    def __init__(self) -> None:
        self.known: Dict[Key, TensorLayout] = {}
        self._restarts = False

    def restart(self) -> None:
        """Start again: an encoded frame will not be sent, and with it the headers in it."""
        self.known.clear()
        self._restarts = True

    def begin(self) -> bool:
        """Begin a frame; return whether the receiver must forget all headers."""
        if self._restarts or len(self.known) > MOST_HEADERS:
            self.known.clear()
            self._restarts = False
            return True
        return False

    def define(self, key: Key, sizes: Sequence[Optional[int]]) -> TensorLayout:
        """Return the layout of a new header, with its number; 0 stands for none. See `TensorLayout` for `sizes`."""
        layout = self.known[key] = TensorLayout(sizes, len(self.known) + 1)
        return layout


class ReceivedHeaders(Generic[Value]):
    """The receiver's half: headers by their numbers."""

    def __init__(self, make: Callable[[Any], Value]) -> None:
        """`make` creates a header from its description."""
        self.by_number: Dict[int, Value] = {}
        self._make = make

    def learn(self, extra: Any) -> None:
        """Add the headers in the JSON of a frame. Raises ValueError, TypeError and LookupError if malformed."""
        if extra.get("reset"):
            self.by_number.clear()
        headers = extra.get("headers", ())
        # A frame may define any number; the sender resets when it defines the next ones.
        if headers and len(self.by_number) > MOST_HEADERS:
            raise ValueError(f"{len(self.by_number)} headers without a reset")
        for number, description in headers:
            self.by_number[number] = self._make(description)
