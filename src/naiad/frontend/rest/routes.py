"""The REST side of KServe v2: health, metadata, configuration, statistics, repository, inference."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from naiad.core.errors import unavailable
from naiad.core.slices import Slices
from naiad.engine.inference import Engine
from naiad.frontend.context import HttpContext
from naiad.frontend.control_audit import audited
from naiad.frontend.default_model import default_model
from naiad.frontend.header_forwarding import HeaderForwarding
from naiad.frontend.rest.api_page import ApiPageRoutes
from naiad.frontend.rest.compression import ContentCodings
from naiad.frontend.rest.control import RepositoryRoutes, settings_actions, shared_memory_actions
from naiad.frontend.rest.generate import GenerateRoutes
from naiad.frontend.rest.infer import MAX_INPUT_BYTES, InferRoute, cancel_job
from naiad.frontend.rest.rollout import rollout_actions
from naiad.frontend.router import JSON_HEADERS, Action, Route, Router, json_action, respond_error, respond_infer_error
from naiad.frontend.slice_runner import SliceRunner
from naiad.frontend.thread_pool import RunInThread, run_at_once
from naiad.operations.inference import GENERATE, GENERATE_STREAM, GENERATE_STREAM_OF_QUERY, INFER, INVOCATIONS
from naiad.operations.models import (
    EXPLANATION,
    MODEL_CONFIG,
    MODEL_METADATA,
    MODEL_READY,
    SERVER_LIVE,
    SERVER_METADATA,
    SERVER_READY,
    STATISTICS,
)
from naiad.operations.operation import Operation
from naiad.operations.repository import INDEX, LOAD, UNLOAD
from naiad.operations.table import OPERATIONS
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
        operations: Sequence[Operation] = OPERATIONS,
    ) -> None:
        """`runner` decodes and encodes large bodies, `operations` are served."""
        self._engine = engine
        self._codings = codings
        self._run_in_thread = run_in_thread
        self._operations = operations
        self._repository = repository or RepositoryRoutes(engine)
        self._router: Router | None = None
        self._runner = runner or SliceRunner()
        self._infer = InferRoute(engine, max_input_bytes, forwarding, self._runner)
        self._generate = GenerateRoutes(engine, max_input_bytes, forwarding, self._runner, run_in_thread)

    def router(self) -> Router:
        """Return the router of the HTTP endpoint."""
        page = ApiPageRoutes(self._engine, self._operations, self._run_in_thread)
        routes = rest_routes(
            self._operations,
            {
                **self._inference(),
                **self._queries(),
                **rollout_actions(self._engine),
                **page.actions(),
                **settings_actions(self._engine),
                **shared_memory_actions(self._engine.shared_memory),
                INDEX: self._repository.index,
                LOAD: self._repository.load,
                UNLOAD: self._repository.unload,
            },
            {
                INFER: self._infer.check,
                GENERATE: self._generate.check,
                GENERATE_STREAM: self._generate.check,
            },
        )
        page.router = self._router = Router(routes)
        return self._router

    def _inference(self) -> Mapping[Operation, Action]:
        return {
            INFER: self._infer.handle if self._codings is None else self._codings.wrap(self._infer.handle),
            GENERATE: self._generate.generate,
            GENERATE_STREAM: self._generate.generate_stream,
            GENERATE_STREAM_OF_QUERY: self._generate.stream_of_query,
            INVOCATIONS: self._invoke,
        }

    def _queries(self) -> Mapping[Operation, Action]:
        engine = self._engine
        return {
            SERVER_METADATA: _document(lambda: encode_server_metadata(engine.server_metadata())),
            SERVER_LIVE: self._live,
            SERVER_READY: self._ready,
            STATISTICS: self._statistics(),
            MODEL_METADATA: _document(lambda *version: encode_model_metadata(engine.model_metadata(*version))),
            MODEL_READY: self._model_ready,
            MODEL_CONFIG: _document(lambda *version: encode_model_config(engine.model_config(*version))),
            EXPLANATION: _document(lambda *version: encode_explanation(engine.explanation(*version))),
        }

    def _statistics(self) -> Action:
        """Return the action of statistics, of up to thousands of models."""
        engine, runner = self._engine, self._runner

        def act(context: HttpContext, arguments: Mapping[str, str]) -> None:
            job = runner.run(
                context.client,
                _encoded(engine.statistics_in_slices(*arguments.values())),
                0,
                lambda body: context.respond(200, JSON_HEADERS, (body,)),
                lambda error: respond_infer_error(context, error),
            )
            if not job.is_over:
                context.on_disconnect = partial(cancel_job, runner, job)

        return act

    def _invoke(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        """Forward a request of MLflow's form to the only model; the route of the model checks access again."""
        model = default_model(self._engine, "", "send the request to /v2/models/NAME/generate")
        context.path = GENERATE.path(model=model)
        if self._router is not None:
            self._router.handle(context)

    # --- health ---------------------------------------------------------------------------------------------------

    def _live(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        # A draining server is alive: after a failed liveness probe an orchestrator would kill it before it has
        # finished.
        context.respond(200 if self._engine.is_live() else 400, _TEXT_HEADERS, _NO_BODY)

    def _ready(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        if self._engine.is_draining:
            raise unavailable("Server exiting")
        context.respond(200 if self._engine.is_ready() else 400, _TEXT_HEADERS, _NO_BODY)

    def _model_ready(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        if self._engine.is_model_ready(arguments["model"], arguments["version"]):
            context.respond(200, _TEXT_HEADERS, _NO_BODY)
        else:
            respond_error(context, 400, "Model version not ready")


def rest_routes(
    operations: Sequence[Operation], actions: Mapping[Operation, Action], checks: Mapping[Operation, Action]
) -> list[Route]:
    """Return the routes of the REST forms of operations: one for each path, with an action for each method.

    Raises ValueError if the operations of a path have different categories: rules decide before the method is known.
    """
    routes: dict[str, Route] = {}
    for operation in operations:
        for form in operation.rest:
            action = actions[operation] if operation.kind == "query" else audited(actions[operation])
            made = Route(form.path.pattern, operation.category, {form.method: action}, checks.get(operation))
            known = routes.setdefault(made.pattern, made)
            if known is not made:
                if known.category != made.category:
                    raise ValueError(f"{form.path.text} has the categories {known.category} and {made.category}")
                routes[made.pattern] = replace(
                    known, actions={**known.actions, **made.actions}, check=known.check or made.check
                )
    return list(routes.values())


def _document(encode: Callable[..., bytes]) -> Action:
    """Return the action of a document; `encode` takes the model and version if the path has them."""
    return json_action(lambda arguments, _: encode(*arguments.values()))


def _encoded(statistics: Slices[Sequence[VersionStatistics]]) -> Slices[bytes]:
    return (yield from statistics_in_slices((yield from statistics)))
