"""Times the two directions of one large HTTP request apart, which load generators do not."""

import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass

_STEP_BYTES = 1 << 20


@dataclass(frozen=True)
class Transfer:
    """Seconds of one request on an open connection."""

    up_s: float
    """Until the last byte was handed to the kernel."""
    wait_s: float
    """From then until the first byte of the answer."""
    down_s: float
    """From there to the last byte."""

    @property
    def total_s(self) -> float:
        """The whole round trip."""
        return self.up_s + self.wait_s + self.down_s


def round_trip(connection: socket.socket, path: str, headers: Sequence[tuple[str, str]], body: bytes) -> Transfer:
    """Send `body` and read the answer, whose values are not looked at. Raises RuntimeError when it is not a 200."""
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers]
    head = "\r\n".join([*lines, "", ""]).encode()
    began = time.perf_counter()
    connection.sendall(head)
    connection.sendall(body)
    sent = time.perf_counter()
    received = connection.recv(_STEP_BYTES)
    first = time.perf_counter()
    while b"\r\n\r\n" not in received:
        received += _receive(connection)
    answer_head, rest = received.split(b"\r\n\r\n", 1)
    if not answer_head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"the server answered {answer_head[:200]!r} {rest[:300]!r}")
    missing = _content_length(answer_head) - len(rest)
    buffer = bytearray(_STEP_BYTES)
    while missing > 0:
        count = connection.recv_into(buffer, min(missing, _STEP_BYTES))
        if not count:
            raise RuntimeError(f"the server closed the connection {missing} bytes before the end")
        missing -= count
    return Transfer(sent - began, first - sent, time.perf_counter() - first)


def _receive(connection: socket.socket) -> bytes:
    received = connection.recv(_STEP_BYTES)
    if not received:
        raise RuntimeError("the server closed the connection")
    return received


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            return int(value)
    raise RuntimeError("the answer has no Content-Length")
