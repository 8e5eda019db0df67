import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from naiad.core.limits.request_limits import unlimited
from naiad.engine.regions.regions import SharedMemory
from naiad.frontend.access.access import FORWARDED, UNKNOWN, RejectionResponse, Restrictions, category_of_call
from naiad.frontend.clouds.clouds import VertexAi, azure_ml_router, sagemaker_router
from naiad.frontend.clouds.multi_model import MultiModelRoutes
from naiad.frontend.context import UnreadRequest
from naiad.frontend.rest.routes import RestApi
from naiad.frontend.router import Route, Router
from naiad.operations.operation import Operation
from naiad.options.network.access_options import CATEGORIES, RequiredHeader
from naiad.options.network.cloud_options import AzureMlOptions, SageMakerOptions, VertexAiOptions
from naiad.wire.grpc import GrpcStatus
from support.one_engine import OneEngine


class Engine(OneEngine):
    is_draining = False
    shared_memory = SharedMemory()
    request_limits = staticmethod(unlimited)


def rest_router() -> Router:
    return RestApi(Engine()).router()  # type: ignore[arg-type]  # not used


class Asked:
    """A rule that rejects everything and keeps the category that it was asked about."""

    def __init__(self) -> None:
        self.categories: list[str] = []

    def concerns(self, category: str) -> bool:
        return True

    def rejection(self, category: str, field: Callable[[bytes], bytes | None]) -> RejectionResponse:
        self.categories.append(category)
        return RejectionResponse(418, GrpcStatus.UNAVAILABLE, "asked")


def status_of_path(router: Router, method: str, path: str) -> int:
    context: Any = UnreadRequest(method, path, {}, 0)
    router.handle(context)
    assert context.response is not None
    return int(context.response[0])


def asked_category(path: str) -> str:
    router, rule = rest_router(), Asked()
    router.restrict(rule)
    assert status_of_path(router, "GET", path) == 418
    return rule.categories[0]


@pytest.mark.parametrize(
    ("path", "category"),
    [
        ("/v2", "metadata"),
        ("/v2/health/live", "health"),
        ("/v2/health/ready", "health"),
        ("/v2/models/m", "metadata"),
        ("/v2/models/m/versions/1", "metadata"),
        ("/v2/models/m/ready", "health"),
        ("/v2/models/m/versions/3/ready", "health"),
        ("/v2/models/m/infer", "inference"),
        ("/v2/models/m/versions/3/infer", "inference"),
        ("/v2/models/m/generate", "inference"),
        ("/v2/models/m/generate_stream", "inference"),
        ("/v2/models/m/config", "model-config"),
        ("/v2/models/m/stats", "statistics"),
        ("/v2/models/stats", "statistics"),
        ("/v2/models/m/trace/setting", "trace"),
        ("/v2/trace/setting", "trace"),
        ("/v2/logging", "logging"),
        ("/v2/systemsharedmemory/status", "shared-memory"),
        ("/v2/systemsharedmemory/region/r/register", "shared-memory"),
        ("/v2/cudasharedmemory/region/r/unregister", "shared-memory"),
        ("/v2/repository/index", "model-repository"),
        ("/v2/repository/models/m/load", "model-repository"),
        ("/v2/repository/r/models/m/unload", "model-repository"),
        ("/v2/models/m/rollout", "model-repository"),
        ("/v2/models/m/explain", "statistics"),
        ("/docs", "metadata"),
        ("/metrics", UNKNOWN),
        ("/v2/models/m/infer/", UNKNOWN),
        ("/v2/models/m/labels", UNKNOWN),
    ],
)
def test_category_of_a_path_is_tritons(path: str, category: str) -> None:
    assert asked_category(path) == category


@pytest.mark.parametrize("character", ["\n", "\r", "\x00", "\u2028", " ", "%"])
def test_no_character_in_a_name_changes_the_category(character: str) -> None:
    name = f"a{character}b"
    assert asked_category(f"/v2/models/{name}/infer") == "inference"
    assert asked_category(f"/v2/models/{name}") == "metadata"
    assert asked_category(f"/v2/repository/models/{name}/load") == "model-repository"
    assert asked_category(f"/v2/systemsharedmemory/region/{name}/register") == "shared-memory"


def routers() -> dict[str, Router]:
    rest = rest_router()
    models = MultiModelRoutes(Engine(), lambda *_: None, Path("/nonesuch"))  # type: ignore[arg-type]  # not used
    return {
        "rest": rest,
        "sagemaker": sagemaker_router(SageMakerOptions(), rest, models),
        "azure": azure_ml_router(AzureMlOptions(), Engine(), rest),  # type: ignore[arg-type]  # not used
        "vertex": VertexAi(VertexAiOptions(), Engine(), rest, lambda _: None).router(),  # type: ignore[arg-type]
    }


@pytest.mark.parametrize("name", ["rest", "sagemaker", "azure", "vertex"])
def test_every_route_has_a_category(name: str) -> None:
    categories = routers()[name].categories()
    allowed = {*CATEGORIES, FORWARDED} if name in ("azure", "vertex") else set(CATEGORIES)
    assert categories
    assert {pattern: category for pattern, category in categories.items() if category not in allowed} == {}


def test_every_route_is_refused_where_everything_is_restricted() -> None:
    header = RequiredHeader("admin", "secret")
    for router in (routers()["rest"], routers()["sagemaker"]):
        router.restrict(Restrictions(dict.fromkeys(CATEGORIES, header), "API"))
        for pattern in (*router.categories(), "/v2/models/m/labels", "/favicon.ico"):
            for method in ("GET", "POST", "DELETE", "PUT"):
                assert status_of_path(router, method, example_of(pattern)) == 403, pattern


def example_of(pattern: str) -> str:
    """Return a path that the pattern of a route matches."""
    path = re.sub(r"\(\?P<\w+>[^)]*\)", "1", pattern)
    return re.sub(r"\(\?:([^()]*)\)\?", r"\1", path).replace("0*", "").replace("\\.", ".").replace("/?", "/")


def test_route_without_a_category_cannot_be_written() -> None:
    with pytest.raises(TypeError, match="category"):
        Route(r"/v2/models/(?P<model>[^/]+)/labels", actions={})  # type: ignore[call-arg]  # what the test is about


def test_operation_without_a_category_cannot_be_written() -> None:
    with pytest.raises(TypeError, match="category"):
        Operation(name="labels", kind="query", group="Models", summary="Labels")  # type: ignore[call-arg]


def test_every_call_has_a_category() -> None:
    methods = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods
    assert len(methods) > 15
    for method in methods:
        assert category_of_call(f"/inference.GRPCInferenceService/{method.name}") in CATEGORIES, method.name


@pytest.mark.parametrize(
    ("path", "category"),
    [
        ("/grpc.health.v1.Health/Check", "health"),
        ("/grpc.health.v1.Health/Watch", "health"),
        ("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "metadata"),
        ("/inference.GRPCInferenceService/ModelReady", "health"),
        ("/inference.GRPCInferenceService/ModelStreamInfer", "inference"),
        ("/inference.GRPCInferenceService/RepositoryIndex", "model-repository"),
        ("/inference.GRPCInferenceService/Nonesuch", UNKNOWN),
        ("/other.Service/ModelInfer", UNKNOWN),
        ("ModelInfer", UNKNOWN),
    ],
)
def test_category_of_a_call_is_tritons(path: str, category: str) -> None:
    assert category_of_call(path) == category
