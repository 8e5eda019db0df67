"""API keys against a real server: both protocols, the metrics port, and a file that changes."""

import queue
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from naiad.cli.key import new_key
from naiad.operations.operation import by_grpc_path
from naiad.operations.table import OPERATIONS
from support.model_repository import write_identity
from support.server_process import ServerProcess

VALUES = {"model": "identity", "version": "1", "repository": "models", "region": "r", "file": "app.js"}
"""What stands for the parameters of the routes."""
REST_CALLS = [
    (form.method, path.format(**VALUES), operation.category)
    for operation in OPERATIONS
    for form in operation.rest
    for path in form.path.variants
]
CALLS = by_grpc_path(OPERATIONS)
ROWS = np.arange(4, dtype=np.float32).reshape(1, 4)


class Guarded:
    """A server and its key file."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "keys"
        ci_line, self.ci = new_key("ci", "inference")
        scrape_line, self.scrape = new_key("prometheus", "metrics")
        self.lines = [ci_line, scrape_line, "public health -"]
        self.file.write_text("\n".join(self.lines))
        write_identity(directory / "models")
        flags = (f"--model-repository={directory / 'models'}", f"--api-key-file={self.file}")
        self.server = ServerProcess(directory / "log", *flags)
        self.server.wait_ready()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    made = Guarded(tmp_path_factory.mktemp("guarded"))
    yield made
    made.server.stop()


def _infer_http(guarded: Guarded, headers: dict[str, str]) -> None:
    with triton_http.InferenceServerClient(guarded.server.http_url) as client:
        tensor = triton_http.InferInput("INPUT0", ROWS.shape, "FP32")
        tensor.set_data_from_numpy(ROWS)
        assert np.array_equal(client.infer("identity", [tensor], headers=dict(headers)).as_numpy("OUTPUT0"), ROWS)


def _infer_grpc(client: triton_grpc.InferenceServerClient, headers: dict[str, str]) -> None:
    tensor = triton_grpc.InferInput("INPUT0", ROWS.shape, "FP32")
    tensor.set_data_from_numpy(ROWS)
    assert np.array_equal(client.infer("identity", [tensor], headers=dict(headers)).as_numpy("OUTPUT0"), ROWS)


def test_key_opens_its_category_on_both_protocols(guarded: Guarded) -> None:
    bearer = {"authorization": f"Bearer {guarded.ci}"}
    _infer_http(guarded, bearer)
    with triton_grpc.InferenceServerClient(guarded.server.grpc_url) as client:
        _infer_grpc(client, bearer)


def test_without_a_key_only_open_categories_answer(guarded: Guarded) -> None:
    server = guarded.server
    assert server.get("/v2/health/ready").status == 200
    refused = server.get("/v2/models/identity")
    assert refused.status == 401
    assert refused.headers["WWW-Authenticate"].startswith("Bearer")
    assert "API key" in refused.json["error"]
    with triton_grpc.InferenceServerClient(server.grpc_url) as client:
        assert client.is_server_ready()
        with pytest.raises(InferenceServerException) as failed:
            _infer_grpc(client, {})
        assert failed.value.status() == "StatusCode.UNAUTHENTICATED"
        with pytest.raises(InferenceServerException) as failed:
            client.get_model_repository_index(headers={"authorization": f"Bearer {guarded.ci}"})
        assert failed.value.status() == "StatusCode.PERMISSION_DENIED"
        assert "'ci'" in failed.value.message()


def test_stream_without_a_key_ends_unauthenticated(guarded: Guarded) -> None:
    errors: queue.Queue[object] = queue.Queue()
    with triton_grpc.InferenceServerClient(guarded.server.grpc_url) as client:
        client.start_stream(lambda result, error: errors.put(error))
        assert "UNAUTHENTICATED" in str(errors.get(timeout=60))


def test_every_route_needs_a_key_of_its_category(guarded: Guarded) -> None:
    assert len(REST_CALLS) > 50
    for method, path, category in REST_CALLS:
        body = None if method == "GET" else b"{}"
        statuses = [
            guarded.server.request(method, path, body, headers).status
            for headers in ({}, {"Authorization": "Bearer x"}, {"Authorization": f"Bearer {guarded.scrape}"})
        ]
        wanted = [200, 200, 200] if category == "health" else [401, 401, 403]
        assert statuses == wanted or (category == "health" and 401 not in statuses), (method, path, statuses)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_every_route_needs_a_key_over_http2(guarded: Guarded) -> None:
    for method, path, category in REST_CALLS:
        data = () if method == "GET" else ("-d", "{}")
        command = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "--http2-prior-knowledge", "-X", method]
        command += [*data, f"http://{guarded.server.http_url}{path}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        assert (done.stdout == "401") is (category != "health"), (method, path, done.stdout)


def test_every_method_needs_a_key_of_its_category(guarded: Guarded) -> None:
    def status(channel: grpc.Channel, path: str, metadata: tuple[tuple[str, str], ...]) -> grpc.StatusCode:
        try:
            next(channel.stream_stream(path)(iter([b""]), metadata=metadata, timeout=60))
        except grpc.RpcError as error:
            return error.code()
        return grpc.StatusCode.OK

    denied = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
    other = (("authorization", f"Bearer {guarded.scrape}"),)
    with grpc.insecure_channel(guarded.server.grpc_url) as channel:
        for path, operation in CALLS.items():
            found = (status(channel, path, ()), status(channel, path, other))
            is_open = operation.category == "health"
            assert (found == denied) is not is_open, (path, found)
            assert not is_open or not set(found) & set(denied), (path, found)


def test_metrics_need_their_key(guarded: Guarded) -> None:
    server = guarded.server
    assert server.get("/metrics", url=server.metrics_url).status == 401
    for key, status in ((guarded.ci, 403), (guarded.scrape, 200)):
        headers = {"Authorization": f"Bearer {key}"}
        assert server.request("GET", "/metrics", headers=headers, url=server.metrics_url).status == status


def test_keys_are_not_logged_but_plaintext_warns(guarded: Guarded) -> None:
    log = guarded.server.log_text()
    assert "API keys travel in plain text" in log
    assert guarded.ci not in log


def test_changed_file_counts_also_on_open_connections(guarded: Guarded) -> None:
    server = guarded.server
    line, fresh = new_key("fresh", "inference")
    with triton_grpc.InferenceServerClient(server.grpc_url) as client:
        _infer_grpc(client, {"authorization": f"Bearer {guarded.ci}"})
        guarded.file.write_text("\n".join([line, *guarded.lines[1:]]))
        server.wait_log("read again: .*keys")
        with pytest.raises(InferenceServerException) as failed:
            _infer_grpc(client, {"authorization": f"Bearer {guarded.ci}"})
        assert failed.value.status() == "StatusCode.UNAUTHENTICATED"
        _infer_grpc(client, {"authorization": f"Bearer {fresh}"})
    guarded.file.write_text("nonsense\n")
    server.wait_log("line 1: expected .*; the previous content stays in use")
    _infer_http(guarded, {"authorization": f"Bearer {fresh}"})
    guarded.file.write_text("\n".join([*guarded.lines, "# as before"]))
    server.wait_log(r"(?s)read again:.*read again:")


def test_bad_key_file_ends_the_start(tmp_path: Path) -> None:
    write_identity(tmp_path / "models")
    server = ServerProcess(
        tmp_path / "log", f"--model-repository={tmp_path / 'models'}", f"--api-key-file={tmp_path / 'none'}"
    )
    try:
        assert server.wait_exit() == 1
        assert "--api-key-file" in server.log_text()
        assert "No such file" in server.log_text()
    finally:
        server.stop()


def test_page_of_allowed_origin_calls_with_its_key(tmp_path: Path) -> None:
    """What a browser does: a preflight without credentials, then the call itself."""
    line, key = new_key("page", "inference")
    (tmp_path / "keys").write_text(line)
    write_identity(tmp_path / "models")
    flags = (f"--model-repository={tmp_path / 'models'}", f"--api-key-file={tmp_path / 'keys'}")
    server = ServerProcess(tmp_path / "log", *flags, "--http-cors-origin=https://page.example")
    try:
        server.wait_started()
        path, origin = "/v2/models/identity/infer", {"Origin": "https://page.example"}
        asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
        preflight = server.request("OPTIONS", path, headers={**origin, **asked})
        assert preflight.status == 200
        assert preflight.headers["Access-Control-Allow-Headers"] == "authorization"
        body = b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,1],"data":[2]}]}'
        answer = server.request("POST", path, body, {**origin, "Authorization": f"Bearer {key}"})
        assert answer.json["outputs"][0]["data"] == [2.0]
        assert answer.headers["Access-Control-Allow-Origin"] == "https://page.example"
        refused = server.request("POST", path, body, origin)
        assert refused.status == 401
        assert (
            refused.headers["Access-Control-Allow-Origin"] == "https://page.example"
        )  # so that the page can say why
        assert server.request("OPTIONS", path, headers={"Origin": "https://evil.example", **asked}).status == 403
    finally:
        server.stop()
