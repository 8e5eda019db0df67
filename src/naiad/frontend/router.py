"""Routes: from method and path of an HTTP request to the function that handles it."""

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus

from naiad.core.errors import InferError, Rejection, excerpt, internal
from naiad.core.limits.bounded_cache import BoundedCache
from naiad.engine.on_demand.held_requests import ColdModelError
from naiad.frontend.access.access import (
    FORWARDED,
    UNKNOWN,
    AccessRule,
    CheckedCategory,
    RejectionResponse,
    RouteCategory,
)
from naiad.frontend.access.refusal import note_refused
from naiad.frontend.cold_models import hold_context
from naiad.frontend.context import HttpContext
from naiad.frontend.reply_headers import JSON_HEADERS, RETRY_AFTER
from naiad.protocol.error_body import error_body
from naiad.protocol.status_table import status_of
from naiad.telemetry.metrics.response_metrics import rejections
from naiad.wire.header_fields import Headers

_log = logging.getLogger(__name__)

_CACHED_CHARACTERS = 1 << 20
"""Limit of remembered paths, including paths without a route."""

Action = Callable[[HttpContext, Mapping[str, str]], None]


@dataclass(frozen=True, slots=True)
class Route:
    """Paths of one form with an action for each method. Named groups of the pattern are arguments of the action."""

    pattern: str
    category: RouteCategory
    """For access rules. It has no default: a route that forgot it would be open on a restricted server."""
    actions: Mapping[str, Action]
    check: Action | None = None
    """Rejects a request by its headers, before its body has arrived."""


_MAX_CACHED_PATH_CHARACTERS = 512
"""Longer paths are not remembered: a client that sends thousands of them must not fill the memory."""


@dataclass(frozen=True, slots=True)
class _Found:
    """The route of a path."""

    actions: Mapping[str, Action]
    arguments: Mapping[str, str]
    check: Action | None
    category: RouteCategory


class Router:
    """Finds the action of a request. The result for a path is remembered, so a known path costs one look-up."""

    def __init__(
        self, routes: "list[Route]", *, cached_paths: int = 4096, inference_path: str = "/v2/models/NAME/infer"
    ) -> None:
        """`inference_path` is named to clients that ask for a path without a route."""
        self._inference_path = inference_path
        self._routes = [(route, _with_head(route.actions)) for route in routes]
        self._patterns: dict[str, re.Pattern[str]] = {}
        """Compiled when a path is first compared: those behind the routes that clients use never are."""
        self._found: BoundedCache[str, _Found | None] = BoundedCache(
            max_entries=cached_paths, max_bytes=_CACHED_CHARACTERS, max_entry_bytes=_MAX_CACHED_PATH_CHARACTERS
        )
        self._rule: AccessRule | None = None
        self.metrics_port: int | None = None
        """The port with the metrics, for clients that look for them here; None if there is none."""

    def categories(self) -> "dict[str, RouteCategory]":
        """Return the category of every route, by its pattern."""
        return {route.pattern: route.category for route, _ in self._routes}

    def category(self, path: str) -> RouteCategory | CheckedCategory:
        """Return the category of a path."""
        found = self._found.get(path) or self._find(path)
        return UNKNOWN if found is None else found.category

    def restrict(self, rule: AccessRule) -> None:
        """Apply `rule` to requests. Routes that it does not concern pay nothing for it."""
        self._rule = rule
        self._found.clear()

    def accepts(self, category: CheckedCategory, context: HttpContext) -> bool:
        """Return whether the access rule accepts a request for a category."""
        return self._rule is None or self._rule.rejection(category, context.headers.get) is None

    def is_restricted(self, category: CheckedCategory) -> bool:
        """Return whether the access rule decides about requests for a category."""
        return self._rule is not None and self._rule.concerns(category)

    def rejection(self, category: CheckedCategory, context: HttpContext) -> RejectionResponse | None:
        """Return how the access rule rejects a request for a category, None if it accepts it."""
        return None if self._rule is None else self._rule.rejection(category, context.headers.get)

    def handle(self, context: HttpContext) -> None:
        """Handle a request. An InferError raised by the action becomes the response."""
        # hot: once a request
        path = context.path
        try:
            found = self._found[path]
        except KeyError:
            found = self._find(path)
        if found is None:
            self._respond_not_found(context)
            return
        action = found.actions.get(context.method)
        if action is None:
            _respond_not_allowed(context, found.actions)
            return
        try:
            action(context, found.arguments)
        except ColdModelError as cold:
            # The access rule, which has accepted it, is not asked again.
            hold_context(context, cold, partial(found.actions[context.method], context, found.arguments))
        except InferError as error:
            respond_infer_error(context, error)

    def reject(self, context: HttpContext) -> None:
        """Respond to a request without its body if its headers are enough to reject it."""
        path = context.path
        found = self._found.get(path) or self._find(path)
        if found is None:
            self._respond_not_found(context)
            return
        actions = found.actions
        if isinstance(actions, _Restricted) and actions.reject(context):
            return
        if context.method not in actions:
            _respond_not_allowed(context, actions)
        elif found.check is not None:
            try:
                found.check(context, found.arguments)
            except ColdModelError as cold:
                cold.held.begin_load(cold)  # while its body arrives
            except InferError as error:
                respond_infer_error(context, error)

    def _respond_not_found(self, context: HttpContext) -> None:
        """Refuse a path without a route: to clients that no rule lets in it looks as its neighbours do."""
        if self._rule is None or not _reject(self._rule, UNKNOWN, context):
            refuse(context, 404, self._not_found(context.path))

    def _not_found(self, path: str) -> str:
        if path != "/metrics":
            return f"Not Found: there is no {excerpt(path)} here; requests for a model go to {self._inference_path}"
        if self.metrics_port is None:
            return "Not Found: metrics are off; start the server with --allow-metrics=true"
        return f"Not Found: metrics have a port of their own, --metrics-port ({self.metrics_port or 'a Unix socket'})"

    def _restricted(self, category: RouteCategory, actions: Mapping[str, Action]) -> Mapping[str, Action]:
        rule = self._rule
        if rule is None or category == FORWARDED or not rule.concerns(category):
            return actions
        return _Restricted(actions, category, rule)

    def _find(self, path: str) -> _Found | None:
        found = None
        for route, actions in self._routes:
            match = self._pattern(route).fullmatch(path)
            if match is not None:
                arguments = {name: value or "" for name, value in match.groupdict().items()}
                found = _Found(self._restricted(route.category, actions), arguments, route.check, route.category)
                break
        self._found.remember(path, found, len(path))
        return found

    def _pattern(self, route: Route) -> re.Pattern[str]:
        compiled = self._patterns.get(route.pattern)
        if compiled is None:
            compiled = self._patterns[route.pattern] = re.compile(route.pattern)
        return compiled


class _Restricted(dict[str, Action]):
    """The actions of a path behind an access rule. Triton: the rule decides before the method is checked."""

    def __init__(self, actions: Mapping[str, Action], category: CheckedCategory, rule: AccessRule) -> None:
        super().__init__(actions)
        self._category = category
        self._rule = rule

    def get(self, method: str, default: object = None) -> Action:
        """Return an action that applies the rule first."""
        return self._act

    def reject(self, context: HttpContext) -> bool:
        """Respond to a request that the rule rejects; return whether it did."""
        return _reject(self._rule, self._category, context)

    def _act(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        if self.reject(context):
            return
        action = super().get(context.method)
        if action is None:
            _respond_not_allowed(context, self)
        else:
            action(context, arguments)


def _reject(rule: AccessRule, category: CheckedCategory, context: HttpContext) -> bool:
    """Respond to a request that the rule rejects; return whether it did."""
    rejection = rule.rejection(category, context.headers.get)
    if rejection is None:
        return False
    rejections.count(Rejection.UNAUTHORIZED)
    refuse(context, rejection.http_status, rejection.message, rejection.headers, rejection.key)
    return True


def _respond_not_allowed(context: HttpContext, actions: Mapping[str, Action]) -> None:
    allowed = ", ".join(sorted(actions))
    message = f"Method Not Allowed: {excerpt(context.path)} takes {allowed}"
    refuse(context, 405, message, ((b"Allow", allowed.encode()),))


def _with_head(actions: Mapping[str, Action]) -> Mapping[str, Action]:
    """Allow HEAD where GET is allowed; the transport omits the body."""
    return {**actions, "HEAD": actions["GET"]} if "GET" in actions else actions


def respond_error(
    context: HttpContext, status: int, message: str, headers: Headers = (), error: InferError | None = None
) -> None:
    """Respond with the error body of every failure."""
    body = error_body(context.path, status, message, error)
    context.respond(status, (*JSON_HEADERS, *headers) if headers else JSON_HEADERS, (body,))


def respond_infer_error(context: HttpContext, error: InferError) -> None:
    """Respond with an error; with 503 the header says when to ask again."""
    status = status_of(error).http
    headers: Headers = (RETRY_AFTER,) if status == HTTPStatus.SERVICE_UNAVAILABLE else ()
    respond_error(context, status, error.message, headers, error)


def respond_failure(context: HttpContext, error: Exception) -> None:
    """Respond with the error of work on another thread; unexpected ones are logged."""
    if not isinstance(error, InferError):
        _log.error("%s %s failed", context.method, excerpt(context.path), exc_info=error)
        error = internal("internal error; see the server log")
    respond_infer_error(context, error)


def refuse(context: HttpContext, status: int, message: str, headers: Headers = (), key: str = "") -> None:
    """Respond to a request that may not be made here, and log that; `key` is the name of the client's API key."""
    note_refused(context, status, message, key)
    respond_error(context, status, message, headers)
