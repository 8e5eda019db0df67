"""REST and gRPC on one port, over both versions of HTTP, in plain text and over TLS, asked by stock clients."""

import json
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from support.certificates import Certificates
from support.model_repository import write_identity, write_model
from support.ports import free_port
from support.server_process import ServerProcess, serving

StartServer = Callable[..., ServerProcess]
ROWS = np.arange(4, dtype=np.float32).reshape(1, 4)
JSON = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 4], "data": [0, 1, 2, 3]}]})
PLAIN_MODES = {"--http1.1": "1.1", "--http2-prior-knowledge": "2", "--http2": "1.1"}
TLS_MODES = {"--http1.1": "1.1", "--http2": "2"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    write_identity(root)
    write_model(root, "repeat", 'backend: "repeat"\n')
    return root


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def one_port(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    port = free_port()
    log = tmp_path_factory.mktemp("one_port") / "log"
    with serving(log, f"--model-repository={models}", f"--http-port={port}", f"--grpc-port={port}") as running:
        yield running


@pytest.fixture(scope="module")
def one_tls_port(
    models: Path, certificates: Certificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    port = free_port()
    flags = [f"--http-port={port}", f"--grpc-port={port}", *certificates.flags("http")]
    log = tmp_path_factory.mktemp("one_tls_port") / "log"
    running = ServerProcess(log, f"--model-repository={models}", *flags)
    running.tls = certificates.client_context()
    try:
        running.wait_ready()
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="module")
def two_ports(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("two_ports") / "log", f"--model-repository={models}") as running:
        yield running


def curl(*arguments: str, exit_status: int = 0) -> str:
    done = subprocess.run(
        ["curl", "-sS", "-m", "20", *arguments], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == exit_status, done.stderr
    return done.stdout


def infer_by_curl(url: str, *arguments: str) -> tuple[str, list[float]]:
    """Return the version of HTTP that answered, and the answer."""
    text = curl(*arguments, "-w", "\n%{http_version}", "-d", JSON, f"{url}/v2/models/identity/infer")
    body, _, version = text.rpartition("\n")
    return version, json.loads(body)["outputs"][0]["data"]


def infer_by_grpc(url: str, **options: object) -> np.ndarray:
    with triton_grpc.InferenceServerClient(url, **options) as client:
        tensor = triton_grpc.InferInput("INPUT0", ROWS.shape, "FP32")
        tensor.set_data_from_numpy(ROWS)
        return client.infer("identity", [tensor], client_timeout=60).as_numpy("OUTPUT0")


def infer_by_http(url: str) -> np.ndarray:
    with triton_http.InferenceServerClient(url) as client:
        tensor = triton_http.InferInput("INPUT0", ROWS.shape, "FP32")
        tensor.set_data_from_numpy(ROWS)
        return client.infer("identity", [tensor]).as_numpy("OUTPUT0")


# --- one port


def test_one_socket_is_logged_for_both_protocols(one_port: ServerProcess) -> None:
    assert one_port.http_url == one_port.grpc_url
    assert one_port.log_text().count(f"Service at {one_port.http_url}") == 2


@pytest.mark.parametrize(("mode", "version"), PLAIN_MODES.items())
def test_curl_infers(one_port: ServerProcess, mode: str, version: str) -> None:
    assert infer_by_curl(f"http://{one_port.http_url}", mode) == (version, [0, 1, 2, 3])


@pytest.mark.parametrize(("mode", "version"), TLS_MODES.items())
def test_curl_infers_over_tls(
    one_tls_port: ServerProcess, certificates: Certificates, mode: str, version: str
) -> None:
    trust = ("--cacert", str(certificates.root), mode)
    assert infer_by_curl(f"https://{one_tls_port.http_url}", *trust) == (version, [0, 1, 2, 3])


def test_clients_of_both_protocols_infer(one_port: ServerProcess) -> None:
    assert np.array_equal(infer_by_grpc(one_port.http_url), ROWS)
    assert np.array_equal(infer_by_http(one_port.http_url), ROWS)


def test_grpc_client_infers_over_tls(one_tls_port: ServerProcess, certificates: Certificates) -> None:
    url = one_tls_port.http_url.replace("127.0.0.1", "localhost")
    assert np.array_equal(infer_by_grpc(url, ssl=True, root_certificates=str(certificates.root)), ROWS)


def test_client_without_alpn_is_recognized_over_tls(one_tls_port: ServerProcess, certificates: Certificates) -> None:
    trust = ("--cacert", str(certificates.root), "--no-alpn")
    assert infer_by_curl(f"https://{one_tls_port.http_url}", *trust) == ("1.1", [0, 1, 2, 3])


@pytest.mark.parametrize("mode", ["--http1.1", "--http2-prior-knowledge"])
def test_all_of_rest_is_same_over_both_versions(one_port: ServerProcess, mode: str) -> None:
    url = f"http://{one_port.http_url}"
    metadata = curl(mode, f"{url}/v2")
    assert json.loads(metadata)["name"] == "triton"
    assert curl(mode, "-o", "/dev/null", "-w", "%{http_code}", f"{url}/v2/health/ready") == "200"
    assert f"content-length: {len(metadata)}" in curl(mode, "-I", f"{url}/v2").lower()
    answer = curl(mode, "-w", "\n%{http_code}", f"{url}/v2/models/none")
    assert answer.endswith("\n404")
    assert "unknown model" in answer
    assert curl(mode, "-X", "DELETE", "-o", "/dev/null", "-w", "%{http_code}", f"{url}/v2") == "405"


@pytest.mark.parametrize("mode", ["--http1.1", "--http2-prior-knowledge"])
def test_large_binary_tensors_pass(one_port: ServerProcess, tmp_path: Path, mode: str) -> None:
    rows = np.random.default_rng(0).random((1, 3_000_000), dtype=np.float32)
    head = json.dumps(
        {
            "inputs": [
                {
                    "name": "INPUT0",
                    "datatype": "FP32",
                    "shape": list(rows.shape),
                    "parameters": {"binary_data_size": rows.nbytes},
                }
            ],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    (tmp_path / "request").write_bytes(head + rows.tobytes())
    url = f"http://{one_port.http_url}/v2/models/identity/infer"
    arguments = ["-H", f"Inference-Header-Content-Length: {len(head)}", "--data-binary", f"@{tmp_path / 'request'}"]
    fields = curl(mode, *arguments, "-D", "-", "-o", str(tmp_path / "answer"), url)
    length = int(re.search(r"inference-header-content-length: (\d+)", fields, re.IGNORECASE)[1])
    assert (tmp_path / "answer").read_bytes()[length:] == rows.tobytes()


def test_streamed_answers_are_the_same_over_both_versions(one_port: ServerProcess) -> None:
    count = 500
    body = json.dumps({"IN": list(range(count)), "DELAY": [0] * count, "WAIT": 0})
    url = f"http://{one_port.http_url}/v2/models/repeat/generate_stream"
    answers = [curl(mode, "-d", body, url) for mode in ("--http1.1", "--http2-prior-knowledge")]
    assert answers[0] == answers[1]
    assert answers[1].count("data: ") >= count


def test_first_piece_of_stream_arrives_before_last(one_port: ServerProcess) -> None:
    body = json.dumps({"IN": [1, 2], "DELAY": [0, 60_000], "WAIT": 0})
    url = f"http://{one_port.http_url}/v2/models/repeat/generate_stream"
    command = ["curl", "-sSN", "-m", "30", "--http2-prior-knowledge", "-d", body, url]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as asked:
        assert asked.stdout is not None
        first = asked.stdout.readline()
        asked.kill()
    assert first.startswith(b"data: ")


@pytest.mark.skipif(shutil.which("h2load") is None, reason="h2load is not installed")
def test_h2load_of_rest_over_http_2(one_port: ServerProcess, tmp_path: Path) -> None:
    (tmp_path / "body").write_text(JSON)
    command = ["h2load", "-n500", "-c4", "-m8", "-d", str(tmp_path / "body")]
    url = f"http://{one_port.http_url}/v2/models/identity/infer"
    done = subprocess.run([*command, url], capture_output=True, text=True, timeout=60, check=True)
    assert "500 succeeded, 0 failed, 0 errored, 0 timeout" in done.stdout
    assert "500 2xx" in done.stdout


def test_drain_ends_connections_of_both_versions(models: Path, start_server: StartServer) -> None:
    port = free_port()
    server = start_server(models, f"--http-port={port}", f"--grpc-port={port}", "--exit-timeout-secs=5")
    server.wait_ready()
    with (
        socket.create_connection(("127.0.0.1", port)) as undecided,
        socket.create_connection(("127.0.0.1", port)) as partial,
        grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        partial.sendall(b"PRI * HT")
        grpc.channel_ready_future(channel).result(60)
        server.signal()
        assert server.wait_exit() == 0
        undecided.settimeout(60)
        assert undecided.recv(100) == b""


# --- two ports, which is Triton's way and the default


def test_http_port_answers_grpc_too(two_ports: ServerProcess) -> None:
    assert np.array_equal(infer_by_grpc(two_ports.http_url), ROWS)


def test_grpc_port_answers_rest_over_http_2(two_ports: ServerProcess) -> None:
    found = infer_by_curl(f"http://{two_ports.grpc_url}", "--http2-prior-knowledge")
    assert found == ("2", [0, 1, 2, 3])


def test_grpc_port_refers_http_1_to_rest(two_ports: ServerProcess) -> None:
    answer = curl("-w", "\n%{http_code}", f"http://{two_ports.grpc_url}/v2")
    assert answer.endswith("400")
    assert "HTTP port" in answer


@pytest.mark.parametrize(
    "flags", [["--allow-grpc=false"], ["--http-restricted-api=inference:key=secret"], ["--grpc-address=127.0.0.2"]]
)
def test_http_port_refuses_grpc_that_bypasses_flags(
    models: Path, start_server: StartServer, flags: list[str]
) -> None:
    server = start_server(models, *flags)
    server.wait_ready()
    with pytest.raises(InferenceServerException) as caught:
        infer_by_grpc(server.http_url)
    assert caught.value.status() == "StatusCode.UNIMPLEMENTED"
    assert "gRPC is not served on this port" in caught.value.message()


def test_restrictions_hold_over_http_2(models: Path, start_server: StartServer) -> None:
    flags = [f"--{name}=health,inference:key=secret" for name in ("http-restricted-api", "grpc-restricted-protocol")]
    server = start_server(models, *flags)
    server.wait_started()
    for url in (server.http_url, server.grpc_url):
        asked = ("--http2-prior-knowledge", "-o", "/dev/null", "-w", "%{http_code}", f"http://{url}/v2/health/live")
        assert curl(*asked) == "403"
        assert curl("-H", "key: secret", *asked) == "200"
        with pytest.raises(InferenceServerException, match="restricted"):
            infer_by_grpc(url)
