"""Reading requests: from the bytes of an HTTP/1.1 connection to heads with their bodies.

A connection is between requests, within a head, or within a body (of known length or chunked). A body of known length
is received straight into its own buffer once its head is known.
"""

import time
from collections.abc import Callable, Sequence

from naiad.core.request_limits import UNCOUNTED_BYTES
from naiad.core.tensor import Buffer
from naiad.frontend.body_reservation import BodyReservation, check_length, no_room
from naiad.frontend.exchange import EARLY_REFUSAL_BYTES, UnreadRequest
from naiad.frontend.http1.endpoint import Http1Endpoint, PhaseClock
from naiad.frontend.http1.responses import Http1Responses
from naiad.wire.header_fields import Headers
from naiad.wire.http1 import ChunkedDecoder, HeadParser, HttpError, RequestHead, allocate_body
from naiad.wire.least_rate import LeastRate

OnRequest = Callable[[RequestHead, Buffer, int], None]
"""Takes a complete request, and how many bytes of the budget are reserved for it."""


class RejectedByHeadersError(Exception):
    """The head of a request is reason enough to refuse it: nothing more of the connection is read."""

    def __init__(self, head: RequestHead, answer: tuple[int, Headers, Sequence[Buffer]]) -> None:
        super().__init__()
        self.head = head
        self.answer = answer


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
        "_is_checked",
        "_limits",
        "_on_request",
        "_rate",
        "_reservation",
        "body",
        "filled",
        "head",
        "is_closed",
    )

    def __init__(
        self, endpoint: Http1Endpoint, clock: PhaseClock, answers: Http1Responses, on_request: OnRequest
    ) -> None:
        self._endpoint = endpoint
        self._limits = endpoint.limits
        self._clock = clock
        self._answers = answers
        self._reservation = BodyReservation(endpoint.budget)
        self._rate: LeastRate | None = None
        """Of the body that is being received."""
        self._on_request = on_request
        self.head: RequestHead | None = None
        """The head whose body is being received."""
        self.body: memoryview | None = None
        self.filled = 0
        """How much of `body` has come."""
        self._chunks: ChunkedDecoder | None = None
        self._is_checked = False
        """The routes were asked whether the head of a chunked body is refused."""
        self._head_parser: HeadParser | None = None
        self._head_text = bytearray()
        """The beginning of a head that has not arrived completely."""
        self.is_closed = False
        """The last request of the connection has arrived."""

    def close(self) -> None:
        """Ignore what comes from now on, and forget what has come of a request."""
        self.is_closed = True
        self._reservation.release()
        self.head = self.body = self._chunks = self._head_parser = None
        self._answers.owes_continue = False

    def lose(self) -> None:
        """The connection is lost: nothing more is received, and the owner is not referred to any more."""
        self.close()
        del self._on_request

    def take(self, data: "bytes | bytearray", view: memoryview, position: int, end: int) -> int:
        """Take a head, a head and its whole body, or a piece of a body; return the position behind it.

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
        """Hand over a request whose body is not tiny and has come together with its head. Raises HttpError(503)."""
        length = len(arrived)
        if not self._endpoint.budget.reserve(length):
            raise no_room()
        if head.binary_offset:
            body = allocate_body(length, head.binary_offset)
            body[:] = arrived
            self._on_request(head, body.toreadonly(), length)
        else:
            self._on_request(head, bytes(arrived), length)

    def room(self, body: memoryview) -> memoryview:
        """Return the part of `body` that may be received next: never empty, and reserved."""
        return body[self.filled : self._reservation.size_bytes]

    def body_received(self, body: memoryview, size: int) -> bool:
        """Take note of `size` more bytes of `body`; whether it is complete, and handed over.

        Raises HttpError(503) when there is no room for what follows.
        """
        self.filled += size
        if self.filled < len(body):
            self._reservation.cover(self.filled + 1, len(body))
            return False
        self.body = None
        self._on_request(self._take_head(), body.toreadonly(), self._reservation.take(len(body)))
        return True

    def cut_short(self) -> HttpError | None:
        """Return what is wrong when nothing comes any more, None between two requests."""
        if self._head_parser is None and self.head is None:
            return None
        received = len(self._head_text) if self.head is None else self._received_bytes()
        part = "head" if self.head is None else "body"
        return HttpError(400, f"the request's {part} ended after {received} bytes, before it was complete")

    def overdue(self, elapsed_s: float, now_ns: int) -> HttpError | None:
        """Return what is wrong when the request being received takes too long."""
        limits = self._limits
        if self._head_parser is not None:
            if elapsed_s >= limits.head_timeout_s:
                return HttpError(408, f"the request's head took longer than {limits.head_timeout_s:g} s")
        elif self.head is not None:
            received = self._received_bytes()
            if self._rate is not None and self._rate.is_too_slow(received, now_ns):
                return HttpError(408, f"the request's body is too slow: {received} bytes in {elapsed_s:.0f} s")
        return None

    def excuse(self, now_ns: int) -> None:
        """Leave out the time in which the peer was not read."""
        if self._rate is not None:
            self._rate.excuse(now_ns)

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
            self._on_request(head, b"", 0)
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
        if head.expects_continue or head.content_length > EARLY_REFUSAL_BYTES:
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
        self._rate = LeastRate(self._limits.body_rate_bytes_per_s, self._limits.body_timeout_s)
        self._clock.restart()
        if head.expects_continue and not len(arrived):
            self._answers.send_continue()

    def _check_head(self, head: RequestHead) -> None:
        """Have the routes look at a head before its body is buffered. Raises RejectedByHeadersError."""
        refuse = self._endpoint.refuse
        if refuse is None:
            return
        exchange = UnreadRequest(head.method, head.path, head.headers, time.monotonic_ns())
        refuse(exchange)
        if exchange.answer is not None:
            raise RejectedByHeadersError(head, exchange.answer)

    def _fill_body(self, body: memoryview, piece: memoryview) -> int:
        taken = piece[: len(body) - self.filled]
        self._reservation.cover(self.filled + len(taken), len(body))
        body[self.filled : self.filled + len(taken)] = taken
        self.body_received(body, len(taken))
        return len(taken)

    def _feed_chunks(self, chunks: ChunkedDecoder, piece: memoryview) -> int:
        """Decode a piece of a chunked body and return how many bytes were used."""
        if not self._is_checked and len(chunks.body) > EARLY_REFUSAL_BYTES and self.head is not None:
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
