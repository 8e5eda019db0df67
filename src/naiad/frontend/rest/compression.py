"""Compressed HTTP bodies: Content-Encoding of requests, Accept-Encoding of responses.

Small bodies are coded on the event loop, where that costs less than a thread switch; large ones on another thread.
Decompression stops at the limit, so a small body that would become huge costs no more than the limit.
"""

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus

from naiad.core.errors import InferError, Rejection, internal, invalid_argument, unavailable
from naiad.core.limits.bounded_cache import BoundedCache
from naiad.core.tensor import Buffer
from naiad.engine.lookup.model_table import ModelTable
from naiad.engine.on_demand.held_requests import ColdModelError
from naiad.frontend import failed_requests
from naiad.frontend.cold_models import hold_context
from naiad.frontend.connections.body_reservation import BUDGET_EXCEEDED
from naiad.frontend.context import CancelReason, HttpContext, HttpContextLayer
from naiad.frontend.long_work.thread_pool import RunInThread
from naiad.frontend.router import Action
from naiad.wire.compression import (
    MAX_INLINE_BYTES,
    MAX_INLINE_PLAIN_BYTES,
    WINDOW_BITS,
    CorruptError,
    TooLargeError,
    accepted_coding,
    compress,
    decompress,
    most_plain_bytes,
    plain_limit,
)
from naiad.wire.header_fields import Headers, copy_of

_log = logging.getLogger(__name__)

MAX_DECOMPRESSED_BYTES = 64 * 1024 * 1024
"""Default of --http-max-decompressed-size and --grpc-max-decompressed-size."""
MAX_DECOMPRESSION_RATIO = 200
"""Default of --http-max-decompression-ratio."""
_MIN_RESPONSE_BYTES = 256
"""Smaller responses are sent uncompressed: compression would take longer and save no packets."""
_CONTENT_ENCODING = b"content-encoding"
_ACCEPT_ENCODING = b"accept-encoding"
_VARY = (b"Vary", b"Accept-Encoding")
"""Caches give this body only to clients that accept its coding."""


class ContentCodings:
    """Wraps routes whose bodies may be compressed."""

    def __init__(
        self,
        run_in_thread: RunInThread,
        models: ModelTable,
        max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES,
        max_ratio: int = MAX_DECOMPRESSION_RATIO,
    ) -> None:
        """Up to `MAX_DECOMPRESSED_BYTES` a body may have any ratio, above that `max_ratio`."""
        self._run_in_thread = run_in_thread
        self._models = models
        self._max_bytes = max_decompressed_bytes
        self._max_ratio = max_ratio
        self._accepted: BoundedCache[bytes, bytes | None] = BoundedCache(
            max_entries=256, max_bytes=32 * 1024, max_entry_bytes=256
        )

    def wrap(self, action: Action) -> Action:
        """Wrap `action` so that it gets plain bodies and its responses may be compressed."""

        def handle(context: HttpContext, arguments: Mapping[str, str]) -> None:
            # hot: two look-ups for each uncompressed request
            headers = context.headers
            if _ACCEPT_ENCODING in headers:
                coding = self._response_coding(headers[_ACCEPT_ENCODING])
                if coding is not None:
                    context = CompressedResponse(context, coding, self._run_in_thread)
            if _CONTENT_ENCODING in headers:
                self._handle_compressed(context, arguments, action)
            else:
                action(context, arguments)

        return handle

    def wrap_responses(self, handle: Callable[[HttpContext], None]) -> Callable[[HttpContext], None]:
        """Wrap `handle` so that its responses may be compressed; request bodies stay as they are."""

        def compressing(context: HttpContext) -> None:
            accept = context.headers.get(_ACCEPT_ENCODING)
            coding = None if accept is None else self._response_coding(accept)
            if coding is None:
                handle(_VaryingResponse(context))
            else:
                handle(CompressedResponse(context, coding, self._run_in_thread))

        return compressing

    def _response_coding(self, accept: bytes) -> bytes | None:
        try:
            return self._accepted[accept]
        except KeyError:
            pass
        coding = accepted_coding(accept)
        self._accepted.remember(accept, coding, len(accept))
        return coding

    def _handle_compressed(self, context: HttpContext, arguments: Mapping[str, str], action: Action) -> None:
        bits = WINDOW_BITS.get(context.headers[_CONTENT_ENCODING].strip().lower(), 0)
        if not bits or not self._is_known(arguments):
            # Either the body is plain, or the route reports the error.
            action(context, arguments)
            return
        body = context.body
        if len(body) <= MAX_INLINE_BYTES:
            try:
                plain = decompress(body, bits, min(MAX_INLINE_PLAIN_BYTES, self._max_bytes))
            except TooLargeError:
                pass  # as work on the loop; the threads decide
            except CorruptError as error:
                self._reject(context, arguments, error)
                return
            else:
                action(_PlainContext(context, plain), arguments)
                return
        limit = plain_limit(len(body), self._max_bytes, self._max_ratio, min(self._max_bytes, MAX_DECOMPRESSED_BYTES))
        reserved = most_plain_bytes(body, bits, limit)
        if not context.reserve_bytes(reserved):
            self._fail(context, arguments, unavailable(BUDGET_EXCEEDED, Rejection.MEMORY))
            return
        waiting = _WaitingBody(context, reserved)
        self._run_in_thread(
            functools.partial(waiting.decompress, body, bits, min(limit, reserved)),
            functools.partial(self._go_on, waiting, context, arguments, action),
            functools.partial(self._reject, context, arguments),
        )

    def _is_known(self, arguments: Mapping[str, str]) -> bool:
        try:
            self._models.served(arguments["model"], arguments["version"])
        except InferError:
            return False
        return True

    def _go_on(
        self,
        waiting: "_WaitingBody",
        context: HttpContext,
        arguments: Mapping[str, str],
        action: Action,
        plain: Buffer | None,
    ) -> None:
        if plain is None or waiting.is_gone:
            return  # the client has disconnected: nothing would cancel a request submitted now
        context.on_disconnect = None
        context.release_bytes(waiting.reserved_bytes - len(plain))
        layer = _PlainContext(context, plain)
        try:
            action(layer, arguments)
        except ColdModelError as cold:  # it was evicted while the body was decompressed
            hold_context(layer, cold, functools.partial(action, layer, arguments))
        except Exception:
            _log.exception("the route of %s %s failed", context.method, context.path)
            self._fail(context, arguments, internal("internal error; see the server log"))

    def _reject(self, context: HttpContext, arguments: Mapping[str, str], error: Exception) -> None:
        if isinstance(error, TooLargeError):
            rejection = invalid_argument(
                f"the decompressed request body exceeds the maximum allowed value of {self._max_bytes} bytes, or "
                "what --http-max-decompression-ratio or the size at its end allows. Use --http-max-input-size to "
                "increase the limit, --http-max-decompressed-size where that is set, or send it uncompressed."
            )
        elif isinstance(error, CorruptError):
            coding = context.headers[_CONTENT_ENCODING].decode("latin-1")
            rejection = invalid_argument(f"the request body does not match its Content-Encoding '{coding}': {error}")
        else:
            _log.error("decompressing a request body failed", exc_info=error)
            rejection = internal("internal error; see the server log")
        self._fail(context, arguments, rejection)

    def _fail(self, context: HttpContext, arguments: Mapping[str, str], error: InferError) -> None:
        failed_requests.respond(context, "", arguments["model"], arguments["version"], error)


class _WaitingBody:
    """A body that waits for a thread; the work is skipped if the client has disconnected."""

    __slots__ = ("is_gone", "reserved_bytes")

    def __init__(self, context: HttpContext, reserved_bytes: int) -> None:
        self.is_gone = False
        self.reserved_bytes = reserved_bytes
        """Reserved bytes of the server's budget, until the size of the body is known."""
        context.on_disconnect = self._cancel

    def _cancel(self, why: CancelReason) -> None:
        self.is_gone = True

    def decompress(self, body: Buffer, bits: int, max_bytes: int) -> Buffer | None:
        """Return the plain body, None if the response is no longer needed."""
        return None if self.is_gone else decompress(body, bits, max_bytes)


class _PlainContext(HttpContextLayer):
    """A context with a decompressed body, as if it had arrived uncompressed."""

    __slots__ = ()

    def __init__(self, context: HttpContext, body: Buffer) -> None:
        HttpContextLayer.__init__(self, context)
        self.body = body
        self.headers = fields = copy_of(context.headers)
        del fields[_CONTENT_ENCODING]


class _VaryingResponse(HttpContextLayer):
    """A context whose response is not compressed because this client does not ask for it."""

    __slots__ = ()

    def respond(self, status: int, headers: Headers, parts: Sequence[Buffer]) -> None:
        """Send a response; a cache must not give it to clients that ask for a coding, nor theirs to this one."""
        self._context.respond(status, (*headers, _VARY) if status == HTTPStatus.OK else headers, parts)


class CompressedResponse(HttpContextLayer):
    """A context whose complete response is compressed. Triton: failures and streamed responses stay uncompressed."""

    __slots__ = ("_coding", "_run_in_thread")

    def __init__(self, context: HttpContext, coding: bytes, run_in_thread: RunInThread) -> None:
        HttpContextLayer.__init__(self, context)
        self._coding = coding
        self._run_in_thread = run_in_thread

    def respond(self, status: int, headers: Headers, parts: Sequence[Buffer]) -> None:
        """Send a response with a complete body, compressed if that saves bytes."""
        size = sum(map(len, parts))
        if status != HTTPStatus.OK:
            self._context.respond(status, headers, parts)
            return
        if size < _MIN_RESPONSE_BYTES:
            self._context.respond(status, (*headers, _VARY), parts)
            return
        headers = (*headers, (b"Content-Encoding", self._coding), _VARY)
        work = functools.partial(compress, parts, WINDOW_BITS[self._coding])
        if size <= MAX_INLINE_BYTES:
            self._context.respond(status, headers, (work(),))
            return
        # The request is complete: there is nothing to cancel if the client disconnects.
        self._context.on_disconnect = None
        self._run_in_thread(work, functools.partial(self._respond, status, headers), self._failed)

    def _respond(self, status: int, headers: Headers, body: bytes) -> None:
        self._context.respond(status, headers, (body,))

    def _failed(self, error: Exception) -> None:
        _log.error("compressing a response failed", exc_info=error)
        failed_requests.respond(self._context, "", "", "", internal("internal error; see the server log"))
