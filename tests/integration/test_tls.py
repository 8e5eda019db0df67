"""TLS and mutual TLS on both protocols, asked by stock clients, curl and bare sockets."""

import contextlib
import http.client
import json
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from support.certificates import Certificates
from support.model_repository import write_identity
from support.server_process import ServerProcess

StartServer = Callable[..., ServerProcess]
ROWS = np.arange(4, dtype=np.float32).reshape(1, 4)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    write_identity(root)
    return root


@pytest.fixture(scope="module")
def tls_server(
    certificates: Certificates, models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """TLS on both ports; clients show no certificate."""
    log = tmp_path_factory.mktemp("tls") / "log"
    flags = [*certificates.flags("http"), *certificates.flags("grpc")]
    yield from _run(log, models, flags, certificates.client_context())


@pytest.fixture(scope="module")
def mutual_server(
    certificates: Certificates, models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """TLS on both ports; clients must show a certificate."""
    log = tmp_path_factory.mktemp("mutual") / "log"
    flags = [*certificates.flags("http", mutual=True), *certificates.flags("grpc", mutual=True)]
    yield from _run(log, models, flags, certificates.client_context(shows="client"))


def _run(log: Path, models: Path, flags: list[str], context: ssl.SSLContext) -> Iterator[ServerProcess]:
    running = ServerProcess(log, f"--model-repository={models}", *flags)
    running.tls = context
    try:
        running.wait_ready()
        yield running
    finally:
        running.stop()


def _localhost(url: str) -> str:
    return url.replace("127.0.0.1", "localhost")


def _connect(host: str, port: str, context: ssl.SSLContext) -> ssl.SSLSocket:
    raw = socket.create_connection((host, int(port)), timeout=60)
    return context.wrap_socket(raw, server_hostname="localhost")


def _http_answer(url: str, context: ssl.SSLContext) -> np.ndarray:
    with triton_http.InferenceServerClient(url, ssl=True, ssl_context_factory=lambda: context) as client:
        tensor = triton_http.InferInput("INPUT0", ROWS.shape, "FP32")
        tensor.set_data_from_numpy(ROWS)
        return client.infer("identity", [tensor]).as_numpy("OUTPUT0")


def _grpc_answer(
    url: str, certificates: Certificates, *, key: Path | None = None, cert: Path | None = None
) -> np.ndarray:
    with triton_grpc.InferenceServerClient(
        _localhost(url),
        ssl=True,
        root_certificates=str(certificates.root),
        private_key=None if key is None else str(key),
        certificate_chain=None if cert is None else str(cert),
    ) as client:
        tensor = triton_grpc.InferInput("INPUT0", ROWS.shape, "FP32")
        tensor.set_data_from_numpy(ROWS)
        return client.infer("identity", [tensor], client_timeout=60).as_numpy("OUTPUT0")


def wait_until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_http_client_infers_over_tls(tls_server: ServerProcess, certificates: Certificates) -> None:
    answer = _http_answer(tls_server.http_url, certificates.client_context())
    assert np.array_equal(answer, ROWS)


def test_grpc_client_infers_over_tls(tls_server: ServerProcess, certificates: Certificates) -> None:
    assert np.array_equal(_grpc_answer(tls_server.grpc_url, certificates), ROWS)


def test_log_names_services_with_tls(tls_server: ServerProcess) -> None:
    log = tls_server.log_text()
    assert log.count(" with TLS") == 2
    assert "Started Metrics Service" in log


def test_large_tensors_pass_in_both_directions(tls_server: ServerProcess, certificates: Certificates) -> None:
    rows = np.random.default_rng(0).random((1, 2_000_000), dtype=np.float32)
    context = certificates.client_context()
    with triton_http.InferenceServerClient(
        tls_server.http_url, ssl=True, ssl_context_factory=lambda: context
    ) as client:
        tensor = triton_http.InferInput("INPUT0", rows.shape, "FP32")
        tensor.set_data_from_numpy(rows)
        assert np.array_equal(client.infer("identity", [tensor]).as_numpy("OUTPUT0"), rows)
    with triton_grpc.InferenceServerClient(
        _localhost(tls_server.grpc_url), ssl=True, root_certificates=str(certificates.root)
    ) as client:
        tensor = triton_grpc.InferInput("INPUT0", rows.shape, "FP32")
        tensor.set_data_from_numpy(rows)
        assert np.array_equal(client.infer("identity", [tensor]).as_numpy("OUTPUT0"), rows)


def test_curl_verifies_the_certificate(tls_server: ServerProcess, certificates: Certificates) -> None:
    url = f"https://{_localhost(tls_server.http_url)}/v2/health/ready"
    command = ["curl", "--silent", "--output", "/dev/null", "--write-out", "%{http_code}", "--max-time", "20", url]
    trusting = subprocess.run(
        [*command, "--cacert", str(certificates.root)], capture_output=True, text=True, check=False
    )
    assert trusting.stdout == "200"
    assert subprocess.run(command, capture_output=True, check=False).returncode == 60  # not signed by one it knows


@pytest.mark.parametrize(("service", "offered", "chosen"), [("http", "http/1.1", "http/1.1"), ("grpc", "h2", "h2")])
def test_alpn_chooses_the_protocol(
    tls_server: ServerProcess, certificates: Certificates, service: str, offered: str, chosen: str
) -> None:
    host, port = (tls_server.http_url if service == "http" else tls_server.grpc_url).split(":")
    context = certificates.client_context(alpn=(offered,))
    with _connect(host, port, context) as secure:
        assert secure.selected_alpn_protocol() == chosen


def test_old_tls_is_refused(tls_server: ServerProcess, certificates: Certificates) -> None:
    url = f"https://{_localhost(tls_server.http_url)}/v2/health/ready"
    command = ["curl", "--silent", "--max-time", "20", "--cacert", str(certificates.root), "--tlsv1.0", url]
    command += ["--tls-max", "1.1", "--ciphers", "DEFAULT:@SECLEVEL=0"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 35  # the handshake failed


@pytest.mark.parametrize("service", ["http", "grpc"])
def test_plain_request_to_tls_port_is_explained(tls_server: ServerProcess, service: str) -> None:
    before = tls_server.log_text().count("the client sends plain text")
    url = tls_server.http_url if service == "http" else tls_server.grpc_url
    connection = http.client.HTTPConnection(url, timeout=60)
    try:
        connection.request("POST", "/v2/models/identity/infer", body=b"x" * 100_000)
        answer = connection.getresponse()
        assert (answer.status, answer.getheader("connection")) == (400, "close")
        assert "a plain HTTP request was sent to an HTTPS port" in json.loads(answer.read())["error"]
    finally:
        connection.close()
    wait_until(lambda: tls_server.log_text().count("the client sends plain text") > before)


def test_plain_client_gets_explanation(tls_server: ServerProcess) -> None:
    said = r"was sent to an HTTPS port: .*use https://, or ssl=True"
    with (
        triton_http.InferenceServerClient(tls_server.http_url) as client,
        pytest.raises(InferenceServerException, match=said),
    ):
        client.get_server_metadata()


def test_log_names_bytes_without_http_or_tls(tls_server: ServerProcess) -> None:
    before = tls_server.log_text().count("the client sends plain text")
    host, port = tls_server.http_url.split(":")
    with socket.create_connection((host, int(port)), timeout=60) as plain:
        plain.sendall(b"HELO models.example\r\n")
        with contextlib.suppress(ConnectionError):
            assert plain.recv(100) == b""
    wait_until(lambda: tls_server.log_text().count("the client sends plain text") > before)


@pytest.mark.parametrize("service", ["http", "grpc"])
def test_log_mentions_missing_tls(server: ServerProcess, certificates: Certificates, service: str) -> None:
    before = server.log_text().count("the client speaks TLS")
    host, port = (server.http_url if service == "http" else server.grpc_url).split(":")
    with pytest.raises(ssl.SSLError, match=r"(?i)wrong.version.number"):
        _connect(host, port, certificates.client_context()).close()
    wait_until(lambda: server.log_text().count("the client speaks TLS") > before)


def test_mutual_tls_takes_a_signed_certificate(mutual_server: ServerProcess, certificates: Certificates) -> None:
    assert np.array_equal(_http_answer(mutual_server.http_url, certificates.client_context(shows="client")), ROWS)
    answer = _grpc_answer(
        mutual_server.grpc_url, certificates, key=certificates.client_key, cert=certificates.client_cert
    )
    assert np.array_equal(answer, ROWS)


@pytest.mark.parametrize("shows", ["", "strange"])
def test_mutual_tls_turns_others_away_over_http(
    mutual_server: ServerProcess, certificates: Certificates, shows: str
) -> None:
    host, port = mutual_server.http_url.split(":")
    context = certificates.client_context(shows=shows)
    answer = b""
    # TLS 1.3: the client learns of it only after its own handshake, as an alert or as the end.
    with contextlib.suppress(ssl.SSLError, ConnectionError), _connect(host, port, context) as secure:
        secure.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = secure.recv(4096)
    assert answer == b""
    wait_until(lambda: "TLS handshake failed: " in mutual_server.log_text())


@pytest.mark.parametrize("shows", ["", "strange"])
def test_mutual_tls_turns_others_away_over_grpc(
    mutual_server: ServerProcess, certificates: Certificates, shows: str
) -> None:
    key, cert = (certificates.strange_key, certificates.strange_cert) if shows else (None, None)
    with pytest.raises(InferenceServerException) as refused:
        _grpc_answer(mutual_server.grpc_url, certificates, key=key, cert=cert)
    assert refused.value.status() == str(grpc.StatusCode.UNAVAILABLE)


def test_mutual_alone_asks_for_tls(start_server: StartServer, models: Path, certificates: Certificates) -> None:
    flags = [flag for flag in certificates.flags("http", mutual=True) if "use-ssl=" not in flag]
    running = start_server(models, *flags)
    running.tls = certificates.client_context(shows="client")
    running.wait_ready()


def test_server_drains_tls_connections(start_server: StartServer, models: Path, certificates: Certificates) -> None:
    running = start_server(models, *certificates.flags("http"), "--exit-timeout-secs=5")
    running.tls = certificates.client_context()
    running.wait_ready()
    host, port = running.http_url.split(":")
    with _connect(host, port, running.tls) as secure:
        secure.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert secure.recv(4096).startswith(b"HTTP/1.1 200")
        running.signal()
        assert secure.recv(4096) == b""
    assert running.wait_exit() == 0


def test_last_answer_of_connection_waits_for_slow_client(
    tls_server: ServerProcess, certificates: Certificates
) -> None:
    count = 4 << 20
    tensor = {
        "name": "INPUT0",
        "datatype": "FP32",
        "shape": [1, count],
        "parameters": {"binary_data_size": 4 * count},
    }
    header = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    length = len(header) + 4 * count
    with _connect(*tls_server.http_url.split(":"), certificates.client_context()) as secure:
        secure.sendall(
            b"POST /v2/models/identity/infer HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            b"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n" % (len(header), length)
        )
        secure.sendall(header + bytes(4 * count))
        answer = http.client.HTTPResponse(secure)
        answer.begin()
        time.sleep(6.5)  # longer than a client that has its answer may take to close
        assert len(answer.read()) == int(answer.headers["Content-Length"]) > 4 * count


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (lambda c, d: {"server_cert": d / "nonesuch"}, r"--http-server-cert .*nonesuch: No such file"),
        (lambda c, d: {"server_key": c.client_key}, r"are not a PEM certificate and its key: key values mismatch"),
        (lambda c, d: {"root": _garbage(d)}, r"--http-root-cert .* contains no PEM certificate"),
    ],
)
def test_wrong_files_end_the_start_with_their_flag(
    start_server: StartServer, models: Path, certificates: Certificates, tmp_path: Path, break_it: Callable, said: str
) -> None:
    changed = break_it(certificates, tmp_path)
    running = start_server(
        models,
        "--http-use-ssl-mutual=true",
        f"--http-server-cert={changed.get('server_cert', certificates.server_cert)}",
        f"--http-server-key={changed.get('server_key', certificates.server_key)}",
        f"--http-root-cert={changed.get('root', certificates.root)}",
    )
    assert running.wait_exit() == 1
    running.wait_log(said)
    assert "Traceback" not in running.log_text()


def _garbage(directory: Path) -> Path:
    path = directory / "garbage.pem"
    path.write_text("no certificate\n")
    return path


def test_exchanged_certificate_is_shown_to_new_connections(
    start_server: StartServer, models: Path, tmp_path: Path
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    old, new = Certificates(tmp_path / "a"), Certificates(tmp_path / "b")
    running = start_server(models, *old.flags("http"))
    running.tls = old.client_context()
    running.wait_ready()
    old.server_key.write_bytes(new.server_key.read_bytes())  # does not fit the old certificate
    running.wait_log("key values mismatch.*; the previous content stays in use")
    assert running.get("/v2/health/live").status == 200
    old.server_cert.write_bytes(new.server_cert.read_bytes())
    running.wait_log("read again: .*server.pem")
    running.tls = new.client_context()
    assert running.get("/v2/health/live").status == 200
