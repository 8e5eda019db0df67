import pytest
from tritonclient.grpc import service_pb2

from naiad.core.request_limits import unlimited
from naiad.frontend.access import OTHER, category_of_call, category_of_path
from naiad.frontend.rest.routes import RestApi
from naiad.memory.regions import SharedMemory
from naiad.options.network.access import CATEGORIES


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
        ("/metrics", OTHER),
        ("/v2/models/m/infer/", OTHER),
    ],
)
def test_category_of_a_path_is_tritons(path: str, category: str) -> None:
    assert category_of_path(path) == category


@pytest.mark.parametrize("character", ["\n", "\r", "\x00", "\u2028", " ", "%"])
def test_no_character_in_a_name_changes_the_category(character: str) -> None:
    name = f"a{character}b"
    assert category_of_path(f"/v2/models/{name}/infer") == "inference"
    assert category_of_path(f"/v2/models/{name}") == "metadata"
    assert category_of_path(f"/v2/repository/models/{name}/load") == "model-repository"
    assert category_of_path(f"/v2/systemsharedmemory/region/{name}/register") == "shared-memory"


def test_every_route_has_a_category() -> None:
    class Engine:
        is_draining = False
        shared_memory = SharedMemory()
        request_limits = staticmethod(unlimited)

    routes = RestApi(Engine()).router()._routes  # type: ignore[arg-type]  # not used
    for pattern, _, _ in routes:
        path = pattern.pattern
        for group, text in ((r"(?P<model>[^/]+)", "m"), (r"(?:/versions/(?P<version>[0-9]+))?", "/versions/1")):
            path = path.replace(group, text)
        path = path.replace(r"(?:/(?P<repository>[^/]+))?", "/r").replace(
            r"(?:/region/(?P<region>[^/]+))?", "/region/r"
        )
        for whole in (path, path.replace("/versions/1", "").replace("/repository/r/", "/repository/")):
            if pattern.fullmatch(whole):
                assert category_of_path(whole) in CATEGORIES, whole


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
        ("/inference.GRPCInferenceService/ModelReady", "health"),
        ("/inference.GRPCInferenceService/ModelStreamInfer", "inference"),
        ("/inference.GRPCInferenceService/RepositoryIndex", "model-repository"),
        ("/inference.GRPCInferenceService/Nonesuch", OTHER),
        ("/other.Service/ModelInfer", OTHER),
        ("ModelInfer", OTHER),
    ],
)
def test_category_of_a_call_is_tritons(path: str, category: str) -> None:
    assert category_of_call(path) == category
