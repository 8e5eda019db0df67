"""Streamed HTTP responses with one piece per inference response: JSON lines and server-sent events."""

import functools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from naiad.core.errors import InferError, unavailable
from naiad.core.request import InferRequest, RequestHeader
from naiad.core.response import InferResponse
from naiad.core.slices import Slices, finish
from naiad.core.tensor import Buffer
from naiad.engine.engine import Engine
from naiad.frontend import failed_requests
from naiad.frontend.context import CancelReason, HttpContext, encoding_error
from naiad.frontend.header_forwarding import TraceFields, fields_of_context
from naiad.frontend.long_work.slice_runner import SliceJob, SliceRunner
from naiad.protocol.json.management.control import encode_error
from naiad.protocol.json.response import as_event, as_line, is_long
from naiad.protocol.status_table import status_of
from naiad.wire.header_fields import Headers

Encode = Callable[[InferRequest, InferResponse], Slices[Sequence[Buffer]]]
"""Encodes one line of a response, in parts and in slices. Raises InferError on failure."""
_MAX_WAITING = 1024
"""Limit of responses that wait while one is being encoded."""

# Proxies between server and client must not buffer the pieces.
_AT_ONCE = ((b"Cache-Control", b"no-cache"), (b"X-Accel-Buffering", b"no"))


@dataclass(frozen=True, slots=True)
class Framing:
    """How the pieces of a streamed response are delimited."""

    media_type: bytes
    headers: Headers
    frame: Callable[[Sequence[Buffer]], Sequence[Buffer]]
    frames_first_error: bool = False
    """A stream that starts with an error keeps the framing; otherwise the error is sent as for other requests."""


LINES = Framing(b"application/x-ndjson", ((b"Content-Type", b"application/x-ndjson"), *_AT_ONCE), as_line)
EVENTS = Framing(b"text/event-stream", ((b"Content-Type", b"text/event-stream; charset=utf-8"), *_AT_ONCE), as_event)
GENERATE_EVENTS = Framing(EVENTS.media_type, EVENTS.headers, as_event, frames_first_error=True)


def accepted_framing(accept: bytes) -> Framing | None:
    """Return the framing for an Accept field; None if it does not ask for a stream."""
    accept = accept.lower()
    if b"ndjson" not in accept and b"event-stream" not in accept:
        return None
    for media_range in accept.split(b","):
        media_type = media_range.partition(b";")[0].strip()
        for framing in (LINES, EVENTS):
            if media_type == framing.media_type:
                return framing
    return None


class StreamedInference(InferRequest):
    """A request with a streamed response; its `context` is the HTTP context."""

    __slots__ = ()

    @property
    def unread_bytes(self) -> int:
        """Bytes of its responses that its client has not taken yet."""
        context: HttpContext = self.context  # type: ignore[assignment]  # set in `new_request`
        return context.unread_bytes


class StreamedResponse:
    """The response of one request, sent piece by piece; the first piece determines the status."""

    protocol = "HTTP"  # for traces
    transport = "http_stream"  # for recordings
    __slots__ = (
        "_context",
        "_encode",
        "_engine",
        "_framing",
        "_has_begun",
        "_is_over",
        "_is_paused",
        "_job",
        "_runner",
        "_waiting",
    )

    def __init__(
        self, context: HttpContext, framing: Framing, encode: Encode, runner: SliceRunner | None = None
    ) -> None:
        self._context = context
        self._runner = runner or SliceRunner()
        self._job: SliceJob | None = None
        """The encoding of a large response; later ones wait."""
        self._waiting: deque[tuple[InferRequest, InferResponse]] = deque()
        self._engine: Engine | None = None
        self._is_paused = False
        """The client does not read what was sent."""
        self._is_over = False
        """The client has disconnected, or the stream was ended here: further responses are ignored.

        `request.cancelled` is a different flag. The engine also sets it to stop the model after it has failed the
        request of a slow client, and that error may still wait here behind a large response.
        """
        self._framing = framing
        self._encode = encode
        self._has_begun = False

    def new_request(self, header: RequestHeader, data: Sequence[Buffer], request_id: str) -> InferRequest:
        """Return the request whose responses this sends."""
        context = self._context
        return StreamedInference(
            header, data, self.take, id=request_id, arrival_ns=context.arrival_ns, context=context
        )

    def watch(self, request: InferRequest, engine: Engine) -> None:
        """Cancel the request when its client disconnects, and pause it while its client is slow."""
        self._engine = engine
        self._context.on_disconnect = functools.partial(self._abandon, engine, request)
        self._context.on_pause = functools.partial(self._set_paused, request)

    def trace_fields(self, request: InferRequest) -> TraceFields:
        """Return the trace fields of a request."""
        return fields_of_context(self._context)

    def take(self, request: InferRequest, response: InferResponse) -> None:
        """Send one response, after the earlier ones."""
        # hot: once a response
        if self._is_over:
            return
        if self._job is not None:
            self._keep(request, response)
            return
        error = response.error
        if error is None and not response.empty_final:
            if is_long(response):
                self._write_large(request, response)
                return
            try:
                text = finish(self._encode(request, response))
            except Exception as unfit:
                error = encoding_error(unfit, request)
            else:
                self._send(text)
        if error is not None:
            self._fail(request, response, error)
        elif response.final:
            self._end()

    def _send(self, text: Sequence[Buffer]) -> None:
        if not self._has_begun:
            self._begin(200)
        self._context.send(self._framing.frame(text))

    # --- large responses ----------------------------------------------------------------------------------------

    def _write_large(self, request: InferRequest, response: InferResponse, *, starts_later: bool = False) -> None:
        """Encode a response in slices; the model is paused meanwhile if it supports that."""
        job = self._runner.run(
            self._context.client,
            self._encode(request, response),
            sum(map(len, response.data)),
            functools.partial(self._written, request, response),
            functools.partial(self._unwritten, request, response),
            starts_later=starts_later,
            is_part=True,
        )
        if not job.is_over:
            self._job = job
            request.is_paused = True

    def _written(self, request: InferRequest, response: InferResponse, text: Sequence[Buffer]) -> None:
        self._send(text)
        if response.final:
            self._end()
        self._go_on(request)

    def _unwritten(self, request: InferRequest, response: InferResponse, error: InferError) -> None:
        self._fail(request, response, error)
        self._go_on(request)

    def _go_on(self, request: InferRequest) -> None:
        """Encode waiting responses, one large response at a time, the next one in a later turn of the loop."""
        if self._job is None:
            return  # the response was encoded at once, so nothing waits behind it
        self._job = None
        request.is_paused = self._is_paused
        while self._waiting and self._job is None:
            waiting_request, response = self._waiting.popleft()
            if response.error is None and not response.empty_final:
                self._write_large(waiting_request, response, starts_later=True)
            else:
                self.take(waiting_request, response)

    def _keep(self, request: InferRequest, response: InferResponse) -> None:
        self._waiting.append((request, response))
        if len(self._waiting) > _MAX_WAITING and self._engine is not None:
            self._stop()
            self._engine.inference.cancel(request)
            self._fail(request, response, unavailable("responses arrive faster than they can be encoded as JSON"))
            if not response.final:
                self._end()

    def _stop(self) -> None:
        """Discard waiting and further responses."""
        self._is_over = True
        self._waiting.clear()
        if self._job is not None:
            self._runner.cancel(self._job)
            self._job = None

    def _abandon(self, engine: Engine, request: InferRequest, why: CancelReason) -> None:
        self._stop()
        failed_requests.abandon(engine, request, why)

    def _set_paused(self, request: InferRequest, is_paused: bool) -> None:
        self._is_paused = is_paused
        request.is_paused = is_paused or self._job is not None

    def _begin(self, status: int, request_id: str = "") -> None:
        self._has_begun = True
        headers = self._framing.headers
        self._context.start_stream(
            status, (*headers, failed_requests.id_header(request_id)) if request_id else headers
        )

    def _fail(self, request: InferRequest, response: InferResponse, error: InferError) -> None:
        model, version = request.header.model_name, response.header.model_version
        if response.final and not self._has_begun and not self._framing.frames_first_error:
            failed_requests.respond(self._context, request.id, model, version, error)
            return
        request_id, message = failed_requests.log("HTTP", request.id, model, version, error)
        if not self._has_begun:
            self._begin(status_of(error).http, request_id)
        self._context.send(self._framing.frame((encode_error(message),)))
        if response.final:
            self._end()

    def _end(self) -> None:
        if not self._has_begun:
            self._begin(200)
        self._context.end()
