"""Requests of foreign web pages and for foreign hosts are refused at every door, and change nothing."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from naiad.operations.dashboard import LIVE
from naiad.operations.operation import by_grpc_path
from naiad.operations.table import OPERATIONS
from support.browser import needs_browser, page_server
from support.model_repository import write_identity
from support.ports import free_port
from support.server_process import ServerProcess, serving

BODY = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [2]}]})
PAGE = "https://app.example"
FOREIGN = (("Origin: http://evil.example",), ("Origin: null",), ("Sec-Fetch-Site: cross-site", "Accept: text/html"))
CHANGES = {
    "/v2/repository/models/identity/unload": "",
    "/v2/logging": '{"log_error":false}',
    "/v2/trace/setting": '{"trace_rate":"7"}',
    "/v2/systemsharedmemory/unregister": "",
    "/v2/models/identity/infer": BODY,
}
VALUES = {
    "model": "identity",
    "name": "identity",
    "version": "1",
    "repository": "models",
    "region": "r",
    "file": "app.js",
}
"""What stands for the named groups of the routes."""
pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


def rest_calls() -> list[tuple[str, str, bool]]:
    """Method and path of every call over REST, with and without optional parts; whether it changes or executes."""
    found = []
    for operation in OPERATIONS:
        for form in operation.rest:
            for path in form.path.variants:
                is_refused = form.method != "GET" or operation.category == "inference" or operation is LIVE
                found.append((form.method, path.format(**VALUES), is_refused))
    return list(dict.fromkeys(found))


SAGEMAKER_CALLS = [
    ("GET", "/ping", False),
    ("POST", "/invocations", True),
    ("GET", "/models", False),
    ("POST", "/models", True),
    ("GET", "/models/identity", False),
    ("DELETE", "/models/identity", True),
    ("POST", "/models/identity/invoke", True),
]
REST_CALLS = rest_calls()
CALLS = {"rest": REST_CALLS, "sagemaker": SAGEMAKER_CALLS}
REFUSED_POSTS = [path for method, path, is_refused in REST_CALLS if method == "POST" and is_refused]


@pytest.fixture(scope="module")
def clouds() -> dict[str, int]:
    return {name: free_port() for name in ("sagemaker", "vertex-ai", "azure-ml")}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, clouds: dict[str, int]) -> Iterator[ServerProcess]:
    """A server with all doors; no request of these tests may change it."""
    root = tmp_path_factory.mktemp("pages")
    write_identity(root / "models")
    port = free_port()
    doors = [flag for name, at in clouds.items() for flag in (f"--allow-{name}=true", f"--{name}-port={at}")]
    addresses = [f"--{name}-address=127.0.0.1" for name in clouds]
    variables = {"AIP_MODE": "", "AIP_PREDICT_ROUTE": "/predict", "AIP_HEALTH_ROUTE": "/health"}
    control = ("--model-control-mode=explicit", "--load-model=identity", f"--http-cors-origin={PAGE}")
    one_port = (f"--http-port={port}", f"--grpc-port={port}")
    where = f"--model-repository={root / 'models'}"
    with serving(root / "log", where, *control, *one_port, *doors, *addresses, environment=variables) as running:
        yield running


def curl(url: str, *fields: str, body: str | None = None, version: str = "--http1.1") -> int:
    """Return the status of a request."""
    data = () if body is None else ("-d", body)
    command = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", version, *data, url]
    for field in fields:
        command += ["-H", field]
    return int(subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout)


def assert_unchanged(server: ServerProcess) -> None:
    assert server.get("/v2/models/identity/ready").status == 200
    assert server.get("/v2/logging").json["log_error"] is True
    assert server.get("/v2/trace/setting").json["trace_rate"] == "1000"


@pytest.mark.parametrize("version", ["--http1.1", "--http2-prior-knowledge"])
@pytest.mark.parametrize("fields", FOREIGN, ids=lambda fields: fields[0])
def test_foreign_pages_change_and_execute_nothing(
    server: ServerProcess, version: str, fields: tuple[str, ...]
) -> None:
    count = server.get("/v2/models/identity/stats").json["model_stats"][0]["inference_count"]
    for path, body in CHANGES.items():
        url = f"http://{server.http_url}{path}"
        assert curl(url, *fields, "Content-Type: text/plain", body=body, version=version) == 403
    assert_unchanged(server)
    assert server.get("/v2/models/identity/stats").json["model_stats"][0]["inference_count"] == count


@pytest.mark.parametrize("door", ["rest", "sagemaker"])
def test_every_route_refuses_foreign_pages_and_hosts(
    server: ServerProcess, clouds: dict[str, int], door: str
) -> None:
    url = server.http_url if door == "rest" else f"127.0.0.1:{clouds[door]}"
    calls = CALLS[door]
    assert len(calls) >= {"rest": 45, "sagemaker": 7}[door]
    for method, path, is_refused in calls:
        body = None if method == "GET" else BODY.encode()
        for field in [field for fields in FOREIGN for field in fields[:1]]:
            name, _, value = field.partition(": ")
            status = server.request(method, path, body, {name: value}, url=url).status
            assert (status == 403) is is_refused, (method, path, field, status)
        assert server.request(method, path, body, {"Host": "evil.example"}, url=url).status == 403, (method, path)
    assert_unchanged(server)


@pytest.mark.parametrize("version", ["--http1.1", "--http2-prior-knowledge"])
def test_allowed_pages_and_clients_are_served(server: ServerProcess, version: str) -> None:
    infer = f"http://{server.http_url}/v2/models/identity/infer"
    own = f"Origin: http://{server.http_url}"
    for fields in ((), (f"Origin: {PAGE}", "Sec-Fetch-Site: cross-site"), (own,), ("Sec-Fetch-Site: same-origin",)):
        assert curl(infer, *fields, body=BODY, version=version) == 200
    assert curl(f"http://{server.http_url}/v2", "Origin: http://evil.example", version=version) == 200


@pytest.mark.parametrize("version", ["--http1.1", "--http2-prior-knowledge"])
def test_foreign_hosts_are_refused(server: ServerProcess, version: str) -> None:
    port = server.http_url.rpartition(":")[2]
    for path in ("/v2/health/live", "/v2/models/identity", "/docs", "/nonesuch"):
        assert curl(f"http://127.0.0.1:{port}{path}", "Host: evil.example", version=version) == 403
    for host in ("localhost", f"LOCALHOST:{port}", "[::1]"):
        assert curl(f"http://127.0.0.1:{port}/v2/health/live", f"Host: {host}", version=version) == 200


@pytest.mark.parametrize(
    ("door", "path", "body"),
    [
        ("sagemaker", "/invocations", BODY),
        ("sagemaker", "/models", '{"model_name":"a","url":"/tmp/a"}'),
        ("vertex-ai", "/predict", BODY),
        ("azure-ml", "/score", BODY),
        ("azure-ml", "/v2/repository/models/identity/unload", ""),
        ("azure-ml", "/v2/logging", '{"log_error":false}'),
    ],
)
def test_doors_of_clouds_refuse_them_too(
    server: ServerProcess, clouds: dict[str, int], door: str, path: str, body: str
) -> None:
    url = f"http://127.0.0.1:{clouds[door]}{path}"
    for fields in (*FOREIGN, ("Host: evil.example",)):
        assert curl(url, *fields, body=body) == 403
    assert_unchanged(server)


def test_metrics_port_has_its_hosts_too(server: ServerProcess) -> None:
    url = f"http://{server.metrics_url}/metrics"
    assert curl(url) == 200
    assert curl(url, "Host: evil.example") == 403


def test_call_that_looks_like_a_page_is_denied(server: ServerProcess) -> None:
    with grpc.insecure_channel(server.grpc_url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        request = service_pb2.RepositoryModelUnloadRequest(model_name="identity")
        with pytest.raises(grpc.RpcError) as refused:
            stub.RepositoryModelUnload(request, metadata=[("origin", "http://evil.example")], timeout=30)
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert stub.ServerLive(service_pb2.ServerLiveRequest(), timeout=30).live
    assert_unchanged(server)


def test_flag_lists_more_hosts(tmp_path: Path) -> None:
    write_identity(tmp_path / "models")
    where = f"--model-repository={tmp_path / 'models'}"
    with serving(tmp_path / "log", where, "--http-allowed-hosts=gpu.example,proxy") as running:
        url = f"http://{running.http_url}/v2/health/live"
        statuses = {host: curl(url, f"Host: {host}") for host in ("gpu.example:80", "proxy", "localhost", "evil")}
    assert statuses == {"gpu.example:80": 200, "proxy": 200, "localhost": 200, "evil": 403}


@pytest.mark.parametrize("method", by_grpc_path(OPERATIONS))
def test_every_method_refuses_calls_of_pages(server: ServerProcess, method: str) -> None:
    with grpc.insecure_channel(server.grpc_url) as channel:
        call = channel.unary_unary(method)
        for field in (("origin", "http://evil.example"), ("sec-fetch-site", "cross-site")):
            with pytest.raises(grpc.RpcError) as refused:
                call(b"", metadata=[field], timeout=30)
            assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert_unchanged(server)


def refused_count(server: ServerProcess) -> int:
    text = server.get("/metrics", url=server.metrics_url).body.decode()
    rows = re.findall(r'^naiad_responses_total\{.*code="403".*\} (\d+)', text, re.MULTILINE)
    return sum(map(int, rows))


@needs_browser
@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "localhost"])
def test_real_page_of_another_origin_changes_nothing(server: ServerProcess, host: str) -> None:
    base, simple = f"http://{server.http_url}", {"method": "POST", "mode": "no-cors"}
    changes = {path: (base + path, {**simple, "body": CHANGES.get(path, BODY)}) for path in REFUSED_POSTS}
    gets = [path for method, path, is_refused in REST_CALLS if method == "GET" and is_refused]
    json_call = {"method": "POST", "headers": {"Content-Type": "application/json"}, "body": BODY}
    before = refused_count(server)
    with page_server() as pages:
        results = pages.fetch_all(
            host,
            {
                **changes,
                **{f"GET {path}": (base + path, {"mode": "no-cors"}) for path in gets},
                "read": (base + "/v2", {}),
                "json": (base + "/v2/models/identity/infer", json_call),
                "delete": (base + "/v2/models/identity/rollout", {"method": "DELETE"}),
                "rebound": (f"http://rebound.example:{base.rpartition(':')[2]}/v2", {"mode": "no-cors"}),
            },
        )
    assert {results[path] for path in changes} == {"opaque"}  # sent, and its answer hidden
    for name in ("read", "json", "delete"):
        assert "TypeError" in results[name]  # the page can read nothing
    assert refused_count(server) - before >= len(changes) + len(gets) + 1
    assert_unchanged(server)
    assert server.get("/v2/models/identity/stats").json["model_stats"][0]["inference_count"] <= 8


@needs_browser
def test_real_page_of_an_allowed_origin_infers(tmp_path: Path) -> None:
    write_identity(tmp_path / "models")
    with page_server() as pages:
        origin = f"http://app.example:{pages.port}"
        flags = (f"--model-repository={tmp_path / 'models'}", f"--http-cors-origin={origin}")
        with serving(tmp_path / "log", *flags) as running:
            url = f"http://{running.http_url}/v2/models/identity/infer"
            call = {"method": "POST", "headers": {"Content-Type": "application/json"}, "body": BODY}
            assert pages.fetch_all("app.example", {"infer": (url, call)}) == {"infer": 200}
