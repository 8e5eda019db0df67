"""Reading requests: from the bytes of an HTTP/1.1 connection to heads with their bodies.

A connection is between requests, within a head, or within a body (of known length or chunked). A body of known length
is received straight into its own buffer once its head is known.
"""

from collections.abc import Callable

from naiad.core.tensor import Buffer
from naiad.frontend.http1_answering import AnswerLine
from naiad.frontend.http1_body import ChunkedDecoder, allocate_body
from naiad.frontend.http1_clock import PhaseClock
from naiad.frontend.http1_endpoint import Http1Endpoint
from naiad.frontend.http1_head import HeadParser, HttpError, RequestHead

_ALIGNED_BODY_BYTES = 4096
"""Bodies with tensors above this size are aligned even when they arrive in one piece."""

OnRequest = Callable[[RequestHead, Buffer], None]


def _skip_empty_lines(view: memoryview, position: int, end: int) -> int:
    """RFC 9112 2.2: ignore empty lines before a request."""
    if view[position] not in b"\r\n":
        return position
    return end - len(bytes(view[position:end]).lstrip(b"\r\n"))


class RequestReader:
    """Takes requests out of what has come, and hands each over once it is complete."""

    __slots__ = (
        "_answers",
        "_chunks",
        "_clock",
        "_endpoint",
        "_head_parser",
        "_head_text",
        "_limits",
        "_on_request",
        "body",
        "filled",
        "head",
        "is_closed",
    )

    def __init__(
        self, endpoint: Http1Endpoint, clock: PhaseClock, answers: AnswerLine, on_request: OnRequest
    ) -> None:
        self._endpoint = endpoint
        self._limits = endpoint.limits
        self._clock = clock
        self._answers = answers
        self._on_request = on_request
        self.head: RequestHead | None = None
        """The head whose body is being received."""
        self.body: memoryview | None = None
        self.filled = 0
        """How much of `body` has come."""
        self._chunks: ChunkedDecoder | None = None
        self._head_parser: HeadParser | None = None
        self._head_text = bytearray()
        """The beginning of a head that has not arrived completely."""
        self.is_closed = False
        """The last request of the connection has arrived."""

    def close(self) -> None:
        """Ignore what comes from now on, and forget what has come of a request."""
        self.is_closed = True
        self.head = self.body = self._chunks = self._head_parser = None
        self._answers.owes_continue = False

    def take(self, data: "bytes | bytearray", view: memoryview, position: int, end: int) -> int:
        """Take a head, a head and its whole body, or a piece of a body; return the position behind it.

        Raises HttpError.
        """
        if self.body is not None:
            return position + self._fill_body(self.body, view[position:end])
        if self._chunks is not None:
            position += self._chunks.feed(view[position:end])
            if self._chunks.is_done:
                chunked_body, self._chunks = self._chunks.body, None
                self._on_request(self._take_head(), bytes(chunked_body))
            return position
        # hot: bench/micro_http1.py
        at = data.find(b"\r\n\r\n", position, end) + 4
        if at < 4 or self._head_parser is not None:
            return self._take_partial_head(view, position, end)
        text = bytes(view[position:at])
        head = self._endpoint.heads.get(text)
        if head is None:
            if text[:1] in (b"\r", b"\n"):
                return _skip_empty_lines(view, position, end)
            if len(text) > self._limits.head_bytes:
                raise self._head_too_long(text)
            head = self._endpoint.heads.parse(text)
        length = head.content_length
        if length > end - at or head.is_chunked:
            self._begin_body(head, view[at:end])
            return at
        if length > _ALIGNED_BODY_BYTES and head.binary_offset:
            body = allocate_body(length, head.binary_offset)
            body[:] = view[at : at + length]
            self._on_request(head, body.toreadonly())
        else:
            self._on_request(head, bytes(view[at : at + length]))
        return at + length

    def finish_body(self, body: memoryview) -> None:
        """Hand over the request whose body is full now."""
        self.body = None
        self._on_request(self._take_head(), body.toreadonly())

    def cut_short(self) -> HttpError | None:
        """Return what is wrong when nothing comes any more, None between two requests."""
        if self._head_parser is None and self.head is None:
            return None
        received = len(self._head_text) if self.head is None else self._received_bytes()
        part = "head" if self.head is None else "body"
        return HttpError(400, f"the request's {part} ended after {received} bytes, before it was complete")

    def overdue(self, elapsed_s: float) -> HttpError | None:
        """Return what is wrong when the request being received takes too long."""
        limits = self._limits
        if self._head_parser is not None:
            if elapsed_s >= limits.head_timeout_s:
                return HttpError(408, f"the request's head took longer than {limits.head_timeout_s:g} s")
        elif self.head is not None:
            received = self._received_bytes()
            if elapsed_s >= limits.body_timeout_s + received / limits.body_rate_bytes_per_s:
                return HttpError(408, f"the request's body is too slow: {received} bytes in {elapsed_s:.0f} s")
        return None

    @property
    def is_amid_request(self) -> bool:
        """Whether a part of a request has come."""
        return self._head_parser is not None or self.head is not None

    # --- heads ------------------------------------------------------------------------------------------------------

    def _take_partial_head(self, view: memoryview, position: int, end: int) -> int:
        """Take a piece of a head that arrives in several; llhttp sees it at once, so nonsense is refused at once."""
        if self._head_parser is None:
            position = _skip_empty_lines(view, position, end)
            if position == end:
                return end
            self._head_parser = HeadParser(self._limits)
            self._clock.restart()
        text = self._head_text
        known = len(text)
        text += view[position:end]
        at = text.find(b"\r\n\r\n", max(0, known - 3)) + 4
        if at >= 4:
            del text[at:]
        if len(text) > self._limits.head_bytes:
            raise self._head_too_long(text)
        self._head_parser.feed(bytes(text[known:]))
        if at < 4:
            return end
        head = self._head_parser.finish()
        self._head_parser = None
        self._head_text = bytearray()
        position += at - known
        if head.content_length or head.is_chunked:
            self._begin_body(head, view[position:end])
        else:
            self._on_request(head, b"")
        return position

    def _head_too_long(self, text: "bytes | bytearray") -> HttpError:
        limits = self._limits
        if b"\r\n" not in text[: limits.target_bytes]:
            return HttpError(414, f"request target is longer than {limits.target_bytes} bytes")
        return HttpError(431, f"request head is longer than {limits.head_bytes} bytes")

    def _take_head(self) -> RequestHead:
        head, self.head = self.head, None
        self._answers.owes_continue = False
        assert head is not None
        return head

    # --- bodies -----------------------------------------------------------------------------------------------------

    def _begin_body(self, head: RequestHead, arrived: memoryview) -> None:
        """Prepare for a body of which less than all has arrived; takes nothing of it."""
        if head.is_chunked:
            self._chunks = ChunkedDecoder(self._limits)
        else:
            self.body = allocate_body(head.content_length, head.binary_offset)
            self.filled = 0
        self.head = head
        self._clock.restart()
        if head.expects_continue and not len(arrived):
            self._answers.send_continue()

    def _fill_body(self, body: memoryview, piece: memoryview) -> int:
        taken = piece[: len(body) - self.filled]
        body[self.filled : self.filled + len(taken)] = taken
        self.filled += len(taken)
        if self.filled == len(body):
            self.finish_body(body)
        return len(taken)

    def _received_bytes(self) -> int:
        return len(self._chunks.body) if self._chunks is not None else self.filled
