"""Vertex AI: the health and predict routes of its container contract.

A header field sends a prediction to any path of the REST routes that reads, with the method of that path.
"""

import re
from collections.abc import Callable, Mapping

from naiad.core.errors import excerpt, invalid_argument, permission_denied
from naiad.engine.inference import Engine
from naiad.frontend.clouds.forwarding import Forwarded, Handler, binary_headers, default_model
from naiad.frontend.context import HttpContext
from naiad.frontend.router import Route, Router
from naiad.options.network.clouds import VertexAiOptions

_REDIRECT = b"x-vertex-ai-triton-redirect"
_MIME_TYPE = b"application/vnd.vertex-ai-triton.binary+json;json-header-size="
_POSTED = re.compile(
    r"/v2/models/[^/]+(?:/versions/[0-9]+)?/(?:infer|generate|generate_stream)|/v2/repository/.*index"
)
_CHANGING = re.compile(r"/v2/(?:system|cuda)sharedmemory/.*register|/v2/repository/.*load")


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
        return Router(
            [
                Route(re.escape(self._options.health_route), {"GET": self._health}),
                Route(re.escape(self._options.predict_route), {"POST": self._predict}, self._check),
            ]
        )

    def check_model(self) -> None:
        """Raise InferError if there is no default model. Triton: the server then does not start."""
        model = self._default_model()
        if all(model not in (row.name, getattr(row.name, "name", "")) for row in self._engine.repository_index(True)):
            raise invalid_argument(f"Expect the default model '{excerpt(model)}' is loaded")

    def _default_model(self) -> str:
        return default_model(self._engine, "--vertex-ai-default-model", self._options.default_model)

    def _health(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        self._rest.handle(Forwarded(context, "/v2/health/ready"))

    def _predict(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        path = self._path(context)
        headers = binary_headers(context, _MIME_TYPE)
        if path == "/metrics":
            self._metrics(Forwarded(context, path, "GET"))
        else:
            self._rest.handle(Forwarded(context, path, _method(path), headers))

    def _check(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        path = self._path(context)
        if path != "/metrics":
            self._rest.reject(Forwarded(context, path, _method(path)))

    def _path(self, context: HttpContext) -> str:
        """Return the REST path of a prediction. Raises InferError."""
        redirect = context.headers.get(_REDIRECT)
        if redirect is None:
            return f"/v2/models/{self._default_model()}/infer"
        return f"/{redirect.decode('latin-1')}"


def _method(path: str) -> str:
    """Return the method of a redirected request. Raises InferError(PERMISSION_DENIED) if it changes the server."""
    if _CHANGING.fullmatch(path):
        raise permission_denied(
            f"X-Vertex-Ai-Triton-Redirect: {excerpt(path[1:])} changes the server; use the HTTP endpoint for it"
        )
    return "POST" if _POSTED.fullmatch(path) else "GET"
