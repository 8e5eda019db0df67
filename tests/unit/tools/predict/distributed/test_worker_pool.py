"""Which errors of a worker end a job, and which ones are repeated."""

import pytest

from naiad.core.errors import ErrorCode, InferError, internal, invalid_argument, unavailable
from naiad.repository.cloud.objects.stored_object import StoreError
from naiad.tools.predict.distributed.part_worker import _problem
from naiad.tools.predict.distributed.worker_pool import PartFailedError, raise_problem


@pytest.mark.parametrize(
    "error",
    [unavailable("no server"), *(StoreError(code, "no store") for code in ErrorCode)],
    ids=lambda error: f"{type(error).__name__}-{error.code.name}",
)
def test_errors_of_servers_and_stores_end_the_job(error: InferError) -> None:
    with pytest.raises(InferError, match=rf"{error.message} \(worker on ") as caught:
        raise_problem(_problem(error))
    assert caught.value.code is error.code


@pytest.mark.parametrize("error", [internal("x"), invalid_argument("x"), OSError("x"), RuntimeError("x")])
def test_other_errors_are_repeated(error: Exception) -> None:
    with pytest.raises(PartFailedError, match=r"x \(worker on "):
        raise_problem(_problem(error))
