"""The action of `GET /v2/live`: it checks the query, and begins the stream of a client with its rights."""

from collections.abc import Mapping

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


class LiveRoute:
    """The action of the live stream."""

    def __init__(self, feed: LiveFeed) -> None:
        self._feed = feed
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
            reason = "" if self.router is None else self.router.refusal_reason(category, context)
            allowed[name] = {"allowed": False, "reason": reason} if reason else {"allowed": True}
        return Rights(allowed)
