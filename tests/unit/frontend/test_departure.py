import pytest

from naiad.core.errors import ErrorCode
from naiad.core.request import InferRequest, RequestHeader
from naiad.frontend.context import CancelReason, version_of


@pytest.mark.parametrize("why", CancelReason)
@pytest.mark.parametrize(("waited", "doing"), [(True, "it waited"), (False, "it was executed")])
def test_the_failure_says_why_and_where(why, waited, doing):
    error = why.error(waited=waited)
    assert error.message.endswith(f" while {doing}")
    assert error.code is (ErrorCode.DEADLINE_EXCEEDED if why is CancelReason.DEADLINE else ErrorCode.CANCELLED)


def test_every_reason_has_its_own_words():
    assert len({why.error(waited=True).message for why in CancelReason}) == len(CancelReason)


def test_version_is_served_or_else_requested_one():
    request = InferRequest(RequestHeader(model_name="m", model_version="2"), (), print)
    assert version_of(request) == "2"
    request.model = type("Served", (), {"version": "7"})
    assert version_of(request) == "7"
