"""An HTTP/1.1 client that writes bytes by hand, for what no well-behaved client would send."""

import contextlib
import json
import socket
from collections.abc import Mapping

TIMEOUT_S = 60.0


def connect(url: str) -> socket.socket:
    """Return a connection to `host:port`, which waits `TIMEOUT_S` for anything."""
    host, _, port = url.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
    # As every real client: a small frame is not to wait until the one before it is acknowledged.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


class HttpAnswer:
    """One response of HTTP/1.1."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def error(self) -> str:
        """The message, of a body that is nothing but an error."""
        document = json.loads(self.body)
        assert list(document) == ["error"], document
        text = document["error"]
        assert isinstance(text, str)
        return text


class HttpPeer:
    """A connection to an HTTP/1.1 port."""

    def __init__(self, url: str) -> None:
        self._socket = connect(url)
        self._received = b""

    def __enter__(self) -> "HttpPeer":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        """Send bytes; that the server has closed already is for `answer` to find out."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(data)

    def half_close(self) -> None:
        """Send no more."""
        self._socket.shutdown(socket.SHUT_WR)

    def answer(self) -> HttpAnswer:
        """Return the next response; fails when the connection ends before it is complete."""
        head, _, rest = self._read_until(b"\r\n\r\n").partition(b"\r\n\r\n")
        self._received = rest
        status_line, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        version, status = status_line.split(" ")[:2]
        assert version == "HTTP/1.1", status_line
        length = int(headers.get("content-length", "0")) if status != "100" else 0
        while len(self._received) < length:
            self._receive()
        body, self._received = self._received[:length], self._received[length:]
        return HttpAnswer(int(status), headers, body)

    def is_closed_by_server(self) -> bool:
        """Wait until the server ends the connection; anything it sends instead is a failure."""
        if self._received:
            return False
        try:
            return self._socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def _read_until(self, mark: bytes) -> bytes:
        while mark not in self._received:
            self._receive()
        return self._received

    def _receive(self) -> None:
        piece = self._socket.recv(65536)
        if not piece:
            raise AssertionError(f"the server closed the connection after {self._received!r}")
        self._received += piece


def http_request(
    path: str = "/v2/health/live",
    body: bytes | None = None,
    *,
    method: str = "",
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """Return the bytes of a request; a body makes it a POST and sets Content-Length unless `headers` do."""
    fields = {"Host": "test", **(headers or {})}
    if body is not None and not {"Content-Length", "Transfer-Encoding"} & set(fields):
        fields["Content-Length"] = str(len(body))
    head = f"{method or ('GET' if body is None else 'POST')} {path} HTTP/1.1\r\n"
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"{head}{lines}\r\n".encode("utf-8", "surrogateescape") + (body or b"")
