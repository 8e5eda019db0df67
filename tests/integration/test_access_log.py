"""Access log, audit, and usage and limits of API keys, over every protocol and with several processes."""

import contextlib
import json
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from tritonclient.utils import InferenceServerException

from naiad.cli.key import new_key
from support.model_repository import write_identity
from support.server_process import ServerProcess, serving
from support.waiting import wait_until

ROWS = np.arange(4, dtype=np.float32).reshape(1, 4)
DOCUMENT = {"id": "r-1", "inputs": [{"name": "INPUT0", "shape": [1, 4], "datatype": "FP32", "data": [0, 1, 2, 3]}]}
INFER = "/v2/models/identity/infer"
SECRET = "query-secret"


class Place:
    """A server with keys and an access log in JSON."""

    def __init__(self, directory: Path, *flags: str) -> None:
        self.directory = directory
        self.access = directory / "access.log"
        self.keys: dict[str, str] = {}
        lines = []
        for name, categories, limits in (
            ("free", "inference,statistics", ()),
            ("admin", "all", ()),
            ("slow", "inference", ("requests-per-second=0.01",)),
            ("thin", "inference", ("bytes-per-second=10",)),
        ):
            line, self.keys[name] = new_key(name, categories, limits)
            lines.append(line)
        (directory / "keys").write_text("\n".join([*lines, "public health -", ""]))
        write_identity(directory / "models")
        self.server = ServerProcess(
            directory / "log",
            f"--model-repository={directory / 'models'}",
            f"--api-key-file={directory / 'keys'}",
            f"--access-log={self.access}",
            "--log-format=json",
            "--model-control-mode=explicit",
            "--load-model=identity",
            "--allow-client-shm=true",
            *flags,
        )
        self.server.wait_ready()

    def bearer(self, key: str) -> dict[str, str]:
        return {"authorization": f"Bearer {self.keys[key]}"}

    def lines(self, **fields: object) -> Sequence[Mapping[str, Any]]:
        """Return the entries with these fields."""
        text = self.access.read_text()
        rows = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        return [row for row in rows if row.items() >= fields.items()]

    def line(self, **fields: object) -> Mapping[str, Any]:
        """Return the only entry with these fields, once it is there."""
        wait_until(lambda: self.lines(**fields), f"no entry with {fields}:\n{self.access.read_text()}")
        (row,) = self.lines(**fields)
        return row

    def infer(self, key: str, http: httpx.Client, **more: Any) -> httpx.Response:
        url = f"http://{self.server.http_url}{INFER}"
        return http.post(url, json={**DOCUMENT, **more}, headers=self.bearer(key))

    def infer_grpc(self, key: str, request_id: str) -> str:
        """Return the status of a request over gRPC."""
        tensor = triton_grpc.InferInput("INPUT0", ROWS.shape, "FP32")
        tensor.set_data_from_numpy(ROWS)
        with triton_grpc.InferenceServerClient(self.server.grpc_url) as client:
            try:
                client.infer("identity", [tensor], request_id=request_id, headers=self.bearer(key))
            except InferenceServerException as error:
                return str(error.status())
        return "OK"

    def metric(self, name: str, **labels: str) -> float:
        answer = self.server.request("GET", "/metrics", headers=self.bearer("admin"), url=self.server.metrics_url)
        rows = re.findall(rf"^{name}{{(.*)}} (\S+)$", answer.body.decode(), re.MULTILINE)
        wanted = {f'{label}="{value}"' for label, value in labels.items()}
        return sum(float(number) for found, number in rows if wanted <= set(found.split(",")))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("accounts"))
    yield made
    made.server.stop()


@pytest.fixture(params=["1.1", "2"])
def http(request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    with httpx.Client(http1=request.param == "1.1", http2=request.param == "2", verify=False) as client:
        yield client


def test_a_request_over_http_has_a_line(place: Place, http: httpx.Client) -> None:
    request_id = f"http-{http._transport._pool._http2}"  # type: ignore[attr-defined]
    response = place.infer("free", http, id=request_id)
    assert response.status_code == 200, response.text
    row = place.line(request_id=request_id)
    assert row == row | {
        "protocol": "HTTP",
        "method": "POST",
        "path": INFER,
        "model": "identity",
        "key": "free",
        "status": 200,
        "bytes_out": len(response.content),
    }
    assert row["client"].startswith("127.0.0.1:")
    assert row["bytes_in"] == len(response.request.content)
    assert row["duration_ms"] > 0
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", row["time"])


def test_a_request_over_grpc_has_a_line(place: Place) -> None:
    assert place.infer_grpc("free", "over-grpc") == "OK"
    row = place.line(request_id="over-grpc")
    assert row == row | {"protocol": "gRPC", "key": "free", "model": "identity", "status": "OK"}
    assert min(row["bytes_in"], row["bytes_out"]) > 16


def test_a_stream_has_one_line(place: Place) -> None:
    tensor = triton_grpc.InferInput("INPUT0", ROWS.shape, "FP32")
    tensor.set_data_from_numpy(ROWS)
    before = place.metric("naiad_key_requests_total", key="free")
    with triton_grpc.InferenceServerClient(place.server.grpc_url) as client:
        errors: list[object] = []
        client.start_stream(lambda result, error: errors.append(error), headers=place.bearer("free"))
        for _ in range(3):
            client.async_stream_infer("identity", [tensor])
        wait_until(lambda: len(errors) == 3, "no responses")
        client.stop_stream()
    assert errors == [None] * 3
    row = place.line(path="/inference.GRPCInferenceService/ModelStreamInfer", key="free")
    assert (row["protocol"], row["status"]) == ("gRPC", "OK")
    assert place.metric("naiad_key_requests_total", key="free") == before + 3
    assert place.metric("naiad_key_in_flight", key="free") == 0


@pytest.mark.parametrize(
    ("method", "path", "key", "status"),
    [
        ("POST", "/v2/models/identity/infer?token=" + SECRET, "", 401),
        ("POST", "/v2/repository/models/none/load?token=" + SECRET, "free", 403),
        ("GET", "/v2/no/such/path?token=" + SECRET, "admin", 404),
        ("DELETE", "/v2/models/identity/infer?token=" + SECRET, "free", 405),
    ],
)
def test_refused_requests_are_audited(
    place: Place, http: httpx.Client, method: str, path: str, key: str, status: int
) -> None:
    headers = place.bearer(key) if key else {}
    mark = f"{status}-{http._transport._pool._http2}"  # type: ignore[attr-defined]
    before = len(place.lines(status=status))
    response = http.request(method, f"http://{place.server.http_url}{path}", headers=headers)
    assert response.status_code == status, (mark, response.text)
    wait_until(lambda: len(place.lines(status=status)) == before + 1, "no entry")
    row = place.lines(status=status)[-1]
    assert (row["path"], row.get("key", ""), row["method"]) == (path.partition("?")[0], key, method)
    line = place.server.wait_log(rf'.*"event": "refused".*"status": {status}.*')[0]
    shown = json.loads(line)
    assert shown["message"].startswith(f"refused: HTTP {method} ")
    assert shown["client"].startswith("127.0.0.1:")


def test_refused_calls_are_audited(place: Place) -> None:
    assert place.infer_grpc("free", "x") == "OK"
    with grpc.insecure_channel(place.server.grpc_url) as channel:
        for path, key, status in (
            ("/inference.GRPCInferenceService/ModelInfer", "", "UNAUTHENTICATED"),
            ("/inference.GRPCInferenceService/RepositoryModelLoad", "free", "PERMISSION_DENIED"),
            ("/inference.GRPCInferenceService/NoSuchCall", "admin", "UNIMPLEMENTED"),
        ):
            call = channel.unary_unary(path)
            with pytest.raises(grpc.RpcError) as refused:
                call(b"", metadata=tuple(place.bearer(key).items()) if key else ())
            assert refused.value.code().name == status
            row = place.line(status=status)
            assert row["path"] == path
            place.server.wait_log(f'"event": "refused".*"status": "{status}"')


def test_control_calls_are_audited(place: Place) -> None:
    admin = place.bearer("admin")
    load = "/v2/repository/models/identity/load"
    assert place.server.request("POST", load, b"", admin).status == 200
    shown = json.loads(place.server.wait_log(rf'.*"event": "control".*"path": "{load}".*')[0])
    assert shown == shown | {"key": "admin", "status": 200, "protocol": "HTTP", "level": "INFO"}
    with triton_grpc.InferenceServerClient(place.server.grpc_url) as client:
        with pytest.raises(InferenceServerException):
            client.load_model("absent", headers=admin)
        client.update_log_settings({"log_verbose_level": 0}, headers=admin)
        before = len(place.lines(path="/inference.GRPCInferenceService/LogSettings"))
        client.get_log_settings(headers=admin)
    shown = json.loads(place.server.wait_log(r'.*"event": "control".*RepositoryModelLoad.*')[0])
    assert (shown["model"], shown["key"]) == ("absent", "admin")
    assert shown["status"] != "OK"
    place.server.wait_log(r'"event": "control".*GRPCInferenceService/LogSettings')
    assert len(re.findall('"event": "control".*LogSettings', place.server.log_text())) == 1, before


def test_no_secret_is_in_a_log(place: Place, http: httpx.Client) -> None:
    http.post(f"http://{place.server.http_url}{INFER}?token={SECRET}", json=DOCUMENT, headers=place.bearer("free"))
    http.get(f"http://{place.server.http_url}/v2", headers={"authorization": "Bearer naiad_guess-secret"})
    wait_until(lambda: place.lines(status=401, path="/v2"), "no entry")
    for text in (place.access.read_text(), place.server.log_text()):
        for secret in (SECRET, "guess-secret", *place.keys.values()):
            assert secret not in text


def test_requests_and_bytes_count_per_key(place: Place, http: httpx.Client) -> None:
    names = [("naiad_key_requests_total", {}), *(("naiad_key_bytes_total", {"direction": d}) for d in ("in", "out"))]
    before = [place.metric(name, key="free", **labels) for name, labels in names]
    response = place.infer("free", http)
    sent = len(response.request.content)
    after = [place.metric(name, key="free", **labels) for name, labels in names]
    assert [b - a for a, b in zip(before, after, strict=True)] == [1, sent, len(response.content)]


@pytest.mark.parametrize("key", ["slow", "thin"])
def test_a_key_beyond_its_limit_is_refused(place: Place, http: httpx.Client, key: str) -> None:
    answers = [place.infer(key, http) for _ in range(3)]
    refused = answers[-1]
    assert refused.status_code == 429
    limit = {"slow": "0.01 requests per second", "thin": "10 bytes per second"}[key]
    assert refused.json()["error"].startswith(f"API key '{key}' has reached its limit of {limit}; try again in ")
    assert 1 <= int(refused.headers["retry-after"]) <= 101
    assert place.infer("free", http).status_code == 200, "other keys are not affected"
    assert place.infer_grpc(key, "limited") == "StatusCode.RESOURCE_EXHAUSTED"
    assert place.metric("naiad_key_limited_total", key=key) >= 2
    assert place.metric("naiad_key_in_flight", key=key) == 0
    place.server.wait_log(f'"event": "refused".*"key": "{key}".*"status": 429')


def test_changed_limits_apply_at_once(place: Place, http: httpx.Client) -> None:
    file = place.directory / "keys"
    text = file.read_text()
    line, place.keys["late"] = new_key("late", "inference", ("requests-per-second=0.01",))
    file.write_text(f"{text}{line}\n")
    wait_until(lambda: place.infer("late", http).status_code != 401, "the key is not known")
    wait_until(lambda: place.infer("late", http).status_code == 429, "the limit is not applied")
    file.write_text(f"{text}{line.replace('0.01', '10000')}\n")
    wait_until(lambda: place.infer("late", http).status_code == 200, "the limit has not changed")
    file.write_text(text)


def test_a_stream_beyond_its_limit_goes_on(place: Place) -> None:
    file = place.directory / "keys"
    text = file.read_text()
    line, place.keys["streams"] = new_key("streams", "inference", ("requests-per-second=0.01",))
    file.write_text(f"{text}{line}\n")
    wait_until(lambda: place.infer_grpc("streams", "x") != "StatusCode.UNAUTHENTICATED", "the key is not known")
    file.write_text(f"{text}{line.replace('0.01', '2')}\n")
    wait_until(lambda: place.infer_grpc("streams", "x") == "OK", "the limit has not changed")
    tensor = triton_grpc.InferInput("INPUT0", ROWS.shape, "FP32")
    tensor.set_data_from_numpy(ROWS)
    with triton_grpc.InferenceServerClient(place.server.grpc_url) as client:
        errors: list[object] = []
        client.start_stream(lambda result, error: errors.append(error), headers=place.bearer("streams"))
        for number in range(5):
            client.async_stream_infer("identity", [tensor], request_id=str(number))
        wait_until(lambda: len(errors) == 5, "not every request is answered")
        client.stop_stream()
    assert errors[0] is None
    assert "API key 'streams' has reached its limit of 2 requests per second" in str(errors[-1])
    file.write_text(text)


def test_abandoned_requests_are_no_longer_in_flight(place: Place) -> None:
    body = json.dumps(DOCUMENT).encode()
    head = f"POST {INFER} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {place.keys['free']}\r\n"
    host, port = place.server.http_url.split(":")
    for _ in range(20):
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    wait_until(lambda: place.metric("naiad_key_in_flight", key="free") == 0, "requests stay in flight")


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("GET /%s HTTP/1.1\r\nHost: a\r\n\r\n" % ("x" * 40000), 414),
        ("GET / HTTP/1.1\r\nHost: a\r\nX-Long: %s\r\n\r\n" % ("x" * 40000), 431),
        ("POST /v2 HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999\r\n\r\n", 413),
        ("no request at all\r\n\r\n", 400),
    ],
)
def test_invalid_requests_are_audited(place: Place, text: str, status: int) -> None:
    host, port = place.server.http_url.split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(text.encode())
        assert connection.recv(65536).startswith(b"HTTP/1.1 %d " % status)
    wait_until(lambda: place.lines(status=status), "no entry")
    place.server.wait_log(f'"event": "refused".*"status": {status}')


def test_several_processes_share_the_limits(tmp_path: Path) -> None:
    made = Place(tmp_path, "--processes=2")
    try:
        line, made.keys["shared"] = new_key("shared", "inference", ("requests-per-second=0.01",))
        (tmp_path / "keys").write_text((tmp_path / "keys").read_text() + line + "\n")
        with httpx.Client(verify=False) as http:
            wait_until(lambda: made.infer("shared", http).status_code == 200, "the key is not known")
        statuses = []
        for _ in range(6):
            with httpx.Client(verify=False) as http:
                statuses.append(made.infer("shared", http).status_code)
        assert statuses.count(200) <= 1, "each process has its share"
        assert statuses.count(429) >= 5
        assert made.metric("naiad_key_requests_total", key="shared") == statuses.count(200) + 1
        answer = made.server.request("POST", "/v2/repository/models/identity/load", b"", made.bearer("admin"))
        assert answer.status == 200
        made.server.wait_log('"event": "control"')
        made.line(path="/v2/repository/models/identity/load", key="admin", status=200)
        assert made.server.log_text().count('"event": "control"') == 1
    finally:
        made.server.stop()


def test_refusals_are_logged_without_an_access_log(tmp_path: Path) -> None:
    write_identity(tmp_path / "models")
    with serving(tmp_path / "log", f"--model-repository={tmp_path / 'models'}") as server:
        for number in range(100):
            assert server.get(f"/nothing/{number}?token={SECRET}").status == 404
        server.wait_log(r"refused: HTTP GET /nothing/0 from 127\.0\.0\.1:\d+: 404: Not Found")
        server.wait_log(r"\d+ more audit lines of the kind 'refused HTTP 404' were not logged one by one")
        assert server.log_text().count("refused: HTTP GET") < 60
        assert SECRET not in server.log_text()


def test_an_access_log_that_cannot_be_opened(tmp_path: Path) -> None:
    write_identity(tmp_path / "models")
    server = ServerProcess(
        tmp_path / "log",
        f"--model-repository={tmp_path / 'models'}",
        f"--access-log={tmp_path / 'no' / 'access.log'}",
    )
    assert server.wait_exit() == 1
    assert re.search("--access-log .*No such file or directory; choose a file that can be written", server.log_text())


def test_large_refused_requests_are_not_in_flight(place: Place, http: httpx.Client) -> None:
    url = f"http://{place.server.http_url}/v2/models/absent/infer"
    with contextlib.suppress(httpx.TransportError):  # over HTTP/2, where the rest of the body is not read
        assert http.post(url, content=b" " * 300_000, headers=place.bearer("free")).status_code == 404
    assert place.metric("naiad_key_in_flight", key="free") == 0


def test_requests_of_foreign_pages_are_audited(place: Place, http: httpx.Client) -> None:
    before = len(place.lines(status=403, path="/v2/logging"))
    url = f"http://{place.server.http_url}/v2/logging?token={SECRET}"
    response = http.post(url, json={}, headers={**place.bearer("admin"), "origin": "http://evil.example"})
    assert response.status_code == 403
    wait_until(lambda: len(place.lines(status=403, path="/v2/logging")) == before + 1, "no entry")
    assert place.lines(status=403, path="/v2/logging")[-1]["method"] == "POST"
    place.server.wait_log('"event": "refused".*"path": "/v2/logging".*"status": 403')
