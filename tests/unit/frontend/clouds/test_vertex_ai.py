"""The routes of the Vertex AI endpoint."""

from types import SimpleNamespace

import pytest

from naiad.frontend.clouds.clouds import VertexAi
from naiad.frontend.router import Router
from naiad.options.network.cloud_options import VertexAiOptions


class Rest:
    """Notes what reaches the REST routes."""

    def __init__(self) -> None:
        self.handled: list[tuple[str, str]] = []
        self.checked: list[tuple[str, str]] = []

    def handle(self, context: SimpleNamespace) -> None:
        self.handled.append((context.method, context.path))

    def reject(self, context: SimpleNamespace) -> None:
        self.checked.append((context.method, context.path))


def context(method: str) -> SimpleNamespace:
    return SimpleNamespace(method=method, path="/same", headers={}, body=b"")


@pytest.fixture
def rest() -> Rest:
    return Rest()


@pytest.fixture
def router(rest: Rest) -> Router:
    """Both routes are one path."""
    options = VertexAiOptions(allow=True, default_model="m", health_route="/same", predict_route="/same")
    return VertexAi(options, None, rest, lambda _: None).router()  # type: ignore[arg-type]


def test_one_route_serves_both_methods(router: Router, rest: Rest) -> None:
    for method in ("GET", "HEAD", "POST"):
        router.handle(context(method))  # type: ignore[arg-type]
    health = "/v2/health/ready"
    assert rest.handled == [("GET", health), ("HEAD", health), ("POST", "/v2/models/m/infer")]


def test_only_predictions_are_checked_early(router: Router, rest: Rest) -> None:
    for method in ("GET", "POST"):
        router.reject(context(method))  # type: ignore[arg-type]
    assert rest.checked == [("POST", "/v2/models/m/infer")]
