"""The container contracts of clouds: routes of their own endpoints, forwarded to the REST routes.

- Azure Machine Learning: a deployment names the port and path of its scoring, liveness and readiness routes.
- Amazon SageMaker: /ping and /invocations, and the routes of multi-model endpoints (`multi_model`).
- Vertex AI: health and predict routes. A header field sends a prediction to any path of the REST routes that reads,
  with the method of that path.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from naiad.core.errors import excerpt, invalid_argument, permission_denied
from naiad.core.tensor import Buffer
from naiad.engine.engine import Engine
from naiad.frontend.access.access import FORWARDED
from naiad.frontend.clouds.multi_model import MultiModelRoutes, is_out_of_memory
from naiad.frontend.context import HttpContext, HttpContextLayer
from naiad.frontend.control.control_audit import audited
from naiad.frontend.default_model import default_model, only_model
from naiad.frontend.router import Action, Route, Router
from naiad.operations.inference import GENERATE, INFER
from naiad.operations.models import SERVER_LIVE, SERVER_READY
from naiad.operations.operation import AnyOperation
from naiad.operations.table import BY_NAME, operations_of
from naiad.options.network.cloud_options import AzureMlOptions, SageMakerOptions, VertexAiOptions
from naiad.protocol.rows import looks_like_rows
from naiad.wire.header_fields import Headers, copy_of

_JSON_LENGTH = b"inference-header-content-length"
_CONTENT_TYPE = b"content-type"
_SAGEMAKER_MIME_TYPE = b"application/vnd.sagemaker-triton.binary+json;json-header-size="
_VERTEX_MIME_TYPE = b"application/vnd.vertex-ai-triton.binary+json;json-header-size="
_INSUFFICIENT_STORAGE = 507
"""SageMaker then unloads models that were not used for long, and sends the request again."""
_REDIRECT = b"x-vertex-ai-triton-redirect"
_VERTEX_ADVICE = "set --vertex-ai-default-model"


class Handler(Protocol):
    """The REST routes: handle a request, or reject it by its headers."""

    def handle(self, context: HttpContext) -> None:
        """Handle a request."""

    def reject(self, context: HttpContext) -> None:
        """Respond to a request without its body if its headers are enough to reject it."""


def _inference_path(context: HttpContext, model: str, operation: AnyOperation = INFER) -> str:
    """Return the path of an inference; rows in JSON (`{"instances": [...]}`) have the form of generate."""
    if operation is INFER and _JSON_LENGTH not in context.headers and looks_like_rows(context.body):
        operation = GENERATE
    return operation.path(model=model)


def _forward(handle: Callable[[HttpContext], object], operation: AnyOperation) -> Action:
    """Return an action that handles a request as one for an operation of the REST routes."""

    def forward(context: HttpContext, arguments: Mapping[str, str]) -> None:
        context.path = operation.path()
        handle(context)

    return forward


def azure_ml_router(options: AzureMlOptions, engine: Engine, rest: Handler) -> Router:
    """Return the router of the Azure ML endpoint."""

    def model() -> str:
        return default_model(engine, options.default_model, "set --azure-ml-default-model")

    def unchanged(context: HttpContext, arguments: Mapping[str, str]) -> None:
        rest.handle(context)

    def check(context: HttpContext, arguments: Mapping[str, str]) -> None:
        rest.reject(context)

    def score(context: HttpContext, arguments: Mapping[str, str]) -> None:
        context.path = _inference_path(context, model())
        rest.handle(context)

    def check_score(context: HttpContext, arguments: Mapping[str, str]) -> None:
        context.path = INFER.path(model=model())
        rest.reject(context)

    return Router(
        [
            Route("/", "health", {"GET": _forward(rest.handle, SERVER_LIVE)}),
            Route("/ready", "health", {"GET": _forward(rest.handle, SERVER_READY)}),
            Route("/score", "inference", {"POST": score}, check_score),
            Route(r"/v2.*", FORWARDED, {"GET": unchanged, "POST": unchanged}, check),
        ],
        inference_path="/score",
    )


def sagemaker_router(options: SageMakerOptions, rest: Handler, models: MultiModelRoutes) -> Router:
    """Return the router of the SageMaker endpoint."""

    inference = BY_NAME[options.inference_type]
    ping = SERVER_LIVE if options.ping_mode == "live" else SERVER_READY

    def invoke(context: HttpContext, model: str, operation: AnyOperation) -> None:
        context.headers = _binary_headers(context, _SAGEMAKER_MIME_TYPE)
        context.path = _inference_path(context, model, operation)
        rest.handle(_Invocation(context))

    def invoke_default(context: HttpContext, arguments: Mapping[str, str]) -> None:
        invoke(context, options.default_model, inference)

    def invoke_model(context: HttpContext, arguments: Mapping[str, str]) -> None:
        invoke(context, models.model(arguments["name"]), INFER)

    def check_default(context: HttpContext, arguments: Mapping[str, str]) -> None:
        context.path = inference.path(model=options.default_model)
        rest.reject(context)

    def check_model(context: HttpContext, arguments: Mapping[str, str]) -> None:
        models.model(arguments["name"])  # raises for one that is not loaded

    named = "/models/(?P<name>[^/]+)"
    return Router(
        [
            Route("/ping", "health", {"GET": _forward(rest.handle, ping)}),
            Route("/invocations", "inference", {"POST": invoke_default}, check_default),
            Route("/models/?", "model-repository", {"GET": models.list, "POST": audited(models.load)}),
            Route(named, "model-repository", {"GET": models.get, "DELETE": audited(models.unload)}),
            Route(named + "/invoke", "inference", {"POST": invoke_model}, check_model),
        ],
        inference_path="/invocations",
    )


class _Invocation(HttpContextLayer):
    """A request whose response has the length of its JSON part in the content type."""

    __slots__ = ()

    def respond(self, status: int, headers: Headers, parts: Sequence[Buffer]) -> None:
        """Send a response; one that reports a lack of memory gets the status that SageMaker knows."""
        if status >= 400 and is_out_of_memory(bytes(parts[0]).decode("utf-8", "replace") if parts else ""):
            status = _INSUFFICIENT_STORAGE
        length = next((value for name, value in headers if name.lower() == _JSON_LENGTH), None)
        if length is not None:
            kept = [field for field in headers if field[0].lower() not in (_JSON_LENGTH, b"content-type")]
            headers = ((b"Content-Type", _SAGEMAKER_MIME_TYPE + length), *kept)
        self._context.respond(status, headers, parts)


class VertexAi:
    """The routes of the Vertex AI endpoint."""

    def __init__(
        self, options: VertexAiOptions, engine: Engine, rest: Handler, metrics: Callable[[HttpContext], object]
    ) -> None:
        """`metrics` responds to `GET /metrics`."""
        self._options = options
        self._engine = engine
        self._rest = rest
        self._metrics = metrics

    def router(self) -> Router:
        """Return the router of the endpoint."""
        health, predict = self._options.health_route, self._options.predict_route
        actions: dict[str, dict[str, Action]] = {health: {}, predict: {}}  # one entry if both are the same path
        actions[health]["GET"] = _forward(self._rest.handle, SERVER_READY)
        actions[predict]["POST"] = self._predict
        routes = [
            Route(re.escape(path), "inference" if path == predict else "health", by_method, self._check)
            for path, by_method in actions.items()
        ]
        return Router(routes, inference_path=predict)

    def check_model(self) -> None:
        """Raise InferError if there is no default model. Triton: the server then does not start."""
        model = self._options.default_model or only_model(self._engine, _VERTEX_ADVICE)
        if all(
            model not in (row.name, getattr(row.name, "name", ""))
            for row in self._engine.views.repository_index(True)
        ):
            raise invalid_argument(f"Expect the default model '{excerpt(model)}' is loaded")

    def _default_model(self) -> str:
        return default_model(self._engine, self._options.default_model, _VERTEX_ADVICE)

    def _predict(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        path = self._redirect(context)
        model = self._default_model() if path is None else ""
        context.headers = _binary_headers(context, _VERTEX_MIME_TYPE)
        if path == "/metrics":
            context.path, context.method = path, "GET"
            self._metrics(context)
            return
        if path is None:
            context.path = _inference_path(context, model)
        else:
            context.path, context.method = path, _method(path)
        self._rest.handle(context)

    def _check(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        if context.method != "POST":
            return
        path = self._redirect(context)
        if path == "/metrics":
            return
        if path is None:
            context.path = INFER.path(model=self._default_model())
        else:
            context.path, context.method = path, _method(path)
        self._rest.reject(context)

    def _redirect(self, context: HttpContext) -> str | None:
        """Return the REST path that a prediction asks for; None if it asks for none."""
        redirect = context.headers.get(_REDIRECT)
        return None if redirect is None else f"/{redirect.decode('latin-1')}"


def _method(path: str) -> str:
    """Return the method of a redirected request. Raises InferError(PERMISSION_DENIED) if it changes the server."""
    operations = operations_of(path)
    reading = [method for method, operation in operations.items() if operation.kind == "query"]
    if operations and not reading:
        raise permission_denied(
            f"X-Vertex-Ai-Triton-Redirect: {excerpt(path[1:])} changes the server; use the HTTP endpoint for it"
        )
    return "POST" if "POST" in reading else "GET"


def _binary_headers(context: HttpContext, mime_type: bytes) -> Mapping[bytes, bytes]:
    """Return the header fields of a request with the length of its JSON part from the content type.

    `mime_type` ends with `json-header-size=`. Fields of other content types stay. Raises InferError(INVALID_ARG) with
    Triton's texts.
    """
    content_type = context.headers.get(_CONTENT_TYPE, b"")
    place = content_type.find(mime_type)
    if place < 0:
        return context.headers
    if place > 0:
        raise invalid_argument(
            f"expect MIME type for binary data starts with '{mime_type.decode()}', got: {_shown(content_type)}"
        )
    text = content_type[len(mime_type) :].strip()
    if not text.removeprefix(b"-").isdigit():
        raise invalid_argument(f"Unable to parse inference header size, got: {_shown(text)}")
    if text.startswith(b"-") or len(text) > 18 or int(text) > len(context.body):
        raise invalid_argument(
            f"inference header size should be in range (0, {len(context.body)}), got: {_shown(text)}"
        )
    fields = copy_of(context.headers)
    fields[_JSON_LENGTH] = text
    return fields


def _shown(text: bytes) -> str:
    return excerpt(text.decode("latin-1"))
