"""REST and gRPC over TLS through nginx and HAProxy with the files of deploy/proxies, also when a server ends."""

import http.client
import json
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import yaml
from tritonclient.utils import InferenceServerException

from support.certificates import Certificates
from support.model_repository import write_identity
from support.server_process import ServerProcess

PROXIES = Path(__file__).parents[2] / "deploy" / "proxies"
VALUES = np.arange(4, dtype=np.float32).reshape(1, 4)
ROW = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 4], "data": VALUES.ravel().tolist()}
BODY = json.dumps({"inputs": [ROW]}).encode()
STARTED_S = 30.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Scene:
    """A proxy with TLS before two servers."""

    def __init__(self, kind: str, root: Path, certificates: Certificates, servers: list[ServerProcess]) -> None:
        self.servers = servers
        self.certificates = certificates
        self.port = free_port()
        name = {"nginx": "nginx.conf", "haproxy": "haproxy.cfg"}[kind]
        text = (PROXIES / name).read_text()
        for port, server in zip(("8000", "8010"), servers, strict=True):
            text = text.replace(f"127.0.0.1:{port}", server.http_url)
        text = re.sub(r"(listen |bind :)8443", rf"\g<1>{self.port}", text)
        text = text.replace("/etc/naiad/tls/", f"{root}/").replace("/run/nginx.pid", f"{root}/nginx.pid")
        (root / name).write_text(text)
        certificate, key = certificates.server_cert.read_bytes(), certificates.server_key.read_bytes()
        (root / "server.pem").write_bytes(certificate)
        (root / "server.key").write_bytes(key)
        (root / "server-and-key.pem").write_bytes(certificate + key)
        command = {
            "nginx": ["nginx", "-e", "stderr", "-g", "daemon off;", "-c", str(root / name)],
            "haproxy": ["haproxy", "-f", str(root / name)],
        }[kind]
        with (root / "proxy.log").open("wb") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=root)
        self._wait(root / "proxy.log")

    def _wait(self, log: Path) -> None:
        deadline = time.monotonic() + STARTED_S
        while time.monotonic() < deadline and self.process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        raise AssertionError(f"the proxy did not start:\n{log.read_text()}")

    def rest(self, path: str = "/v2/models/identity/infer", body: bytes | None = BODY) -> tuple[int, bytes]:
        """Send a request over TLS and return status and body."""
        context = self.certificates.client_context()
        connection = http.client.HTTPSConnection("localhost", self.port, timeout=30, context=context)
        try:
            connection.request("GET" if body is None else "POST", path, body)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def grpc(self) -> grpcclient.InferenceServerClient:
        return grpcclient.InferenceServerClient(
            f"localhost:{self.port}", ssl=True, root_certificates=str(self.certificates.root)
        )


@pytest.fixture(params=["nginx", "haproxy"])
def scene(request: pytest.FixtureRequest, tmp_path: Path, certificates: Certificates) -> Iterator[Scene]:
    if shutil.which(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    write_identity(tmp_path / "models")
    servers = [ServerProcess(tmp_path / f"log-{i}", f"--model-repository={tmp_path / 'models'}") for i in range(2)]
    proxy = None
    try:
        for server in servers:
            server.wait_ready()
        proxy = Scene(request.param, tmp_path, certificates, servers)
        yield proxy
    finally:
        if proxy is not None:
            proxy.process.terminate()
            proxy.process.wait(30)
        for server in servers:
            server.stop()


def grpc_request() -> list[grpcclient.InferInput]:
    given = grpcclient.InferInput("INPUT0", [1, 4], "FP32")
    given.set_data_from_numpy(VALUES)
    return [given]


def stream(client: grpcclient.InferenceServerClient, count: int) -> list[bool]:
    """Send requests over one stream; return which of their responses are right."""
    responses: SimpleQueue[tuple[Any, Any]] = SimpleQueue()
    client.start_stream(lambda result, error: responses.put((result, error)))
    for _ in range(count):
        client.async_stream_infer("identity", grpc_request())
    arrived = [responses.get(timeout=30) for _ in range(count)]
    client.stop_stream()
    return [error is None and np.array_equal(result.as_numpy("OUTPUT0"), VALUES) for result, error in arrived]


def test_rest_and_grpc_pass_and_are_retried(scene: Scene) -> None:
    status, body = scene.rest()
    assert status == 200
    assert json.loads(body)["outputs"][0]["data"] == ROW["data"]
    with scene.grpc() as client:
        assert client.is_server_ready()
        result = client.infer("identity", grpc_request())
        assert np.array_equal(result.as_numpy("OUTPUT0"), VALUES)
        assert stream(client, 3) == [True] * 3
        # Model control is not for clients.
        assert scene.rest("/v2/repository/index", b"{}")[0] == 403
        with pytest.raises(InferenceServerException):
            client.load_model("identity")
        # One server is gone at once: requests reach the other one.
        scene.servers[0].process.kill()
        scene.servers[0].wait_exit()
        for _ in range(20):
            assert scene.rest()[0] == 200
            assert np.array_equal(client.infer("identity", grpc_request()).as_numpy("OUTPUT0"), VALUES)
        assert stream(client, 3) == [True] * 3


def test_envoy_file_is_yaml() -> None:
    document = yaml.safe_load((PROXIES / "envoy.yaml").read_text())
    clusters = document["static_resources"]["clusters"]
    assert [cluster["name"] for cluster in clusters] == ["naiad_http", "naiad_grpc"]
