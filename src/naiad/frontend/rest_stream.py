"""Answers over HTTP that are made of one piece for each response: JSON lines and server-sent events."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

from naiad.core.errors import InferError
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse
from naiad.frontend import rest_failure
from naiad.frontend.departure import CancellingEngine
from naiad.frontend.exchange import Headers, HttpExchange
from naiad.frontend.trace_fields import TraceFields, fields_of_exchange
from naiad.protocol.control_json import encode_error
from naiad.protocol.status import status_of
from naiad.protocol.text_stream import as_event, as_line

Encode = Callable[[InferRequest, InferResponse], bytes]
"""Makes one line of a response. Raises InferError when it cannot."""

# What stands between server and client must not collect the pieces.
_AT_ONCE = ((b"Cache-Control", b"no-cache"), (b"X-Accel-Buffering", b"no"))


@dataclass(frozen=True, slots=True)
class Framing:
    """How the pieces of a streamed answer are told apart."""

    media_type: bytes
    headers: Headers
    frame: Callable[[bytes], bytes]
    frames_first_error: bool = False
    """An error that is all there is keeps the framing; otherwise it is answered like that of any other request."""


LINES = Framing(b"application/x-ndjson", ((b"Content-Type", b"application/x-ndjson"), *_AT_ONCE), as_line)
EVENTS = Framing(b"text/event-stream", ((b"Content-Type", b"text/event-stream; charset=utf-8"), *_AT_ONCE), as_event)
GENERATE_EVENTS = Framing(EVENTS.media_type, EVENTS.headers, as_event, frames_first_error=True)


def accepted_framing(accept: bytes) -> Framing | None:
    """Return the framing that an Accept field asks for; None when it asks for no stream."""
    accept = accept.lower()
    if b"ndjson" not in accept and b"event-stream" not in accept:
        return None
    for media_range in accept.split(b","):
        media_type = media_range.partition(b";")[0].strip()
        for framing in (LINES, EVENTS):
            if media_type == framing.media_type:
                return framing
    return None


class StreamedAnswer:
    """The answer of one request, sent response by response; the first one decides about the status."""

    protocol = "HTTP"  # for traces
    __slots__ = ("_encode", "_exchange", "_framing", "_has_begun")

    def __init__(self, exchange: HttpExchange, framing: Framing, encode: Encode) -> None:
        self._exchange = exchange
        self._framing = framing
        self._encode = encode
        self._has_begun = False

    def watch(self, request: InferRequest, engine: CancellingEngine) -> None:
        """Cancel the request when its client goes away, and have it wait when its client is slow."""
        self._exchange.on_disconnect = functools.partial(rest_failure.abandon, engine, request)
        self._exchange.on_congestion = functools.partial(_set_congested, request)

    def trace_fields(self, request: InferRequest) -> TraceFields:
        """Return what the request of a client says about its trace."""
        return fields_of_exchange(self._exchange)

    def take(self, request: InferRequest, response: InferResponse) -> None:
        """Send one response."""
        # hot: once a response
        if request.cancelled:
            return
        error = response.error
        if error is None and not response.empty_final:
            try:
                text = self._encode(request, response)
            except InferError as unfit:
                error = unfit
            else:
                if not self._has_begun:
                    self._begin(200)
                self._exchange.send((self._framing.frame(text),))
        if error is not None:
            self._fail(request, response, error)
        elif response.final:
            self._end()

    def _begin(self, status: int, request_id: str = "") -> None:
        self._has_begun = True
        headers = self._framing.headers
        self._exchange.start_stream(status, (*headers, rest_failure.id_header(request_id)) if request_id else headers)

    def _fail(self, request: InferRequest, response: InferResponse, error: InferError) -> None:
        model, version = request.header.model_name, response.header.model_version
        if response.final and not self._has_begun and not self._framing.frames_first_error:
            rest_failure.respond(self._exchange, request.id, model, version, error)
            return
        request_id = rest_failure.log(request.id, model, version, error)
        if not self._has_begun:
            self._begin(status_of(error.code).http, request_id)
        self._exchange.send((self._framing.frame(encode_error(error.message)),))
        if response.final:
            self._end()

    def _end(self) -> None:
        if not self._has_begun:
            self._begin(200)
        self._exchange.end()


def _set_congested(request: InferRequest, is_congested: bool) -> None:
    request.is_congested = is_congested
