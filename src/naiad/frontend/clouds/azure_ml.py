"""Azure Machine Learning: scoring and probe routes beside the REST routes.

An Azure ML deployment names the port and path of its scoring, liveness and readiness routes.
"""

from collections.abc import Mapping

from naiad.engine.inference import Engine
from naiad.frontend.clouds.forwarding import Forwarded, Handler, default_model
from naiad.frontend.context import HttpContext
from naiad.frontend.router import Route, Router
from naiad.options.network.clouds import AzureMlOptions


class AzureMl:
    """The routes of the Azure ML endpoint."""

    def __init__(self, options: AzureMlOptions, engine: Engine, rest: Handler) -> None:
        self._options = options
        self._engine = engine
        self._rest = rest

    def router(self) -> Router:
        """Return the router of the endpoint."""
        return Router(
            [
                Route("/", {"GET": self._live}),
                Route("/ready", {"GET": self._ready}),
                Route("/score", {"POST": self._score}, self._check),
                Route(r"/v2.*", dict.fromkeys(("GET", "POST"), self._forward), self._check_rest),
            ]
        )

    def _live(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        self._rest.handle(Forwarded(context, "/v2/health/live"))

    def _ready(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        self._rest.handle(Forwarded(context, "/v2/health/ready"))

    def _score(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        self._rest.handle(self._scored(context))

    def _check(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        self._rest.reject(self._scored(context))

    def _scored(self, context: HttpContext) -> HttpContext:
        model = default_model(self._engine, "--azure-ml-default-model", self._options.default_model)
        return Forwarded(context, f"/v2/models/{model}/infer")

    def _forward(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        self._rest.handle(context)

    def _check_rest(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        self._rest.reject(context)
