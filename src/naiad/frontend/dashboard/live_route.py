"""The action of `GET /v2/live`: it checks the query, and begins the stream of a client with its rights."""

from collections.abc import Mapping
from typing import Any

from naiad.frontend.access.peer import is_local
from naiad.frontend.context import HttpContext
from naiad.frontend.dashboard.live_feed import LiveFeed
from naiad.frontend.dashboard.live_request import parse_live_query
from naiad.frontend.dashboard.live_stream import EVENT_STREAM, Rights
from naiad.frontend.router import Action, Router
from naiad.operations.dashboard import LIVE
from naiad.operations.operation import AnyOperation
from naiad.options.network.access_options import Category

_CATEGORIES: Mapping[str, Category] = {
    "inference": "inference",
    "model-repository": "model-repository",
    "rollout": "model-repository",  # what restricts loads restricts rollouts as well
    "logging": "logging",
    "statistics": "statistics",
}
"""What the page can do, by the name in the event `server`, and the category of its operations."""
_LOCAL_LOGGING = (
    "log lines, request ids and messages are for clients on the server's machine; restrict 'logging' with an API key,"
    " or start the server with --allow-dashboard=true"
)


class LiveRoute:
    """The action of the live stream."""

    def __init__(self, feed: LiveFeed, *, local_only: bool = False) -> None:
        """With `local_only`, other machines get log lines, request ids and messages only by an access rule."""
        self._feed = feed
        self._local_only = local_only
        self.router: Router | None = None
        """The router, for its access rule; set once it exists."""

    def actions(self) -> Mapping[AnyOperation, Action]:
        """Return the action by its operation."""
        return {LIVE: self._open}

    def _open(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        request = parse_live_query(context.query)
        if context.method == "HEAD":
            context.respond(200, EVENT_STREAM, ())
            return
        self._feed.open(context, request, self.rights)

    def rights(self, context: HttpContext) -> Rights:
        """Return what a client may do, with the reason for what it may not."""
        allowed = {}
        for name, category in _CATEGORIES.items():
            allowed[name] = self._right(category, context)
        return Rights(allowed)

    def _right(self, category: Category, context: HttpContext) -> Mapping[str, Any]:
        router = self.router
        if router is not None and router.is_restricted(category):
            rejection = router.rejection(category, context)
            return _YES if rejection is None else _no(rejection.message, asks_for_key=rejection.asks_for_key)
        # They are texts of other clients, which no other operation shows: without a rule they stay on this machine.
        if category == "logging" and self._local_only and not is_local(context.client):
            return _no(_LOCAL_LOGGING)
        return _YES


_YES: Mapping[str, Any] = {"allowed": True}


def _no(reason: str, *, asks_for_key: bool = False) -> Mapping[str, Any]:
    """Return a missing right; with `asks_for_key` another API key, or any, may have it."""
    return {"allowed": False, "reason": reason, **({"asks_for_key": True} if asks_for_key else {})}
