"""A client that reads its answer only when it is asked to, and has little room for it meanwhile."""

import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from support.server_process import ServerProcess


@contextmanager
def slow_post(server: ServerProcess, path: str, content: object) -> Iterator[http.client.HTTPResponse]:
    """Post `content`; what the answer holds behind its head is left on the wire until it is read."""
    host, port = server.http_url.split(":")
    with socket.socket() as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
        peer.settimeout(30)
        peer.connect((host, int(port)))
        connection = http.client.HTTPConnection(host)
        connection.sock = peer
        connection.request("POST", path, json.dumps(content))
        yield connection.getresponse()
