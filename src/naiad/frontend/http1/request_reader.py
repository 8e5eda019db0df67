"""Cuts requests from the bytes of an HTTP/1.1 connection: headers and bodies.

A connection is between requests, within request headers, or within a body (of known length or chunked). Once the
headers are complete, a body of known length is received directly into its own buffer.
"""

import time
from collections.abc import Callable, Sequence

from naiad.core.limits.request_limits import UNCOUNTED_BYTES
from naiad.core.tensor import Buffer
from naiad.frontend.connections.body_reservation import BodyReservation, budget_exceeded, check_length
from naiad.frontend.connections.linger import LeastRate
from naiad.frontend.context import EARLY_REJECTION_BYTES, UnreadRequest
from naiad.frontend.http1.endpoint import Http1Endpoint, PhaseClock
from naiad.frontend.http1.waiting_requests import Http1Responses
from naiad.wire.header_fields import Headers
from naiad.wire.http1 import ChunkedDecoder, HeadParser, HttpError, RequestHead, allocate_body

OnRequest = Callable[[RequestHead, Buffer, int], None]
"""Receives a complete request, and the number of bytes that are reserved for it in the budget."""


class RejectedByHeadersError(Exception):
    """A route rejects a request by its headers: the rest of the connection is not read."""

    def __init__(self, head: RequestHead, response: tuple[int, Headers, Sequence[Buffer]]) -> None:
        super().__init__()
        self.head = head
        self.response = response


def _skip_empty_lines(view: memoryview, position: int, end: int) -> int:
    """RFC 9112 2.2: ignore empty lines before a request."""
    if view[position] not in b"\r\n":
        return position
    return end - len(bytes(view[position:end]).lstrip(b"\r\n"))


class RequestReader:
    """Cuts requests from received bytes, and delivers each when it is complete."""

    __slots__ = (
        "_chunks",
        "_clock",
        "_endpoint",
        "_head_parser",
        "_head_text",
        "_is_checked",
        "_limits",
        "_on_request",
        "_rate",
        "_reservation",
        "_responses",
        "body",
        "filled",
        "first_byte_ns",
        "head",
        "is_closed",
    )

    def __init__(
        self, endpoint: Http1Endpoint, clock: PhaseClock, responses: Http1Responses, on_request: OnRequest
    ) -> None:
        self._endpoint = endpoint
        self._limits = endpoint.limits
        self._clock = clock
        self._responses = responses
        self._reservation = BodyReservation(endpoint.budget)
        self._rate: LeastRate | None = None
        """Bytes reserved for the body that is being received."""
        self._on_request = on_request
        self.head: RequestHead | None = None
        """Headers of the request whose body is being received."""
        self.body: memoryview | None = None
        self.filled = 0
        """Number of received bytes of `body`."""
        self._chunks: ChunkedDecoder | None = None
        self._is_checked = False
        """The routes have checked the headers of a chunked request."""
        self._head_parser: HeadParser | None = None
        self._head_text = bytearray()
        """The first part of incomplete request headers."""
        self.first_byte_ns = 0
        """When the current request began to arrive; 0 for one that is delivered at once."""
        self.is_closed = False
        """The last request of the connection has arrived."""

    def close(self) -> None:
        """Ignore all further input, and discard an incomplete request."""
        self.is_closed = True
        self._reservation.release()
        self.head = self.body = self._chunks = self._head_parser = None
        self._responses.owes_continue = False

    def detach(self) -> None:
        """Release the owner and all buffers: the connection is lost."""
        self.close()
        del self._on_request

    def take(self, data: "bytes | bytearray", view: memoryview, position: int, end: int) -> int:
        """Consume request headers, a complete request, or a piece of a body; return the position behind it.

        Raises HttpError.
        """
        if self.body is not None:
            return position + self._fill_body(self.body, view[position:end])
        if self._chunks is not None:
            return position + self._feed_chunks(self._chunks, view[position:end])
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
            self.first_byte_ns = time.monotonic_ns()
            head = self._endpoint.heads.parse(text)
        length = head.content_length
        if length > end - at or head.is_chunked:
            self._begin_body(head, view[at:end])
            return at
        if length <= UNCOUNTED_BYTES:
            self._on_request(head, bytes(view[at : at + length]), 0)
        else:
            self._take_whole(head, view[at : at + length])
        return at + length

    def _take_whole(self, head: RequestHead, arrived: memoryview) -> None:
        """Deliver a request whose body, not a tiny one, has arrived with its headers. Raises HttpError."""
        length = len(arrived)
        budget = self._endpoint.budget
        if not budget.reserve(length):
            raise budget_exceeded()
        try:
            if head.binary_offset:
                body = allocate_body(length, head.binary_offset)
                body[:] = arrived
                whole: Buffer = body.toreadonly()
            else:
                whole = bytes(arrived)
        except (HttpError, MemoryError):
            budget.release(length)
            raise
        self._on_request(head, whole, length)

    def receive_buffer(self, body: memoryview) -> memoryview:
        """Return the part of `body` to receive next: never empty, and reserved."""
        return body[self.filled : self._reservation.size_bytes]

    def body_received(self, body: memoryview, size: int) -> bool:
        """Account for `size` received bytes of `body`; return whether the body is complete and was delivered.

        Raises HttpError(503) if there is no room for what follows.
        """
        self.filled += size
        if self.filled < len(body):
            self._reservation.cover(self.filled + 1, len(body))
            return False
        self.body = None
        self._on_request(self._take_head(), body.toreadonly(), self._reservation.take(len(body)))
        return True

    def cut_short(self) -> HttpError | None:
        """Return the error if no more input comes; None between two requests."""
        if self._head_parser is None and self.head is None:
            return None
        received = len(self._head_text) if self.head is None else self._received_bytes()
        part = "request headers" if self.head is None else "request body"
        return HttpError(400, f"the {part} ended after {received} bytes, before it was complete")

    def overdue(self, elapsed_s: float, now_ns: int) -> HttpError | None:
        """Return the error if the request takes too long to arrive, None otherwise."""
        limits = self._limits
        if self._head_parser is not None:
            if elapsed_s >= limits.head_timeout_s:
                return HttpError(408, f"the request headers took longer than {limits.head_timeout_s:g} s")
        elif self.head is not None:
            received = self._received_bytes()
            if self._rate is not None and self._rate.is_too_slow(received, now_ns):
                return HttpError(408, f"the request's body is too slow: {received} bytes in {elapsed_s:.0f} s")
        return None

    def excuse(self, now_ns: int) -> None:
        """Exclude the time in which this side did not read."""
        if self._rate is not None:
            self._rate.excuse(now_ns)

    @property
    def is_amid_request(self) -> bool:
        """Whether a part of a request has arrived."""
        return self._head_parser is not None or self.head is not None

    # --- headers ----------------------------------------------------------------------------------------------------

    def _take_partial_head(self, view: memoryview, position: int, end: int) -> int:
        """Consume a piece of request headers that arrive in several; llhttp parses it now, so garbage is rejected at
        once.
        """
        if self._head_parser is None:
            position = _skip_empty_lines(view, position, end)
            if position == end:
                return end
            self.first_byte_ns = time.monotonic_ns()
            self._head_parser = self._endpoint.heads.parser()
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
            self._on_request(head, b"", 0)
        return position

    def _head_too_long(self, text: "bytes | bytearray") -> HttpError:
        limits = self._limits
        if b"\r\n" not in text[: limits.target_bytes]:
            return HttpError(414, f"request target is longer than {limits.target_bytes} bytes")
        return HttpError(431, f"request headers are longer than {limits.head_bytes} bytes")

    def _take_head(self) -> RequestHead:
        head, self.head = self.head, None
        self._responses.owes_continue = False
        assert head is not None
        return head

    # --- bodies -----------------------------------------------------------------------------------------------------

    def _begin_body(self, head: RequestHead, arrived: memoryview) -> None:
        """Prepare for a body that has arrived in part; consumes nothing of it."""
        if head.expects_continue or head.content_length > EARLY_REJECTION_BYTES:
            self._check_head(head)
        if head.is_chunked:
            self._chunks = ChunkedDecoder(self._limits)
            self._is_checked = head.expects_continue
        else:
            check_length(self._endpoint.budget, head.content_length)
            self._reservation.cover(1, head.content_length)
            self.body = allocate_body(head.content_length, head.binary_offset)
            self.filled = 0
        self.head = head
        self.first_byte_ns = self.first_byte_ns or time.monotonic_ns()
        self._rate = LeastRate(self._limits.body_rate_bytes_per_s, self._limits.body_timeout_s)
        self._clock.restart()
        if head.expects_continue and not len(arrived):
            self._responses.send_continue()

    def _check_head(self, head: RequestHead) -> None:
        """Let the routes check the headers before the body is buffered. Raises RejectedByHeadersError."""
        reject = self._endpoint.reject
        if reject is None:
            return
        context = UnreadRequest(head.method, head.path, head.headers, time.monotonic_ns(), self._responses)
        reject(context)
        if context.response is not None:
            raise RejectedByHeadersError(head, context.response)

    def _fill_body(self, body: memoryview, piece: memoryview) -> int:
        taken = piece[: len(body) - self.filled]
        self._reservation.cover(self.filled + len(taken), len(body))
        body[self.filled : self.filled + len(taken)] = taken
        self.body_received(body, len(taken))
        return len(taken)

    def _feed_chunks(self, chunks: ChunkedDecoder, piece: memoryview) -> int:
        """Decode a piece of a chunked body and return the number of consumed bytes."""
        if not self._is_checked and len(chunks.body) > EARLY_REJECTION_BYTES and self.head is not None:
            self._is_checked = True
            self._check_head(self.head)
        self._reservation.cover(len(chunks.body) + len(piece), self._limits.body_bytes)
        used = chunks.feed(piece)
        if chunks.is_done:
            body, self._chunks = bytes(chunks.body), None
            self._on_request(self._take_head(), body, self._reservation.take(len(body)))
        return used

    def _received_bytes(self) -> int:
        return len(self._chunks.body) if self._chunks is not None else self.filled
