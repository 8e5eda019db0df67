"""`POST /v2/models/{m}/infer`: body to request, response to body, failures to one log line and an answer."""

import functools
import time
from collections.abc import Mapping
from typing import Protocol

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import InferError, invalid_argument, unsupported
from naiad.core.model import ModelMetadata
from naiad.core.request import InferRequest, RequestHeader
from naiad.core.response import InferResponse
from naiad.core.tensor import Buffer
from naiad.frontend import rest_failure
from naiad.frontend.exchange import Headers, HttpExchange, written_fields
from naiad.frontend.header_forwarding import HeaderForwarding
from naiad.frontend.json_cost import LARGE_JSON_BYTES, JsonCost
from naiad.frontend.rest_stream import Framing, StreamedAnswer, accepted_framing
from naiad.frontend.router import JSON_HEADERS
from naiad.frontend.trace_fields import TraceFields, fields_of_exchange
from naiad.protocol.infer_binary import decode_raw
from naiad.protocol.infer_json import Decoded, InferJsonDecoder
from naiad.protocol.json_response import encode, with_binary_outputs, without_binary_outputs

_JSON_LENGTH = b"inference-header-content-length"
_CONTENT_CODING = b"content-encoding"
_CONTENT_TYPE = b"content-type"
_MEDIA = (b"image/", b"audio/", b"video/")
"""Types of bodies that are a raw tensor without a field that says so: they cannot be JSON."""
_JSON = b"application/json"
_OCTET_STREAM = (b"Content-Type", b"application/octet-stream")
_CACHED_HEADERS = 4096
MAX_INPUT_BYTES = 64 * 1024 * 1024
"""Default of --http-max-input-size."""


class InferEngine(Protocol):
    """What inference over HTTP asks of the engine; all of it is called on the loop."""

    def submit(self, request: InferRequest) -> None:
        """Submit a request. Raises InferError when it is refused at the door."""

    def cancel(self, request: InferRequest) -> bool:
        """Cancel a submitted request; True when it was dropped, False when something executes it."""

    def is_decoupled(self, name: str, version: str = "") -> bool:
        """Tell whether a model is decoupled. Raises InferError for an unknown model."""

    def model_metadata(self, name: str, version: str = "") -> ModelMetadata:
        """Return names, datatypes and shapes of a ready model."""

    def model_config(self, name: str, version: str = "") -> ModelConfig:
        """Return the configuration of a ready model."""


class InferRoute:
    """Inference over HTTP."""

    protocol = "HTTP"  # for traces

    def __init__(
        self,
        engine: InferEngine,
        max_input_bytes: int = MAX_INPUT_BYTES,
        forwarding: HeaderForwarding | None = None,
    ) -> None:
        self._engine = engine
        self._max_input_bytes = max_input_bytes
        self._forwarding = forwarding
        self._decoder = InferJsonDecoder()
        self._json_cost = JsonCost()
        self._binary_headers: dict[int, Headers] = {}

    def handle(self, exchange: HttpExchange, arguments: Mapping[str, str]) -> None:
        """Submit the request of an exchange, or answer it with the reason why not."""
        # hot: bench/micro_http1.py
        model, version = arguments["model"], arguments["version"]
        accept = exchange.headers.get(b"accept")
        framing = None if accept is None or accept == b"*/*" else accepted_framing(accept)
        request_id = ""
        try:
            # Before anything is parsed: an unknown model wins over bad tensors.
            if self._engine.is_decoupled(model, version) and framing is None:
                raise unsupported("HTTP end point doesn't support models with decoupled transaction policy")
            on_response = self._on_response
            if len(exchange.body) < LARGE_JSON_BYTES:
                header, request_id, data = self._decode(exchange, model, version)
            else:
                (header, request_id, data), more = self._decode_large(exchange, model, version)
                on_response = functools.partial(self._on_response, more=more)
            if accept == _OCTET_STREAM[1]:
                header = with_binary_outputs(header)
            if self._forwarding is not None:
                header = self._forwarding.apply(header, written_fields(exchange.headers))
            if framing is not None:
                self._submit_streamed(exchange, framing, header, request_id, data)
                return
            request = InferRequest(
                header, data, on_response, id=request_id, arrival_ns=exchange.arrival_ns, context=exchange
            )
            exchange.on_disconnect = functools.partial(rest_failure.abandon, self._engine, request)
            self._engine.submit(request)
        except InferError as error:
            rest_failure.respond(exchange, request_id or self._find_id(exchange), model, version, error)

    def trace_fields(self, request: InferRequest) -> TraceFields:
        """Return what the request of a client says about its trace."""
        return fields_of_exchange(request.context)  # type: ignore[arg-type]  # set in handle

    def _submit_streamed(
        self, exchange: HttpExchange, framing: Framing, header: RequestHeader, request_id: str, data: list[Buffer]
    ) -> None:
        """Submit a request whose responses are sent as they come, each a line or an event of JSON."""
        answer = StreamedAnswer(exchange, framing, _encode_json)
        request = InferRequest(
            without_binary_outputs(header), data, answer.take, id=request_id, arrival_ns=exchange.arrival_ns
        )
        answer.watch(request, self._engine)
        self._engine.submit(request)

    def _decode_large(self, exchange: HttpExchange, model: str, version: str) -> tuple[Decoded, Headers]:
        """Decode a body that may hold much JSON; the fields of the answer tell what it cost, if it does."""
        began_ns = time.monotonic_ns()
        decoded = self._decode(exchange, model, version)
        decode_ns = time.monotonic_ns() - began_ns
        json_bytes = int(exchange.headers.get(_JSON_LENGTH, len(exchange.body)))
        if json_bytes < LARGE_JSON_BYTES or _is_media(exchange):
            return decoded, ()
        return decoded, (self._json_cost.tell(model, json_bytes, decode_ns),)

    def _decode(self, exchange: HttpExchange, model: str, version: str) -> Decoded:
        headers = exchange.headers
        if _CONTENT_CODING in headers and headers[_CONTENT_CODING].lower() not in (b"identity", b""):
            coding = headers[_CONTENT_CODING][:64].decode("latin-1")
            raise unsupported(f"Unsupported compression type '{coding}'; use gzip, deflate or none")
        text = headers.get(_JSON_LENGTH)
        if text is None:
            # Triton: an empty body is a raw tensor without elements.
            if not len(exchange.body) or _is_media(exchange):
                return self._decode_raw(exchange, model, version)
            self._check_size("request JSON", len(exchange.body))
            return self._decoder.decode(model, version, exchange.body, None)
        try:
            json_length = int(text)
        except ValueError:
            raise invalid_argument(
                f"Unable to parse Inference-Header-Content-Length: '{text[:64].decode('latin-1')}' is not a number"
            ) from None
        if not json_length:
            return self._decode_raw(exchange, model, version)
        self._check_size("request JSON", json_length)
        return self._decoder.decode(model, version, exchange.body, json_length)

    def _check_size(self, what: str, size: int) -> None:
        """Triton: bounds JSON and raw bodies; a tensor in a binary tail may be larger."""
        if size > self._max_input_bytes:
            raise invalid_argument(
                f"{what} size of {size} bytes exceeds the maximum allowed input size of {self._max_input_bytes} "
                f"bytes. Use --http-max-input-size to increase the limit."
            )

    def _decode_raw(self, exchange: HttpExchange, model: str, version: str) -> Decoded:
        body = exchange.body
        self._check_size("raw binary", len(body))
        metadata = self._engine.model_metadata(model, version)
        batching = self._engine.model_config(model, version).max_batch_size > 0
        header, request_id, data = decode_raw(model, version, body, metadata, batching=batching)
        if exchange.headers.get(b"accept") == _JSON:
            # Triton: the answer to a raw body is binary, whatever the client accepts.
            header = without_binary_outputs(header)
        return header, request_id, data

    def _on_response(self, request: InferRequest, response: InferResponse, more: Headers = ()) -> None:
        """Answer an exchange; `more` are fields beside those that every answer has."""
        if request.cancelled:
            return  # it was answered, if anyone listened, when it was cancelled
        exchange: HttpExchange = request.context  # type: ignore[assignment]  # set in handle
        header = request.header
        error = response.error
        if error is not None:
            rest_failure.respond(exchange, request.id, header.model_name, response.header.model_version, error)
            return
        try:
            parts, json_length = encode(request.id, header, response)
        except InferError as unfit:
            rest_failure.respond(exchange, request.id, header.model_name, response.header.model_version, unfit)
            return
        if json_length is None:
            exchange.respond(200, (*JSON_HEADERS, *more) if more else JSON_HEADERS, parts)
            return
        headers = self._binary_headers.get(json_length) or self._make_headers(json_length)
        exchange.respond(200, (*headers, *more) if more else headers, parts)

    def _make_headers(self, json_length: int) -> Headers:
        if len(self._binary_headers) >= _CACHED_HEADERS:
            self._binary_headers.clear()
        headers = (_OCTET_STREAM, (b"Inference-Header-Content-Length", b"%d" % json_length))
        self._binary_headers[json_length] = headers
        return headers

    def _find_id(self, exchange: HttpExchange) -> str:
        """Return the id of a request that could not be decoded, if there is one to be found."""
        text = exchange.headers.get(_JSON_LENGTH, b"")
        end = int(text) if text.isdigit() and len(text) < 20 else len(exchange.body)
        return "" if end > self._max_input_bytes else rest_failure.find_id(exchange.body[:end])


def _is_media(exchange: HttpExchange) -> bool:
    return exchange.headers.get(_CONTENT_TYPE, b"").lower().startswith(_MEDIA)


def _encode_json(request: InferRequest, response: InferResponse) -> bytes:
    parts, _ = encode(request.id, request.header, response)
    return b"".join(parts)
