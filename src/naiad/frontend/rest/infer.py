"""`POST /v2/models/{m}/infer`: decode the body, submit the request, encode the response, report failures.

The cost of large JSON bodies is reported to their clients in a header field, and occasionally in the log.
"""

import functools
import logging
import time
from collections.abc import Mapping, Sequence

from naiad.core.errors import InferError, invalid_argument, unsupported
from naiad.core.request import InferRequest, RequestHeader
from naiad.core.response import InferResponse
from naiad.core.slices import Slices
from naiad.core.tensor import Buffer
from naiad.engine.admission import count_elements
from naiad.engine.engine import Engine
from naiad.engine.on_demand.held_requests import ColdModelError
from naiad.frontend import failed_requests
from naiad.frontend.cold_models import hold_context
from naiad.frontend.context import CancelReason, HttpContext, announced_bytes, encoding_error
from naiad.frontend.header_forwarding import HeaderForwarding, TraceFields, fields_of_context
from naiad.frontend.long_work.slice_runner import SliceJob, SliceRunner
from naiad.frontend.reply_headers import JSON_HEADERS
from naiad.frontend.rest.stream import Framing, StreamedResponse, accepted_framing
from naiad.protocol.json.document import SHORT_BYTES
from naiad.protocol.json.infer.binary import decode_raw
from naiad.protocol.json.infer.infer import Decoded, InferJsonDecoder
from naiad.protocol.json.response import (
    LONG_BYTES,
    Encoded,
    encode,
    encode_in_slices,
    is_long,
    with_binary_outputs,
    without_binary_outputs,
)
from naiad.telemetry.server_timing import TIMING_FIELD, TIMING_VALUE, RequestTiming
from naiad.wire.compression import WINDOW_BITS
from naiad.wire.header_fields import HeaderFields, Headers, written_fields

_log = logging.getLogger(__name__)

LARGE_JSON_BYTES = 1 << 20
"""Shorter bodies take a few milliseconds at most to decode; their cost is not reported."""
_PAUSE_NS = 60_000_000_000
"""Minimum interval of log lines, for all models and clients together."""


class JsonCost:
    """Reports how long large JSON bodies took to decode; the binary form of the same tensors takes almost no time."""

    def __init__(self) -> None:
        self._quiet_until_ns = 0

    def report(self, model: str, size_bytes: int, decode_ns: int) -> tuple[bytes, bytes]:
        """Return the header field with the cost of a JSON body; log it if the last log line is old enough."""
        now_ns = time.monotonic_ns()
        if now_ns >= self._quiet_until_ns:
            self._quiet_until_ns = now_ns + _PAUSE_NS
            _log.info(
                "model '%s': decoding %.1f MB of JSON took %.1f ms; the binary form of a tensor is almost free: "
                "binary_data in tritonclient, Inference-Header-Content-Length over HTTP, or gRPC",
                model,
                size_bytes / 1e6,
                decode_ns / 1e6,
            )
        return b"Server-Timing", b"decode;dur=%.1f" % (decode_ns / 1e6)


Prepared = tuple[Decoded, Sequence[int] | None]
"""A decoded request, and the number of elements of its large string inputs."""

_JSON_LENGTH = b"inference-header-content-length"
_MAX_LENGTH_DIGITS = 20  # of a 64-bit number
_CONTENT_CODING = b"content-encoding"
_CONTENT_TYPE = b"content-type"
_MEDIA = (b"image/", b"audio/", b"video/")
"""Content types of bodies that are a raw tensor without a field that says so: they cannot be JSON."""
_JSON = b"application/json"
_OCTET_STREAM = (b"Content-Type", b"application/octet-stream")
_CACHED_HEADERS = 4096
_DECOUPLED = "HTTP end point doesn't support models with decoupled transaction policy"
MAX_INPUT_BYTES = 64 * 1024 * 1024
"""Default of --http-max-input-size."""


class _Fields:
    """What the header fields of a request mean here; shared by all requests that repeat the fields."""

    __slots__ = ("framing", "is_json", "is_timed", "json_length", "wants_binary")

    def __init__(self, headers: Mapping[bytes, bytes]) -> None:
        accept = headers.get(b"accept")
        self.framing = None if accept is None or accept == b"*/*" else accepted_framing(accept)
        self.wants_binary = accept == _OCTET_STREAM[1]
        self.is_timed = TIMING_FIELD in headers
        self.json_length: int | None = None
        """The length of the JSON part, if the fields alone determine it and are valid."""
        self.is_json = not (_CONTENT_CODING in headers or _JSON_LENGTH in headers or _is_media(headers))
        """A body that is not empty is JSON as a whole."""


def _read_fields(headers: Mapping[bytes, bytes]) -> _Fields:
    fields = _Fields(headers)
    if isinstance(headers, HeaderFields):
        headers.memo = fields
    return fields


class InferRoute:
    """Inference over HTTP."""

    protocol = "HTTP"  # for traces
    transport = "http"  # for recordings

    def __init__(
        self,
        engine: Engine,
        max_input_bytes: int = MAX_INPUT_BYTES,
        forwarding: HeaderForwarding | None = None,
        runner: SliceRunner | None = None,
    ) -> None:
        self._engine = engine
        self._inference = engine.inference
        self._max_input_bytes = max_input_bytes
        self._forwarding = forwarding
        self._runner = runner or SliceRunner()
        self._decoder = InferJsonDecoder(engine.inference.request_limits)
        self._json_cost = JsonCost()
        self._headers: dict[int | None, Headers] = {None: JSON_HEADERS}
        """Response content types by the length of the JSON part; None if the response is all JSON."""

    def handle(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        """Submit a request, or respond with the error."""
        # hot: bench/micro_http1.py
        model, version = arguments["model"], arguments["version"]
        headers = context.headers
        fields: _Fields = getattr(headers, "memo", None) or _read_fields(headers)
        framing = fields.framing
        request_id = ""
        try:
            # Before parsing: the error of an unknown model has priority over invalid tensors.
            served = self._inference.served(model, version)
            if served.is_decoupled and framing is None:
                raise unsupported(_DECOUPLED)
            if len(context.body) > SHORT_BYTES:
                self._decode_large(context, framing, model, version)
                return
            json_length = fields.json_length
            if json_length is None and not (fields.is_json and 0 < len(context.body) <= self._max_input_bytes):
                json_length = self._json_length(context, fields)
            if json_length == 0:
                header, request_id, data = self._decode_raw(context, model, version)
            else:
                header, request_id, data = self._decoder.decode(model, version, context.body, json_length)
            if fields.wants_binary:
                header = with_binary_outputs(header)
            if self._forwarding is not None:
                header = self._forwarding.apply(header, written_fields(context.headers))
            if framing is not None:
                self._submit_streamed(context, framing, header, request_id, data)
                return
            request = InferRequest(
                header, data, self._on_response, id=request_id, arrival_ns=context.arrival_ns, context=context
            )
            context.on_disconnect = functools.partial(failed_requests.abandon, self._engine, request)
            if fields.is_timed:
                self._submit_timing(context, request)
            self._inference.submit(request, served)
        except InferError as error:
            _timing_of(context)  # the error carries it, too
            failed_requests.respond(context, request_id or self._find_id(context), model, version, error)

    def check(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        """Reject a request by its headers, before its body has arrived."""
        model, version, headers = arguments["model"], arguments["version"], context.headers
        try:
            is_decoupled = self._inference.served(model, version).is_decoupled
            if is_decoupled and accepted_framing(headers.get(b"accept", b"")) is None:
                raise unsupported(_DECOUPLED)
            coding = headers.get(_CONTENT_CODING, b"").strip().lower()
            if coding not in WINDOW_BITS:
                _check_coding(headers)
                self._check_announced(context)
        except InferError as error:
            failed_requests.respond(context, "", model, version, error)

    def _check_announced(self, context: HttpContext) -> None:
        """Check the announced size against the limit. Raises InferError."""
        text = context.headers.get(_JSON_LENGTH)
        body_bytes = announced_bytes(context.headers)
        if text is None:
            self._check_size("raw binary" if _is_media(context.headers) else "request JSON", body_bytes)
        elif text.isdigit() and len(text) < 20:
            self._check_size(*(("request JSON", int(text)) if int(text) else ("raw binary", body_bytes)))

    # --- large requests -------------------------------------------------------------------------------------------

    def _decode_large(self, context: HttpContext, framing: Framing | None, model: str, version: str) -> None:
        """Decode a large body in slices, then submit the request."""
        _timing_of(context)  # errors carry it, too
        began_ns = time.monotonic_ns()
        job = self._runner.run(
            context.client,
            self._prepare(context, model, version),
            len(context.body),
            functools.partial(self._submit_large, context, framing, began_ns),
            functools.partial(self._reject_large, context, model, version),
        )
        if not job.is_over:
            context.on_disconnect = functools.partial(cancel_job, self._runner, job)

    def _prepare(self, context: HttpContext, model: str, version: str) -> Slices[Prepared]:
        decoded = yield from self._decode_in_slices(context, model, version)
        header, request_id, data = decoded
        return decoded, (yield from count_elements(header, request_id, data))

    def _reject_large(self, context: HttpContext, model: str, version: str, error: InferError) -> None:
        context.on_disconnect = None
        if isinstance(error, ColdModelError):  # it was evicted while the body was decoded
            hold_context(
                context, error, functools.partial(self.handle, context, {"model": model, "version": version})
            )
        else:
            failed_requests.respond(context, self._find_id(context), model, version, error)

    def _submit_large(self, context: HttpContext, framing: Framing | None, began_ns: int, prepared: Prepared) -> None:
        (header, request_id, data), element_counts = prepared
        context.on_disconnect = None
        more = self._cost_fields(context, header.model_name, began_ns)
        try:
            if context.headers.get(b"accept") == _OCTET_STREAM[1]:
                header = with_binary_outputs(header)
            if self._forwarding is not None:
                header = self._forwarding.apply(header, written_fields(context.headers))
            if framing is not None:
                self._submit_streamed(context, framing, header, request_id, data, element_counts)
                return
            on_response = functools.partial(self._on_response, more=more) if more else self._on_response
            request = InferRequest(
                header, data, on_response, id=request_id, arrival_ns=context.arrival_ns, context=context
            )
            request.element_counts = element_counts
            context.on_disconnect = functools.partial(failed_requests.abandon, self._engine, request)
            self._submit_timing(context, request, more)
            self._inference.submit(request)
        except InferError as error:
            failed_requests.respond(context, request_id, header.model_name, header.model_version, error)

    def _cost_fields(self, context: HttpContext, model: str, began_ns: int) -> Headers:
        """Return the header fields with the JSON cost of a request, if its JSON is large."""
        json_length = context.headers.get(_JSON_LENGTH)
        json_bytes = len(context.body) if json_length is None else int(json_length)
        if json_bytes < LARGE_JSON_BYTES or _is_media(context.headers):
            return ()
        return (self._json_cost.report(model, json_bytes, time.monotonic_ns() - began_ns),)

    def trace_fields(self, request: InferRequest) -> TraceFields:
        """Return the trace fields of a request."""
        return fields_of_context(request.context)  # type: ignore[arg-type]  # set in handle

    def _submit_streamed(
        self,
        context: HttpContext,
        framing: Framing,
        header: RequestHeader,
        request_id: str,
        data: Sequence[Buffer],
        element_counts: Sequence[int] | None = None,
    ) -> None:
        """Submit a request whose responses are sent as they arrive, each as a line or an event of JSON."""
        streamed = StreamedResponse(context, framing, _encode_json, self._runner)
        request = streamed.new_request(without_binary_outputs(header), data, request_id)
        request.element_counts = element_counts
        streamed.watch(request, self._engine)
        self._inference.submit(request)

    def _decode_in_slices(self, context: HttpContext, model: str, version: str) -> Slices[Decoded]:
        json_length = self._json_length(context)
        if json_length == 0:
            return self._decode_raw(context, model, version)
        return (yield from self._decoder.decode_in_slices(model, version, context.body, json_length))

    def _json_length(self, context: HttpContext, fields: _Fields | None = None) -> int | None:
        """Return the length of the JSON part: None for the whole body, 0 for a raw tensor. Raises InferError."""
        headers = context.headers
        if _CONTENT_CODING in headers:
            _check_coding(headers)
        text = headers.get(_JSON_LENGTH)
        if text is None:
            # Triton: an empty body is a raw tensor without elements.
            if not len(context.body) or _is_media(context.headers):
                return 0
            self._check_size("request JSON", len(context.body))
            return None
        if not text.removeprefix(b"-").isdigit() or len(text) > _MAX_LENGTH_DIGITS:
            raise invalid_argument(
                f"Unable to parse Inference-Header-Content-Length: '{text[:64].decode('latin-1')}' is not a number"
            )
        json_length = int(text)
        self._check_size("request JSON", json_length)
        if fields is not None:
            fields.json_length = json_length
        return json_length

    def _check_size(self, what: str, size: int) -> None:
        """Check a size. Triton: the limit applies to JSON and raw bodies; a tensor in a binary tail may be larger."""
        if size > self._max_input_bytes:
            raise invalid_argument(
                f"{what} size of {size} bytes exceeds the maximum allowed input size of {self._max_input_bytes} "
                f"bytes. Use --http-max-input-size to increase the limit."
            )

    def _decode_raw(self, context: HttpContext, model: str, version: str) -> Decoded:
        body = context.body
        self._check_size("raw binary", len(body))
        metadata = self._engine.views.model_metadata(model, version)
        batching = self._engine.views.model_config(model, version).max_batch_size > 0
        header, request_id, data = decode_raw(model, version, body, metadata, batching=batching)
        if context.headers.get(b"accept") == _JSON:
            # Triton: the response to a raw body is binary, independent of Accept.
            header = without_binary_outputs(header)
        return header, request_id, data

    def _on_response(self, request: InferRequest, response: InferResponse, more: Headers = ()) -> None:
        """Send a response; `more` are additional header fields."""
        if request.cancelled:
            return  # cancellation has ended the request already
        context: HttpContext = request.context  # type: ignore[assignment]  # set in handle
        header = request.header
        error = response.error
        if error is not None:
            failed_requests.respond(context, request.id, header.model_name, response.header.model_version, error)
            return
        data = response.data
        if data and max(map(len, data)) > LONG_BYTES:
            self._encode_large(context, request, response, more)
            return
        try:
            parts, json_length = encode(request.id, header, response)
        except Exception as unfit:
            error = encoding_error(unfit, request)
            failed_requests.respond(context, request.id, header.model_name, response.header.model_version, error)
            return
        headers = self._headers.get(json_length) or self._make_headers(json_length)
        context.respond(200, (*headers, *more) if more else headers, parts)

    def _submit_timing(self, context: HttpContext, request: InferRequest, more: Headers = ()) -> None:
        """Time a request that is submitted now, if its client asks for it."""
        timing = _timing_of(context)
        if timing is not None:
            request.on_response = functools.partial(self._on_timed_response, timing, more)
            timing.submit(request)

    def _on_timed_response(
        self, timing: RequestTiming, more: Headers, request: InferRequest, response: InferResponse
    ) -> None:
        timing.note_answer(response)
        self._on_response(request, response, more)

    def _encode_large(
        self, context: HttpContext, request: InferRequest, response: InferResponse, more: Headers
    ) -> None:
        """Encode a large JSON response in slices."""
        model, version = request.header.model_name, response.header.model_version
        context.on_disconnect = None
        job = self._runner.run(
            context.client,
            encode_in_slices(request.id, request.header, response),
            sum(map(len, response.data)),
            functools.partial(self._respond, context, more),
            functools.partial(failed_requests.respond, context, request.id, model, version),
            is_part=len(context.body) > SHORT_BYTES,
        )
        if not job.is_over:
            context.on_disconnect = functools.partial(cancel_job, self._runner, job)

    def _respond(self, context: HttpContext, more: Headers, encoded: Encoded) -> None:
        parts, json_length = encoded
        context.respond(200, (*(self._headers.get(json_length) or self._make_headers(json_length)), *more), parts)

    def _make_headers(self, json_length: int | None) -> Headers:
        if json_length is None:
            return JSON_HEADERS
        if len(self._headers) > _CACHED_HEADERS:
            self._headers = {None: JSON_HEADERS}
        headers = (_OCTET_STREAM, (b"Inference-Header-Content-Length", b"%d" % json_length))
        self._headers[json_length] = headers
        return headers

    def _find_id(self, context: HttpContext) -> str:
        """Return the id of a request that could not be decoded, or an empty text."""
        text = context.headers.get(_JSON_LENGTH, b"")
        end = int(text) if text.isdigit() and len(text) < 20 else len(context.body)
        return failed_requests.find_id(context.body[:end])


def _timing_of(context: HttpContext) -> RequestTiming | None:
    return context.start_timing() if context.headers.get(TIMING_FIELD) == TIMING_VALUE else None


def cancel_job(runner: SliceRunner, job: SliceJob, why: CancelReason) -> None:
    """Cancel the decoding of a request or the encoding of a response: the client has disconnected."""
    runner.cancel(job)


def _check_coding(headers: Mapping[bytes, bytes]) -> None:
    """Check that no earlier layer has left the body encoded. Raises InferError."""
    coding = headers.get(_CONTENT_CODING, b"")
    if coding.lower() not in (b"identity", b""):
        name = coding[:64].decode("latin-1")
        raise unsupported(f"Unsupported compression type '{name}'; use gzip, deflate or none")


def _is_media(headers: Mapping[bytes, bytes]) -> bool:
    return headers.get(_CONTENT_TYPE, b"").lower().startswith(_MEDIA)


def _encode_json(request: InferRequest, response: InferResponse) -> Slices[Sequence[Buffer]]:
    if is_long(response):
        parts, _ = yield from encode_in_slices(request.id, request.header, response)
    else:
        parts, _ = encode(request.id, request.header, response)
    return parts
