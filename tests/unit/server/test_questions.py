import pytest

from naiad.cluster.member.sharing import (
    changes_by_call,
    changes_by_path,
    query_of_call,
    query_of_path,
)
from naiad.cluster.messages import AskStatistics, IsModelReady, IsReady, Query
from naiad.options.network.access import Category
from naiad.protocol import service_pb2 as pb

SERVICE = "/inference.GRPCInferenceService/"


STATISTICS = ("/v2/models/stats", "/v2/models/m/stats", "/v2/models/m/versions/3/stats")


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("/v2/health/ready", IsReady()),
        ("/v2/health/live", None),
        ("/v2/models/m/ready", IsModelReady("m", "")),
        ("/v2/models/m/versions/3/ready", IsModelReady("m", "3")),
        ("/v2/models/m/versions/03/ready", IsModelReady("m", "3")),
        ("/v2/models/stats", AskStatistics()),
        ("/v2/models/m/stats", AskStatistics()),
        ("/v2/models/m/versions/3/stats", AskStatistics()),
        ("/v2/repository/index", None),
        ("/v2/repository/models/m/load", None),
        ("/v2", None),
        ("/v2/models/m", None),
        ("/v2/models/m/config", None),
        ("/v2/models/m/infer", None),
        ("/v2/logging", None),
    ],
)
def test_what_an_http_request_has_to_ask(path: str, query: Query | None) -> None:
    assert query_of_path(path, "statistics" if path in STATISTICS else "metadata") == query


@pytest.mark.parametrize(
    ("path", "category"),
    [
        ("/v2/repository/models/m/load", "model-repository"),
        ("/v2/repository/models/m/unload", "model-repository"),
        ("/v2/logging", "logging"),
        ("/v2/trace/setting", "trace"),
        ("/v2/models/m/trace/setting", "trace"),
        ("/v2/systemsharedmemory/region/x/register", "shared-memory"),
        ("/v2/cudasharedmemory/unregister", "shared-memory"),
    ],
)
def test_http_requests_that_change_processes(path: str, category: Category) -> None:
    assert changes_by_path(path, category)


@pytest.mark.parametrize(
    ("path", "category"),
    [
        ("/v2/models/m/infer", "inference"),
        ("/v2/repository/index", "model-repository"),
        ("/v2/repository/r/index", "model-repository"),
        ("/v2", "metadata"),
        ("/v2/health/ready", "health"),
    ],
)
def test_http_requests_that_change_nothing(path: str, category: Category) -> None:
    assert not changes_by_path(path, category)


@pytest.mark.parametrize(
    ("method", "query"),
    [
        ("ServerReady", IsReady()),
        ("ServerLive", None),
        ("ModelStatistics", AskStatistics()),
        ("RepositoryIndex", None),
        ("ModelConfig", None),
        ("RepositoryModelLoad", None),
    ],
)
def test_what_a_grpc_call_has_to_ask(method: str, query: Query | None) -> None:
    assert query_of_call(SERVICE + method, b"") == query


def test_a_grpc_call_about_a_model_names_it() -> None:
    message = pb.ModelReadyRequest(name="m", version="2").SerializeToString()
    assert query_of_call(SERVICE + "ModelReady", message) == IsModelReady("m", "2")
    assert query_of_call("/grpc.health.v1.Health/Check", b"") == IsReady()


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("RepositoryModelLoad", True),
        ("RepositoryModelUnload", True),
        ("LogSettings", True),
        ("TraceSetting", True),
        ("SystemSharedMemoryRegister", True),
        ("CudaSharedMemoryUnregister", True),
        ("SystemSharedMemoryStatus", False),
        ("CudaSharedMemoryStatus", False),
        ("RepositoryIndex", False),
        ("ModelInfer", False),
        ("ServerMetadata", False),
    ],
)
def test_grpc_calls_that_change_processes(method: str, changes: bool) -> None:
    assert changes_by_call(SERVICE + method) is changes
