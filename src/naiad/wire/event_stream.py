"""The receiving side of server-sent events (HTML, 9.2.6), sans-IO, over an HTTP/1.1 response that does not end."""

from typing import NamedTuple

import httptools

from naiad.wire.header_fields import HeaderFields
from naiad.wire.http1_client import ResponseError

MAX_EVENT_BYTES = 64 * 1024 * 1024
_MAX_HEAD_BYTES = 64 * 1024
_OK = 200


class ServerSentEvent(NamedTuple):
    """One event."""

    name: str
    """`message` without a field `event`."""
    data: bytes


class EventParser:
    """Cuts events from bytes that arrive in any pieces."""

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_event_bytes = max_event_bytes
        self._rest = bytearray()
        self._name = ""
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> list[ServerSentEvent]:
        """Return the events that a piece completes. Raises ResponseError for one that is too large."""
        self._rest += piece
        lines = self._rest.split(b"\n")
        self._rest = lines.pop()
        found = []
        for line in lines:
            event = self._take(bytes(line.removesuffix(b"\r")))
            if event is not None:
                found.append(event)
        if len(self._rest) + self._size > self._max_event_bytes:
            raise ResponseError(f"an event of the stream has more than {self._max_event_bytes} bytes")
        return found

    def _take(self, line: bytes) -> ServerSentEvent | None:
        if not line:
            return self._complete()
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"event":
            self._name = value.decode("utf-8", "replace")
        elif name == b"data":
            self._data.append(value)
            self._size += len(value)
        return None  # a comment, or a field without a meaning here

    def _complete(self) -> ServerSentEvent | None:
        name, data = self._name or "message", self._data
        self._name, self._data, self._size = "", [], 0
        return ServerSentEvent(name, b"\n".join(data)) if data else None


class EventStreamResponse:
    """A response whose body is a stream of events; one that is an error is collected."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._events = EventParser()
        self._found: list[ServerSentEvent] = []
        self._head_bytes = 0
        self._failure: ResponseError | None = None
        self.headers = HeaderFields()
        self.status = 0
        """0 before the head has arrived."""
        self.is_complete = False
        self.error_body = bytearray()
        """The body of a response with another status than 200."""

    def feed(self, data: bytes) -> list[ServerSentEvent]:
        """Return the events that received bytes complete. Raises ResponseError."""
        if not self.status:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise self._failure or ResponseError(f"malformed HTTP response: {error}") from None
        if not self.status and self._head_bytes > _MAX_HEAD_BYTES:
            raise ResponseError(f"the head of the response has more than {_MAX_HEAD_BYTES} bytes")
        found, self._found = self._found, []
        return found

    # Callbacks of httptools.

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a field."""
        if not self.status:
            self.headers.add(name, value)

    def on_headers_complete(self) -> None:
        """Note the status."""
        self.status = self._parser.get_status_code()

    def on_body(self, piece: bytes) -> None:
        """Take a piece of the body."""
        if self.status != _OK:
            self.error_body += piece[: _MAX_HEAD_BYTES - len(self.error_body)]
            return
        try:
            self._found += self._events.feed(piece)
        except ResponseError as error:
            self._failure = error
            raise

    def on_message_complete(self) -> None:
        """End the response."""
        self.is_complete = True
