"""`POST /v2/models/{m}/generate` and `generate_stream`: flat JSON in and out, once or as server-sent events."""

import functools
from collections.abc import Callable, Mapping

from naiad.core.errors import InferError, internal, invalid_argument
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse
from naiad.frontend import rest_failure
from naiad.frontend.exchange import HttpExchange, written_fields
from naiad.frontend.header_forwarding import HeaderForwarding
from naiad.frontend.rest_infer import MAX_INPUT_BYTES, InferEngine
from naiad.frontend.rest_stream import GENERATE_EVENTS, StreamedAnswer
from naiad.frontend.router import JSON_HEADERS
from naiad.frontend.trace_fields import TraceFields, fields_of_exchange
from naiad.protocol.generate_json import Inputs, decode_generate, encode_generate, inputs_of

OnResponse = Callable[[InferRequest, InferResponse], object]

_CONTENT_CODING = b"content-encoding"
_CACHED_MODELS = 1024


class GenerateRoutes:
    """The two endpoints of the generate extension, for decoupled models and ordinary ones."""

    def __init__(
        self,
        engine: InferEngine,
        max_input_bytes: int = MAX_INPUT_BYTES,
        forwarding: HeaderForwarding | None = None,
    ) -> None:
        self._engine = engine
        self._max_input_bytes = max_input_bytes
        self._forwarding = forwarding
        self._inputs: dict[tuple[str, str], tuple[object, Inputs]] = {}
        """By model and version: the configuration, and what was made of it."""

    def generate(self, exchange: HttpExchange, arguments: Mapping[str, str]) -> None:
        """Answer with the only response of a request."""
        request = self._read(exchange, arguments, _OnlyAnswer(exchange, self._engine).take)
        if request is not None:
            exchange.on_disconnect = functools.partial(rest_failure.abandon, self._engine, request)
            self._submit(exchange, request)

    def generate_stream(self, exchange: HttpExchange, arguments: Mapping[str, str]) -> None:
        """Answer with an event for each response."""
        answer = StreamedAnswer(exchange, GENERATE_EVENTS, _encode)
        request = self._read(exchange, arguments, answer.take)
        if request is not None:
            answer.watch(request, self._engine)
            self._submit(exchange, request)

    def _read(
        self, exchange: HttpExchange, arguments: Mapping[str, str], on_response: OnResponse
    ) -> InferRequest | None:
        """Return the request of an exchange; None when it was answered with the reason why there is none."""
        model, version, body = arguments["model"], arguments["version"], exchange.body
        try:
            # Before anything is parsed: an unknown model wins over a bad body.
            inputs = self._inputs_of(model, version)
            if exchange.headers.get(_CONTENT_CODING, b"").lower() not in (b"identity", b""):
                raise invalid_argument("Unsupported content-encoding, only 'identity' is supported.")
            if len(body) > self._max_input_bytes:
                raise invalid_argument(
                    f"request JSON size of {len(body)} bytes exceeds the maximum allowed input size of "
                    f"{self._max_input_bytes} bytes. Use --http-max-input-size to increase the limit."
                )
            header, request_id, data = decode_generate(model, version, body, inputs, self._max_input_bytes)
            if self._forwarding is not None:
                header = self._forwarding.apply(header, written_fields(exchange.headers))
        except InferError as error:
            request_id = rest_failure.find_id(body) if len(body) <= self._max_input_bytes else ""
            rest_failure.respond(exchange, request_id, model, version, error)
            return None
        return InferRequest(header, data, on_response, id=request_id, arrival_ns=exchange.arrival_ns)

    def _inputs_of(self, model: str, version: str) -> Inputs:
        config = self._engine.model_config(model, version)
        known = self._inputs.get((model, version))
        if known is not None and known[0] is config:
            return known[1]
        if len(self._inputs) >= _CACHED_MODELS:
            del self._inputs[next(iter(self._inputs))]
        inputs = inputs_of(config)
        self._inputs[(model, version)] = (config, inputs)
        return inputs

    def _submit(self, exchange: HttpExchange, request: InferRequest) -> None:
        try:
            self._engine.submit(request)
        except InferError as error:
            header = request.header
            rest_failure.respond(exchange, request.id, header.model_name, header.model_version, error)


def _encode(request: InferRequest, response: InferResponse) -> bytes:
    return encode_generate(request.id, response)


class _OnlyAnswer:
    """The answer of a request with exactly one response, which is known when the final one has come."""

    protocol = "HTTP"  # for traces
    __slots__ = ("_answer", "_engine", "_exchange", "_is_over")

    def __init__(self, exchange: HttpExchange, engine: InferEngine) -> None:
        self._exchange = exchange
        self._engine = engine
        self._answer: bytes | InferError | None = None
        self._is_over = False

    def trace_fields(self, request: InferRequest) -> TraceFields:
        """Return what the request of a client says about its trace."""
        return fields_of_exchange(self._exchange)

    def take(self, request: InferRequest, response: InferResponse) -> None:
        """Keep a response, and answer with it when it is the final one."""
        if self._is_over or request.cancelled:
            return
        if not response.empty_final or response.error is not None:
            if self._answer is not None:
                # What else would come is of no use to anyone.
                self._fail(request, response, _wrong_count())
                self._engine.cancel(request)
                return
            self._answer = response.error or self._encode(request, response)
        if response.final:
            self._finish(request, response)

    def _encode(self, request: InferRequest, response: InferResponse) -> bytes | InferError:
        try:
            return encode_generate(request.id, response)
        except InferError as unfit:
            return unfit

    def _finish(self, request: InferRequest, response: InferResponse) -> None:
        answer = self._answer
        if isinstance(answer, bytes):
            self._is_over = True
            self._exchange.respond(200, JSON_HEADERS, (answer,))
        else:
            self._fail(request, response, answer or _wrong_count())

    def _fail(self, request: InferRequest, response: InferResponse, error: InferError) -> None:
        self._is_over = True
        model = request.header.model_name
        rest_failure.respond(self._exchange, request.id, model, response.header.model_version, error)


def _wrong_count() -> InferError:
    return internal(
        "generate expects model to produce exactly 1 response, use generate stream for model that generates various "
        "number of responses"
    )
