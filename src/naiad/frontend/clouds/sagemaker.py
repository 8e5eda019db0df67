"""Amazon SageMaker: /ping and /invocations of its container contract, and the routes of multi-model endpoints."""

from collections.abc import Mapping, Sequence

from naiad.core.tensor import Buffer
from naiad.frontend.clouds.forwarding import JSON_LENGTH, Forwarded, Handler, binary_headers
from naiad.frontend.clouds.multi_model import MultiModelRoutes, is_out_of_memory
from naiad.frontend.context import HttpContext
from naiad.frontend.router import Route, Router
from naiad.options.network.clouds import SageMakerOptions
from naiad.wire.header_fields import Headers

_MIME_TYPE = b"application/vnd.sagemaker-triton.binary+json;json-header-size="
_INSUFFICIENT_STORAGE = 507
"""SageMaker then unloads models that were not used for long, and sends the request again."""


class SageMaker:
    """The routes of the SageMaker endpoint."""

    def __init__(self, options: SageMakerOptions, rest: Handler, models: MultiModelRoutes) -> None:
        self._ping_path = f"/v2/health/{options.ping_mode}"
        self._invocations_path = f"/v2/models/{options.default_model}/{options.inference_type}"
        self._rest = rest
        self._models = models

    def router(self) -> Router:
        """Return the router of the endpoint."""
        models = self._models
        return Router(
            [
                Route("/ping", {"GET": self._ping}, category="health"),
                Route("/invocations", {"POST": self._invoke}, self._check, "inference"),
                Route("/models/?", {"GET": models.list, "POST": models.load}, category="model-repository"),
                Route(
                    "/models/(?P<name>[^/]+)",
                    {"GET": models.get, "DELETE": models.unload},
                    category="model-repository",
                ),
                Route("/models/(?P<name>[^/]+)/invoke", {"POST": self._invoke_model}, self._check_model, "inference"),
            ]
        )

    def _ping(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        self._rest.handle(Forwarded(context, self._ping_path))

    def _invoke(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        self._rest.handle(_Invocation(context, self._invocations_path, headers=binary_headers(context, _MIME_TYPE)))

    def _check(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        self._rest.reject(Forwarded(context, self._invocations_path))

    def _invoke_model(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        path = f"/v2/models/{self._models.model(arguments['name'])}/infer"
        self._rest.handle(_Invocation(context, path, headers=binary_headers(context, _MIME_TYPE)))

    def _check_model(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        self._models.model(arguments["name"])  # raises for one that is not loaded


class _Invocation(Forwarded):
    """A request whose response has the length of its JSON part in the content type."""

    __slots__ = ()

    def respond(self, status: int, headers: Headers, parts: Sequence[Buffer]) -> None:
        """Send a response; one that reports a lack of memory gets the status that SageMaker knows."""
        if status >= 400 and is_out_of_memory(bytes(parts[0]).decode("utf-8", "replace") if parts else ""):
            status = _INSUFFICIENT_STORAGE
        length = next((value for name, value in headers if name.lower() == JSON_LENGTH), None)
        if length is not None:
            kept = [field for field in headers if field[0].lower() not in (JSON_LENGTH, b"content-type")]
            headers = ((b"Content-Type", _MIME_TYPE + length), *kept)
        self._context.respond(status, headers, parts)
