"""The status of SageMaker's responses: 507 for a failure without memory, and for nothing else."""

from pathlib import Path
from typing import Any

import pytest

from naiad.frontend.clouds.clouds import sagemaker_router
from naiad.frontend.clouds.multi_model import MultiModelRoutes
from naiad.frontend.context import UnreadRequest
from naiad.options.network.cloud_options import SageMakerOptions


class Rest:
    """REST routes that answer every request with one response."""

    def __init__(self, status: int, body: bytes) -> None:
        self.status, self.body = status, body

    def handle(self, context: Any) -> None:
        context.respond(self.status, (), (self.body,))

    reject = handle


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (500, b'{"error":"CUDA out of memory"}', 507),
        (400, b'{"error":"failed to allocate memory"}', 507),
        (400, b'{"error":"unexpected shape"}', 400),
        (500, b"", 500),
        # What a model answers is not the server's failure.
        (200, b'{"outputs":[{"data":["the process ran out of memory"]}]}', 200),
    ],
)
def test_only_failures_without_memory_get_507(status: int, body: bytes, expected: int) -> None:
    models = MultiModelRoutes(None, lambda *_: None, Path("/nonesuch"))  # type: ignore[arg-type]  # not used
    router = sagemaker_router(SageMakerOptions(default_model="m"), Rest(status, body), models)
    context: Any = UnreadRequest("POST", "/invocations", {}, 0)
    router.handle(context)
    assert context.response[0] == expected
