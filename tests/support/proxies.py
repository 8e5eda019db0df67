"""A proxy of deploy/proxies with the certificates of the tests, and requests through it."""

import http.client
from collections.abc import Sequence
from pathlib import Path

import tritonclient.grpc as grpcclient
from bench.proxy import Proxy

from support.certificates import Certificates


class ProxyWithClients(Proxy):
    """A running proxy with clients."""

    def __init__(self, kind: str, root: Path, certificates: Certificates, servers: Sequence[str]) -> None:
        """`servers` are the addresses of the two servers, `root` gets the files of the proxy."""
        self.certificates = certificates
        super().__init__(kind, root, certificates.server_cert, certificates.server_key, servers)

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
