"""The REST side of KServe v2: routes for all operations that have a REST form."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from naiad.engine.engine import Engine
from naiad.frontend.context import HttpContext
from naiad.frontend.control.control import ControlCalls
from naiad.frontend.control.control_audit import audited
from naiad.frontend.dashboard.live_feed import LiveFeed
from naiad.frontend.dashboard.live_route import LiveRoute
from naiad.frontend.default_model import default_model
from naiad.frontend.header_forwarding import HeaderForwarding
from naiad.frontend.long_work.thread_pool import RunInThread, run_at_once
from naiad.frontend.rest.api_page import ApiPageRoutes
from naiad.frontend.rest.compression import ContentCodings
from naiad.frontend.rest.control import control_action
from naiad.frontend.rest.first_use import AtFirstUse
from naiad.frontend.rest.infer import MAX_INPUT_BYTES, InferRoute
from naiad.frontend.rest.rollout import rollout_actions
from naiad.frontend.router import Action, Route, Router
from naiad.operations import dashboard, mcp, openai
from naiad.operations.inference import GENERATE, GENERATE_STREAM, GENERATE_STREAM_OF_QUERY, INFER, INVOCATIONS
from naiad.operations.operation import AnyOperation, MayBringFiles, RestForm
from naiad.operations.table import OPERATIONS

if TYPE_CHECKING:
    from naiad.frontend.dashboard.dashboard_page import DashboardRoutes
    from naiad.frontend.rest.generate import GenerateRoutes
    from naiad.frontend.rest.mcp.mcp_routes import McpRoutes
    from naiad.frontend.rest.openai.openai_routes import OpenAiRoutes

MakeAction = Callable[[AnyOperation, RestForm[Any, Any]], Action]
"""Makes the action of an operation's form."""


class RestApi:
    """The actions of the REST routes."""

    def __init__(  # noqa: PLR0913 - the parts that the ports have made, keyword-only
        self,
        engine: Engine,
        *,
        max_input_bytes: int = MAX_INPUT_BYTES,
        forwarding: HeaderForwarding | None = None,
        codings: ContentCodings | None = None,
        calls: ControlCalls | None = None,
        may_bring_files: MayBringFiles = lambda: False,
        run_in_thread: RunInThread = run_at_once,
        operations: Sequence[AnyOperation] = OPERATIONS,
        live: LiveFeed | None = None,
        dashboard_is_local: bool = False,
        mcp_is_local: bool = False,
    ) -> None:
        """`calls` carries out control operations, and its runner decodes and encodes large bodies.

        `live` has the live streams; by default they show this process alone. With `dashboard_is_local`, only clients
        of this machine get the dashboard's page, and what the log says; with `mcp_is_local`, models as tools.
        """
        self._engine = engine
        self._max_input_bytes = max_input_bytes
        self._forwarding = forwarding
        self._codings = codings
        self._run_in_thread = run_in_thread
        self._operations = operations
        self._calls = calls or ControlCalls(engine)
        self._may_bring_files = may_bring_files
        self._live = live or LiveFeed(engine)
        self._dashboard_is_local = dashboard_is_local
        self._mcp_is_local = mcp_is_local
        self._router: Router | None = None
        self._start_s = int(time.time())
        self._infer = InferRoute(engine, max_input_bytes, forwarding, self._calls.runner)
        generate = (GENERATE, GENERATE_STREAM, GENERATE_STREAM_OF_QUERY)
        self._generate = AtFirstUse(self._make_generate, generate)
        self._openai = AtFirstUse(self._make_openai, openai.OPERATIONS)
        self._mcp = AtFirstUse(self._make_mcp, mcp.OPERATIONS)
        self._dashboard = AtFirstUse(self._make_dashboard, (dashboard.DASHBOARD, dashboard.DASHBOARD_FILE))

    def router(self) -> Router:
        """Return the router of the HTTP endpoint."""
        page = ApiPageRoutes(self._engine, self._operations, self._run_in_thread)
        live_route = LiveRoute(self._live, local_only=self._dashboard_is_local)
        routes = rest_routes(
            self._operations,
            {
                **self._inference(),
                **self._openai.actions(),
                **self._mcp.actions(),
                **rollout_actions(self._engine),
                **page.actions(),
                **self._dashboard.actions(),
                **live_route.actions(),
            },
            {
                INFER: self._infer.check,
                **self._generate.checks(),
                **self._openai.checks(),
                **self._mcp.checks(),
            },
            partial(control_action, self._calls, may_bring_files=self._may_bring_files),
        )
        page.router = live_route.router = self._router = Router(routes)
        return self._router

    # --- what the first request imports -----------------------------------------------------------------------------

    def _make_generate(self) -> "GenerateRoutes":
        from naiad.frontend.rest.generate import GenerateRoutes

        return GenerateRoutes(
            self._engine, self._max_input_bytes, self._forwarding, self._calls.runner, self._run_in_thread
        )

    def _make_openai(self) -> "OpenAiRoutes":
        from naiad.frontend.rest.openai.openai_routes import OpenAiRoutes

        return OpenAiRoutes(self._engine, self._max_input_bytes, self._forwarding, self._run_in_thread, self._start_s)

    def _make_mcp(self) -> "McpRoutes":
        from naiad.frontend.rest.mcp.mcp_routes import McpRoutes

        routes = McpRoutes(
            self._engine, self._generate.group(), self._openai.actions(), local_only=self._mcp_is_local
        )
        routes.router = self._router
        return routes

    def _make_dashboard(self) -> "DashboardRoutes":
        from naiad.frontend.dashboard.dashboard_page import DashboardRoutes

        return DashboardRoutes(self._run_in_thread, local_only=self._dashboard_is_local)

    # --- inference --------------------------------------------------------------------------------------------------

    def _inference(self) -> Mapping[AnyOperation, Action]:
        return {
            INFER: self._infer.handle if self._codings is None else self._codings.wrap(self._infer.handle),
            **self._generate.actions(),
            INVOCATIONS: self._invoke,
        }

    def _invoke(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        """Forward a request of MLflow's form to the only model; the route of the model checks access again."""
        model = default_model(self._engine, "", "send the request to /v2/models/NAME/generate")
        context.path = GENERATE.path(model=model)
        if self._router is not None:
            self._router.handle(context)


def rest_routes(
    operations: Sequence[AnyOperation],
    actions: Mapping[AnyOperation, Action],
    checks: Mapping[AnyOperation, Action],
    make_action: MakeAction,
) -> list[Route]:
    """Return the routes of the REST forms of operations: one for each path, with an action for each method.

    `make_action` makes the actions of operations that are not in `actions`. Raises ValueError if the operations of a
    path have different categories: rules decide before the method is known.
    """
    routes: dict[str, Route] = {}
    for operation in operations:
        for form in operation.rest:
            action = actions.get(operation) or make_action(operation, form)
            if operation.kind == "command":
                action = audited(action)
            made = Route(form.path.pattern, operation.category, {form.method: action}, checks.get(operation))
            known = routes.setdefault(made.pattern, made)
            if known is not made:
                if known.category != made.category:
                    raise ValueError(f"{form.path.text} has the categories {known.category} and {made.category}")
                routes[made.pattern] = replace(
                    known, actions={**known.actions, **made.actions}, check=known.check or made.check
                )
    return list(routes.values())
