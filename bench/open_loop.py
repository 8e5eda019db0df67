"""Open-loop load: requests leave when a Poisson process says so, whether or not earlier ones have been answered.

The latency of a request counts from the moment it should have left, so a server that stalls is charged for all that
it kept waiting. One thread and `select`, whose timeout is kept to microseconds, unlike epoll's.
"""

import random
import selectors
import socket
import time
from collections import deque
from dataclasses import asdict, dataclass

from bench.payloads import Payload
from bench.peers import Running
from bench.process_tree import CpuMeter

CONNECTIONS = 128
"""More requests than this are never in flight; those beyond it leave late, which counts."""
_READ_BYTES = 1 << 16
_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class OpenLoop:
    """What a load found."""

    requests: int
    throughput: float
    """Answers a second."""
    p50_us: float
    p99_us: float
    cpu_us: float
    """CPU time of the server for each request."""
    served_p99_us: float
    """The same without the time by which the client itself was late: what the server has made of what it got."""
    served_p90_us: float
    """That of nine in ten, which pauses of the machine do not decide."""
    late_p99_us: float
    """How late the client itself was: much of this, and its latencies say little."""

    def as_dict(self) -> dict[str, float]:
        """Return the fields, for JSON."""
        return asdict(self)


class _Connection:
    def __init__(self, port: int, request: bytes) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._request = request
        self._received = bytearray()
        self.due_s = 0.0
        """When the request in flight should have left."""
        self.begun_s = 0.0
        """When it left, or should have if the server has kept it from that."""

    def send(self, due_s: float, begun_s: float) -> None:
        self.due_s, self.begun_s = due_s, begun_s
        self.socket.sendall(self._request)

    def receive(self) -> bool:
        """Read once; True when the answer is complete. Raises RuntimeError for one that is no success."""
        data = self.socket.recv(_READ_BYTES)
        if not data:
            raise RuntimeError("the server closed the connection")
        received = self._received
        received += data
        end = received.find(b"\r\n\r\n")
        if end < 0:
            return False
        head = bytes(received[:end]).lower()
        length = int(head.split(b"\r\ncontent-length:")[1].split(b"\r\n")[0])
        if len(received) < end + 4 + length:
            return False
        if not head.startswith(b"http/1.1 200"):
            raise RuntimeError(f"answered with {bytes(received[:500])!r}")
        received.clear()
        return True


class _Load:
    """Connections that are free or wait, and what was measured."""

    def __init__(self, server: Running, payload: Payload) -> None:
        request = _request(payload)
        self.free = [_Connection(server.http_port, request) for _ in range(CONNECTIONS)]
        self._connections = list(self.free)
        self._selector = selectors.SelectSelector()
        for connection in self.free:
            self._selector.register(connection.socket, selectors.EVENT_READ, connection)
        self._freed_s = 0.0
        """When there was a free connection again after there had been none."""
        self.latencies_s: list[float] = []
        self.served_s: list[float] = []
        self.late_s: list[float] = []

    def close(self) -> None:
        self._selector.close()
        for connection in self._connections:
            connection.socket.close()

    @property
    def in_flight(self) -> int:
        return CONNECTIONS - len(self.free)

    def send(self, due_s: float) -> None:
        begun_s = due_s if due_s <= self._freed_s else time.perf_counter()
        self.free.pop().send(due_s, begun_s)
        self.late_s.append(time.perf_counter() - due_s)

    def wait(self, timeout_s: float) -> None:
        for key, _ in self._selector.select(timeout_s):
            connection: _Connection = key.data
            if connection.receive():
                now_s = time.perf_counter()
                self.latencies_s.append(now_s - connection.due_s)
                self.served_s.append(now_s - connection.begun_s)
                if not self.free:
                    self._freed_s = now_s
                self.free.append(connection)

    def run(self, due: "deque[float]") -> float:
        """Send everything when it is due, wait for the last answer, return how long it took."""
        began_s = time.perf_counter()
        deadline_s = began_s + due[-1] + _TIMEOUT_S
        while due or self.in_flight:
            now_s = time.perf_counter()
            if now_s > deadline_s:
                raise RuntimeError(f"{self.in_flight} requests had no answer for {_TIMEOUT_S:g} s")
            if due and self.free and began_s + due[0] <= now_s:
                self.send(began_s + due.popleft())
                self.wait(0)
            else:
                self.wait(began_s + due[0] - now_s if due and self.free else _TIMEOUT_S)
        return time.perf_counter() - began_s


def _request(payload: Payload) -> bytes:
    body = payload.body.read_bytes()
    headers = [("Host", "bench"), ("Content-Length", str(len(body))), *payload.headers]
    lines = [f"POST {payload.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers)]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def poisson(rate_per_s: float, seconds: float, seed: int) -> "deque[float]":
    """Return the times in seconds at which requests are due, the same for the same seed."""
    rng = random.Random(seed)
    due, now_s = deque([0.0]), 0.0
    while (now_s := now_s + rng.expovariate(rate_per_s)) < seconds:
        due.append(now_s)
    return due


def measure(server: Running, payload: Payload, due: "deque[float]") -> OpenLoop:
    """Send a request at each of the times `due`. Raises RuntimeError when one is refused or not answered."""
    load = _Load(server, payload)
    try:
        meter = CpuMeter(server.process.pid)
        wall_s = load.run(due)
        cpu_s = meter.seconds()
    finally:
        load.close()
    count = len(load.latencies_s)
    return OpenLoop(
        requests=count,
        throughput=count / wall_s,
        p50_us=_quantile_us(load.latencies_s, 0.5),
        p99_us=_quantile_us(load.latencies_s, 0.99),
        cpu_us=cpu_s / count * 1e6,
        served_p99_us=_quantile_us(load.served_s, 0.99),
        served_p90_us=_quantile_us(load.served_s, 0.9),
        late_p99_us=_quantile_us(load.late_s, 0.99),
    )


def capacity(server: Running, payload: Payload, seconds: float) -> float:
    """Return how many answers a second come when 64 requests are always in flight."""
    load = _Load(server, payload)
    try:
        del load.free[64:]
        end_s = time.perf_counter() + seconds
        while time.perf_counter() < end_s:
            while load.free:
                load.send(time.perf_counter())
            load.wait(1.0)
    finally:
        load.close()
    return len(load.latencies_s) / seconds


def _quantile_us(values: list[float], share: float) -> float:
    ascending = sorted(values)
    return ascending[min(len(ascending) - 1, int(share * len(ascending)))] * 1e6
