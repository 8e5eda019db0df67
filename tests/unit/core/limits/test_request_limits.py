"""Each limit of a request accepts its bound and rejects one more."""

from collections.abc import Callable

import pytest

from naiad.core.errors import ErrorCode, InferError
from naiad.core.limits import request_limits
from naiad.core.limits.request_limits import RequestLimits

LIMITS = RequestLimits("m", inputs=2, outputs=3)


@pytest.mark.parametrize(
    ("check", "most", "message"),
    [
        (lambda count: request_limits.check_dims("IN", count), 64, "the shape of input 'IN' has 65 dimensions"),
        (request_limits.check_parameters, 1024, "1025 parameters in one place are too many"),
        (lambda count: request_limits.check_name("an input", "x" * count), 1024, "the name of an input has 1025"),
        (LIMITS.check_inputs, 18, "expected 2 inputs but got 19 inputs for model 'm'"),
        (LIMITS.check_outputs, 19, "the request asks for 20 outputs; model 'm' has 3"),
    ],
)
def test_bound_is_accepted_and_one_more_rejected(check: Callable[[int], None], most: int, message: str) -> None:
    check(most)
    with pytest.raises(InferError) as caught:
        check(most + 1)
    assert caught.value.code is ErrorCode.INVALID_ARG
    assert caught.value.message.startswith(message)
