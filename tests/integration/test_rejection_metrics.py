"""Every response and every rejection is counted: metrics against what the clients saw."""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from naiad.protocol.service_pb2 import ModelInferRequest
from support.model_repository import write_identity
from support.raw_http1 import HttpPeer
from support.server_process import ServerProcess, serving

BODY = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}
FULL = "dynamic_batching { default_queue_policy { max_queue_size: 2 } }"
INFER = "/v2/models/small/infer"
REQUESTS, CLIENTS = 80, 16
KEY = ("--http-restricted-api=logging:secret=x", "--grpc-restricted-protocol=logging:secret=x")

Counts = dict[tuple[str, ...], float]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    write_identity(root, "small", max_batch_size=1, parameters={"execute_delay_ms": "20"}, extra=FULL)
    return root


@pytest.fixture(scope="module", params=["1", "2"])
def server(
    repository: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    log = tmp_path_factory.mktemp("server") / "log"
    flags = (f"--model-repository={repository}", f"--processes={request.param}", *KEY)
    with serving(log, *flags) as running:
        yield running


def scrape(server: ServerProcess) -> tuple[Counts, Counts]:
    """Return responses by protocol and code, and rejections by model and reason."""
    text = server.get("/metrics", url=server.metrics_url).body.decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    responses, rejected = families["naiad_responses"], families["naiad_request_rejected"]
    return (
        {(s.labels["protocol"], s.labels["code"]): s.value for s in responses.samples},
        {(s.labels["model"], s.labels["reason"]): s.value for s in rejected.samples},
    )


def added(server: ServerProcess, before: tuple[Counts, Counts]) -> tuple[Counts, Counts]:
    """Return what was counted since `before`; the scrapes themselves have an HTTP status of their own, 200."""
    after = scrape(server)
    changes = [
        {key: value - old.get(key, 0) for key, value in new.items() if value != old.get(key, 0)}
        for old, new in zip(before, after, strict=True)
    ]
    return changes[0], changes[1]


def infer_over_grpc(server: ServerProcess, model: str = "small") -> str:
    request = ModelInferRequest(model_name=model)
    tensor = request.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 1])
    tensor.contents.fp32_contents.append(1.0)
    with grpc.insecure_channel(server.grpc_url) as channel:
        try:
            channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(request.SerializeToString(), timeout=30)
        except grpc.RpcError as error:
            return error.code().name
        return "OK"


def test_overload_over_http_is_counted(server: ServerProcess) -> None:
    before = scrape(server)
    with ThreadPoolExecutor(CLIENTS) as pool:
        seen = Counter(pool.map(lambda _: server.post(INFER, BODY).status, range(REQUESTS)))
    responses, rejected = added(server, before)
    assert seen[503] > 0
    assert set(seen) == {200, 503}
    assert responses[("http", "503")] == seen[503] == rejected[("small", "queue_full")]
    assert responses[("http", "200")] - 1 == seen[200]  # and the first scrape


def test_overload_over_grpc_is_counted(server: ServerProcess) -> None:
    before = scrape(server)
    with ThreadPoolExecutor(CLIENTS) as pool:
        seen = Counter(pool.map(lambda _: infer_over_grpc(server), range(REQUESTS)))
    responses, rejected = added(server, before)
    assert seen["UNAVAILABLE"] > 0
    assert set(seen) == {"OK", "UNAVAILABLE"}
    assert responses[("grpc", "UNAVAILABLE")] == seen["UNAVAILABLE"] == rejected[("small", "queue_full")]
    assert responses[("grpc", "OK")] == seen["OK"]


def test_rejections_before_model_is_known_are_counted(server: ServerProcess) -> None:
    before = scrape(server)
    for number in range(3):
        assert server.post(f"/v2/models/nothing{number}/infer", BODY).status == 404
        assert infer_over_grpc(server, f"nothing{number}") == "NOT_FOUND"
    assert server.get("/nowhere").status == 403  # restrictions hide what does not exist
    assert server.get("/v2/logging").status == 403
    with grpc.insecure_channel(server.grpc_url) as channel, pytest.raises(grpc.RpcError):
        channel.unary_unary("/inference.GRPCInferenceService/LogSettings")(b"", timeout=30)
    assert server.post("/v2/models/small/infer", {}).status == 400
    with HttpPeer(server.http_url) as peer:
        peer.send(b"GET / HTTP/1.1\r\nno field\r\n\r\n")
        assert peer.answer().status == 400
    responses, rejected = added(server, before)
    assert responses == {
        ("http", "200"): 1,
        ("http", "404"): 3,
        ("http", "403"): 2,
        ("http", "400"): 2,
        ("grpc", "NOT_FOUND"): 3,
        ("grpc", "UNAVAILABLE"): 1,
    }
    assert rejected == {
        ("", "unknown_model"): 6,
        ("", "unauthorized"): 3,
        ("small", "invalid"): 1,
        ("", "invalid"): 1,
    }


def test_connection_limit_is_counted(repository: Path, tmp_path: Path) -> None:
    with serving(tmp_path / "log", f"--model-repository={repository}", "--max-connections-per-address=2") as server:
        before = scrape(server)
        with HttpPeer(server.http_url), HttpPeer(server.http_url), HttpPeer(server.http_url) as third:
            assert third.answer().status == 503
        responses, rejected = added(server, before)
    assert responses == {("http", "503"): 1, ("http", "200"): 1}
    assert rejected == {("", "overload"): 1}
