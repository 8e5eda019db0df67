"""`POST /v2/models/{m}/generate` and `generate_stream`: flat JSON in and out, once or as server-sent events.

`GET .../generate_stream` takes the same members from the query, for EventSource.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from naiad.core.errors import InferError, cause_of, internal, invalid_argument, wrong_request
from naiad.core.request import InferRequest, RequestHeader
from naiad.core.response import InferResponse
from naiad.core.slices import Slices, finish
from naiad.core.tensor import Buffer
from naiad.engine.admission import count_elements
from naiad.engine.engine import Engine
from naiad.frontend import failed_requests
from naiad.frontend.context import CancelReason, HttpContext, announced_bytes
from naiad.frontend.header_forwarding import HeaderForwarding, TraceFields, fields_of_context
from naiad.frontend.long_work.slice_runner import SliceRunner
from naiad.frontend.long_work.thread_pool import RunInThread, run_at_once
from naiad.frontend.reply_headers import JSON_HEADERS
from naiad.frontend.rest.infer import MAX_INPUT_BYTES, Prepared, cancel_job
from naiad.frontend.rest.picture_folder import PictureFolder
from naiad.frontend.rest.stream import GENERATE_EVENTS, StreamedResponse
from naiad.frontend.router import Action
from naiad.operations.inference import GENERATE, GENERATE_STREAM, GENERATE_STREAM_OF_QUERY
from naiad.operations.operation import AnyOperation
from naiad.protocol.generate import Inputs, RowColumns, columns_of, decode_generate, encode_generate, inputs_of
from naiad.protocol.generate_query import document_of_query
from naiad.wire.header_fields import written_fields

_CONTENT_CODING = b"content-encoding"
_CACHED_MODELS = 1024


class ResponseReceiver(Protocol):
    """Makes a request and receives its responses."""

    def new_request(self, header: RequestHeader, data: Sequence[Buffer], request_id: str) -> InferRequest:
        """Return the request."""

    def watch(self, request: InferRequest, engine: Engine) -> None:
        """Cancel the request when its client disconnects."""


class GenerateRoutes:
    """The two endpoints of the generate extension, for decoupled and ordinary models."""

    def __init__(
        self,
        engine: Engine,
        max_input_bytes: int = MAX_INPUT_BYTES,
        forwarding: HeaderForwarding | None = None,
        runner: SliceRunner | None = None,
        run_in_thread: RunInThread = run_at_once,
    ) -> None:
        """`run_in_thread` decodes pictures, which takes too long for the event loop."""
        self._engine = engine
        self._inference = engine.inference
        self._runner = runner or SliceRunner()
        self._run_in_thread = run_in_thread
        self._max_input_bytes = max_input_bytes
        self._forwarding = forwarding
        self._inputs: dict[tuple[str, str], tuple[object, Inputs, RowColumns]] = {}
        """By model and version: the configuration and what is derived from it."""

    def actions(self) -> Mapping[AnyOperation, Action]:
        """Return the actions of the operations."""
        return {
            GENERATE: self.generate,
            GENERATE_STREAM: self.generate_stream,
            GENERATE_STREAM_OF_QUERY: self.stream_of_query,
        }

    def checks(self) -> Mapping[AnyOperation, Action]:
        """Return what rejects requests by their headers."""
        return {GENERATE: self.check, GENERATE_STREAM: self.check}

    def generate(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        """Respond with the only response of a request."""
        receiver = _OnlyResponse(context, self._engine, self._runner)
        self._read(context, arguments, functools.partial(self._submit, context, receiver))

    def generate_stream(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        """Respond with an event for each response."""
        receiver = StreamedResponse(context, GENERATE_EVENTS, _encode, self._runner)
        self._read(context, arguments, functools.partial(self._submit, context, receiver))

    def stream_of_query(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        """Respond with an event for each response to the request that the query of the URL holds."""
        model, version = arguments["model"], arguments["version"]
        try:
            inputs, _ = self._inputs_of(model, version)
            if context.method == "HEAD":  # it must not execute the model
                context.respond(200, GENERATE_EVENTS.headers, ())
                return
            context.body = document_of_query(context.query, inputs)
        except InferError as error:
            self._reject(context, model, version, error)
            return
        self.generate_stream(context, arguments)

    def execute(self, context: HttpContext, model: str, receiver: ResponseReceiver) -> None:
        """Submit a request with the members in the body of `context`; errors are responses of `context`."""
        self._read(context, {"model": model, "version": ""}, functools.partial(self._submit, context, receiver))

    def check(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        """Reject a request by its headers, before its body has arrived."""
        model, version = arguments["model"], arguments["version"]
        try:
            self._inputs_of(model, version)
            self._check_body(context, announced_bytes(context.headers))
        except InferError as error:
            failed_requests.respond(context, "", model, version, error)

    def _check_body(self, context: HttpContext, body_bytes: int) -> None:
        """Check encoding and size. Raises InferError."""
        if context.headers.get(_CONTENT_CODING, b"").lower() not in (b"identity", b""):
            raise invalid_argument("Unsupported content-encoding, only 'identity' is supported.")
        if body_bytes > self._max_input_bytes:
            raise invalid_argument(
                f"request JSON size of {body_bytes} bytes exceeds the maximum allowed input size of "
                f"{self._max_input_bytes} bytes. Use --http-max-input-size to increase the limit."
            )

    def _read(self, context: HttpContext, arguments: Mapping[str, str], submit: Callable[[Prepared], None]) -> None:
        """Decode and submit a request, or respond with the error."""
        model, version, body = arguments["model"], arguments["version"], context.body
        reject = functools.partial(self._reject, context, model, version)
        try:
            # Before parsing: the error of an unknown model has priority over an invalid body.
            inputs, columns = self._inputs_of(model, version)
            self._check_body(context, len(body))
        except InferError as error:
            reject(error)
            return
        slices = self._prepare(model, version, body, inputs, columns)
        if columns.pictures is not None:
            self._read_pictures(context, slices, submit, reject)
            return
        job = self._runner.run(context.client, slices, len(body), submit, reject)
        if not job.is_over:
            context.on_disconnect = functools.partial(cancel_job, self._runner, job)

    def _read_pictures(
        self,
        context: HttpContext,
        slices: Slices[Prepared],
        submit: Callable[[Prepared], None],
        reject: Callable[[InferError], None],
    ) -> None:
        """Decode a request, perhaps of pictures, in a thread."""
        is_gone = False

        def leave(reason: CancelReason) -> None:
            nonlocal is_gone
            is_gone = True

        def done(prepared: Prepared) -> None:
            if not is_gone:
                submit(prepared)

        def failed(error: Exception) -> None:
            if not is_gone:
                reject(error if isinstance(error, InferError) else internal(cause_of(error)))

        context.on_disconnect = leave
        self._run_in_thread(functools.partial(finish, slices), done, failed)

    def _prepare(
        self, model: str, version: str, body: Buffer, inputs: Inputs, columns: RowColumns
    ) -> Slices[Prepared]:
        decoded = yield from decode_generate(model, version, body, inputs, self._max_input_bytes, columns)
        return decoded, (yield from count_elements(*decoded))

    def _reject(self, context: HttpContext, model: str, version: str, error: InferError) -> None:
        failed_requests.respond(context, failed_requests.find_id(context.body), model, version, error)

    def _submit(self, context: HttpContext, receiver: ResponseReceiver, prepared: Prepared) -> None:
        (header, request_id, data), element_counts = prepared
        try:
            if self._forwarding is not None:
                header = self._forwarding.apply(header, written_fields(context.headers))
            request = receiver.new_request(header, data, request_id)
            request.element_counts = element_counts
            receiver.watch(request, self._engine)
            self._inference.submit(request)
        except InferError as error:
            failed_requests.respond(context, request_id, header.model_name, header.model_version, error)

    def _inputs_of(self, model: str, version: str) -> tuple[Inputs, RowColumns]:
        config = self._engine.views.model_config(model, version)
        known = self._inputs.get((model, version))
        if known is not None and known[0] is config:
            return known[1], known[2]
        if len(self._inputs) >= _CACHED_MODELS:
            del self._inputs[next(iter(self._inputs))]
        inputs, columns = inputs_of(config), columns_of(config)
        if columns.pictures is not None and columns.pictures.folder:
            columns = replace(columns, read_file=PictureFolder(columns.pictures.folder).read)
        self._inputs[(model, version)] = (config, inputs, columns)
        return inputs, columns


def _encode(request: InferRequest, response: InferResponse) -> Slices[Sequence[bytes]]:
    return encode_generate(
        request.id, response, nan_is_null=request.header.nan_is_null, json_form=request.header.json_form
    )


class _OnlyResponse:
    """The response of a request with exactly one response, which is known when the final one has arrived."""

    protocol = "HTTP"  # for traces
    transport = "generate"  # for recordings
    __slots__ = ("_context", "_engine", "_is_over", "_outcome", "_runner")

    def __init__(self, context: HttpContext, engine: Engine, runner: SliceRunner) -> None:
        self._context = context
        self._engine = engine
        self._runner = runner
        self._outcome: InferResponse | InferError | None = None
        self._is_over = False

    def new_request(self, header: RequestHeader, data: Sequence[Buffer], request_id: str) -> InferRequest:
        """Return the request whose response this sends."""
        return InferRequest(header, data, self.take, id=request_id, arrival_ns=self._context.arrival_ns)

    def watch(self, request: InferRequest, engine: Engine) -> None:
        """Cancel the request when its client disconnects."""
        self._context.on_disconnect = functools.partial(failed_requests.abandon, engine, request)

    def trace_fields(self, request: InferRequest) -> TraceFields:
        """Return the trace fields of a request."""
        return fields_of_context(self._context)

    def take(self, request: InferRequest, response: InferResponse) -> None:
        """Keep a response, and send it when the final one arrives."""
        if self._is_over or request.cancelled:
            return
        if not response.empty_final or response.error is not None:
            if self._outcome is not None:
                # Further responses are not needed.
                self._fail(request, response, _wrong_count())
                self._engine.inference.cancel(request)
                return
            self._outcome = response.error or response
        if response.final:
            self._finish(request, response)

    def _finish(self, request: InferRequest, response: InferResponse) -> None:
        receiver = self._outcome
        if not isinstance(receiver, InferResponse):
            self._fail(request, response, receiver or _wrong_count())
            return
        self._is_over = True
        self._context.on_disconnect = None
        job = self._runner.run(
            self._context.client,
            encode_generate(
                request.id, receiver, nan_is_null=request.header.nan_is_null, json_form=request.header.json_form
            ),
            sum(map(len, receiver.data)),
            self._respond,
            functools.partial(self._fail, request, response),
        )
        if not job.is_over:
            self._context.on_disconnect = functools.partial(cancel_job, self._runner, job)

    def _respond(self, text: Sequence[bytes]) -> None:
        self._context.respond(200, JSON_HEADERS, text)

    def _fail(self, request: InferRequest, response: InferResponse, error: InferError) -> None:
        self._is_over = True
        model = request.header.model_name
        failed_requests.respond(self._context, request.id, model, response.header.model_version, error)


def _wrong_count() -> InferError:
    return wrong_request(
        "generate expects model to produce exactly 1 response, use generate stream for model that generates various "
        "number of responses"
    )
