"""The REST side of KServe v2: health, metadata, configuration, statistics, repository, inference."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from naiad.core.errors import unavailable
from naiad.core.slices import Slices
from naiad.engine.engine import Engine
from naiad.frontend.context import HttpContext
from naiad.frontend.control_audit import audited
from naiad.frontend.default_model import default_model
from naiad.frontend.header_forwarding import HeaderForwarding
from naiad.frontend.rest.api_page import ApiPageRoutes
from naiad.frontend.rest.compression import ContentCodings
from naiad.frontend.rest.control import RepositoryRoutes, settings_routes, shared_memory_routes
from naiad.frontend.rest.generate import GenerateRoutes
from naiad.frontend.rest.infer import MAX_INPUT_BYTES, InferRoute, cancel_job
from naiad.frontend.rest.rollout import rollout_routes
from naiad.frontend.router import JSON_HEADERS, Action, Route, Router, json_action, respond_error, respond_infer_error
from naiad.frontend.slice_runner import SliceRunner
from naiad.frontend.thread_pool import RunInThread, run_at_once
from naiad.protocol.json.control import (
    encode_explanation,
    encode_model_config,
    encode_model_metadata,
    encode_server_metadata,
    statistics_in_slices,
)
from naiad.telemetry.statistics.version import VersionStatistics

_NO_BODY: tuple[bytes, ...] = ()
_TEXT_HEADERS = ((b"Content-Type", b"text/plain"),)

_MODEL = r"/v2/models/(?P<model>[^/]++)(?:/versions/0*(?P<version>[0-9]+|[A-Za-z][A-Za-z0-9_.-]{0,63}))?"
# Triton: a version is a number, so 01 is 1. naiad: or a name, such as "stable".
_REPOSITORY = r"/v2/repository(?:/(?P<repository>[^/]++))?"


class RestApi:
    """The actions of the REST routes."""

    def __init__(
        self,
        engine: Engine,
        *,
        max_input_bytes: int = MAX_INPUT_BYTES,
        forwarding: HeaderForwarding | None = None,
        codings: ContentCodings | None = None,
        repository: RepositoryRoutes | None = None,
        runner: SliceRunner | None = None,
        run_in_thread: RunInThread = run_at_once,
        with_page: bool = True,
    ) -> None:
        """`runner` decodes and encodes large bodies, `with_page` serves the API page."""
        self._engine = engine
        self._codings = codings
        self._run_in_thread = run_in_thread
        self._with_page = with_page
        self._repository = repository or RepositoryRoutes(engine)
        self._router: Router | None = None
        self._runner = runner or SliceRunner()
        self._infer = InferRoute(engine, max_input_bytes, forwarding, self._runner)
        self._generate = GenerateRoutes(engine, max_input_bytes, forwarding, self._runner, run_in_thread)

    def router(self) -> Router:
        """Return the router of the HTTP endpoint."""
        get, post, engine = _get, _post, self._engine
        api_page = ApiPageRoutes(self._engine, self._run_in_thread)
        infer = self._infer.handle if self._codings is None else self._codings.wrap(self._infer.handle)
        load, unload = audited(self._repository.load), audited(self._repository.unload)
        router = Router(
            [
                Route(_MODEL + "/infer", "inference", post(infer), self._infer.check),
                Route(_MODEL + "/generate", "inference", post(self._generate.generate), self._generate.check),
                Route(
                    _MODEL + "/generate_stream",
                    "inference",
                    {**post(self._generate.generate_stream), **get(self._generate.stream_of_query)},
                    self._generate.check,
                ),
                Route(r"/invocations", "inference", post(self._invoke)),
                Route(r"/v2", "metadata", _document(lambda: encode_server_metadata(engine.views.server_metadata()))),
                Route(r"/v2/health/live", "health", get(self._live)),
                Route(r"/v2/health/ready", "health", get(self._ready)),
                # Triton: the bare path has priority over a model named "stats".
                Route(r"/v2/models/stats", "statistics", self._statistics()),
                Route(
                    _MODEL,
                    "metadata",
                    _document(lambda *version: encode_model_metadata(engine.views.model_metadata(*version))),
                ),
                Route(_MODEL + "/ready", "health", get(self._model_ready)),
                Route(
                    _MODEL + "/config",
                    "model-config",
                    _document(lambda *version: encode_model_config(engine.views.model_config(*version))),
                ),
                Route(
                    _MODEL + "/stats",
                    "statistics",
                    self._statistics(),
                ),
                Route(
                    _MODEL + "/explain",
                    "statistics",
                    _document(lambda *version: encode_explanation(engine.views.explanation(*version))),
                ),
                *rollout_routes(engine),
                *api_page.routes(with_page=self._with_page),
                *settings_routes(engine),
                *shared_memory_routes(engine.shared_memory),
                Route(_REPOSITORY + "/index", "model-repository", post(self._repository.index)),
                Route(
                    _REPOSITORY + "/models/(?P<model>[^/]++)/load",
                    "model-repository",
                    post(load),
                ),
                Route(
                    _REPOSITORY + "/models/(?P<model>[^/]++)/unload",
                    "model-repository",
                    post(unload),
                ),
            ]
        )
        api_page.router = self._router = router
        return router

    def _statistics(self) -> Mapping[str, Action]:
        """Return the action of statistics, of up to thousands of models."""
        engine, runner = self._engine, self._runner

        def act(context: HttpContext, arguments: Mapping[str, str]) -> None:
            job = runner.run(
                context.client,
                _encoded(engine.views.statistics_in_slices(*arguments.values())),
                0,
                lambda body: context.respond(200, JSON_HEADERS, (body,)),
                lambda error: respond_infer_error(context, error),
            )
            if not job.is_over:
                context.on_disconnect = partial(cancel_job, runner, job)

        return _get(act)

    def _invoke(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        """Forward a request of MLflow's form to the only model; the route of the model checks access again."""
        model = default_model(self._engine, "", "send the request to /v2/models/NAME/generate")
        context.path = f"/v2/models/{model}/generate"
        if self._router is not None:
            self._router.handle(context)

    # --- health ---------------------------------------------------------------------------------------------------

    def _live(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        # A draining server is alive: after a failed liveness probe an orchestrator would kill it before it has
        # finished.
        context.respond(200 if self._engine.views.is_live() else 400, _TEXT_HEADERS, _NO_BODY)

    def _ready(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        if self._engine.phase.is_draining:
            raise unavailable("Server exiting")
        context.respond(200 if self._engine.views.is_ready() else 400, _TEXT_HEADERS, _NO_BODY)

    def _model_ready(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        if self._engine.views.is_model_ready(arguments["model"], arguments["version"]):
            context.respond(200, _TEXT_HEADERS, _NO_BODY)
        else:
            respond_error(context, 400, "Model version not ready")


def _document(encode: Callable[..., bytes]) -> Mapping[str, Action]:
    """Return the action of a document; `encode` takes the model and version if the path has them."""
    return {"GET": json_action(lambda arguments, _: encode(*arguments.values()))}


def _encoded(statistics: Slices[Sequence[VersionStatistics]]) -> Slices[bytes]:
    return (yield from statistics_in_slices((yield from statistics)))


def _get(action: Action) -> Mapping[str, Action]:
    return {"GET": action}


def _post(action: Action) -> Mapping[str, Action]:
    return {"POST": action}
