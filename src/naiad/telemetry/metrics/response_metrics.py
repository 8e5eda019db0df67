"""Counts of this process: responses by status code, and rejected inference requests by model and reason.

One count is one addition on the event loop. Like the log, the counts belong to the process: every connection adds to
them, also one that is refused at once.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus

from naiad.core.errors import FailureReason, InferError, Rejection

_SHOWN_HTTP_STATUSES = (200, 400, 401, 403, 404, 405, 408, 413, 415, 431, 499, 500, 501, 503, 504)
_GRPC_STATUS_COUNT = 17
_MAX_ROWS = 10_000

http_responses: defaultdict[int, int] = defaultdict(int, dict.fromkeys(_SHOWN_HTTP_STATUSES, 0))
"""Responses by HTTP status. These statuses appear before the first response has them, so that `rate` sees it."""
grpc_responses = [0] * _GRPC_STATUS_COUNT
"""Ended calls by gRPC status number."""


def response_count() -> int:
    """Return the number of responses so far, over all protocols."""
    return sum(http_responses.values()) + sum(grpc_responses)


class Rejections:
    """Counts rejected requests; the labels are the models of the server and the values of `Rejection`."""

    def __init__(self) -> None:
        self.is_known: Callable[[str], bool] = lambda name: False
        """Returns whether the server has a model; set by the server. Other names are counted with an empty label."""
        self._counts: dict[tuple[str, Rejection], int] = {("", reason): 0 for reason in Rejection}

    def count(self, reason: Rejection, model: str = "") -> None:
        """Count a rejected request; `model` is any name that a client has sent."""
        is_shown = model and reason is not Rejection.UNKNOWN_MODEL and self.is_known(model)
        key = (model if is_shown else "", reason)
        if key not in self._counts and len(self._counts) >= _MAX_ROWS:
            key = ("", reason)
        self._counts[key] = self._counts.get(key, 0) + 1

    def count_error(self, error: InferError, model: str) -> None:
        """Count a failed request if the server has rejected it; statistics count the failures of models."""
        if error.rejection is not None and error.reason is not FailureReason.BACKEND:
            self.count(error.rejection, model)

    def rows(self) -> Iterator[tuple[Mapping[str, str], int]]:
        """Return labels and count of every row."""
        for (model, reason), count in list(self._counts.items()):
            yield {"model": model, "reason": reason.value}, count


rejections = Rejections()


def rejection_of_status(http_status: int) -> Rejection:
    """Return the reason of a request that a connection rejects before a route sees it."""
    if http_status == HTTPStatus.REQUEST_TIMEOUT:
        return Rejection.TIMEOUT
    return Rejection.MEMORY if http_status == HTTPStatus.SERVICE_UNAVAILABLE else Rejection.INVALID
