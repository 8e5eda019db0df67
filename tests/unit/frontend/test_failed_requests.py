"""What clients learn of a failed request: whether another server may execute it."""

from typing import Any

import pytest

from naiad.core.errors import InferError, Rejection, internal, rejected, unavailable
from naiad.frontend import failed_requests


def of_queue(error: InferError) -> InferError:
    """Return an error of a request that left its queue without execution."""
    error.has_begun = False
    return error


class Answered:
    """A request or a call; keeps the fields of its answer."""

    path = "/v2/models/m/infer"
    key_name = ""

    def __init__(self) -> None:
        self.fields: dict[bytes, bytes] = {}

    def respond(self, status: int, headers: Any, parts: Any) -> None:
        self.fields.update(headers)

    def finish(self, status: int, message: str = "", trailers: Any = ()) -> None:
        self.fields.update(trailers)


@pytest.mark.parametrize(
    ("error", "is_marked"),
    [
        (rejected("not ready"), True),
        (of_queue(unavailable("full", Rejection.QUEUE_FULL)), True),
        (unavailable("the worker died while it executed this request"), False),
        (rejected("not ready").with_message("in ensemble 'e', not ready"), False),
        (of_queue(unavailable("Request timeout expired", Rejection.TIMEOUT)), False),
        (of_queue(internal("bad")), False),
    ],
)
def test_refusals_before_the_beginning_are_marked(error: InferError, is_marked: bool) -> None:
    http: Any = Answered()
    failed_requests.refuse(http, "7", "m", "", error)
    call = Answered()
    failed_requests.refuse_infer(call, "7", "m", "", error)
    assert [each.fields.get(b"naiad-not-begun") for each in (http, call)] == [b"1" if is_marked else None] * 2
    assert (b"Retry-After" in http.fields) == ("bad" not in error.message)
