"""Goodput under overload: requests that come at 2 and 4 times the capacity, from clients that wait or give up.

    python -m bench.overload                              every case, about six minutes
    python -m bench.overload --models onnx --transports grpc --seconds 5
    python -m bench.overload --models tiny --apart --seconds 4
    python -m bench.overload --flags=--queue-overload-policy=none

An open loop: requests leave when they are due, also if earlier ones are open. Goodput is the number of answers
within a second of that moment. Capacity is what comes back when 32 requests are always in flight. After the overload
half of the capacity is offered; recovery is the time until the p99 of 250 ms of requests stays below 250 ms.
Peers on the machine change what it can do meanwhile; `share_of_cpu` leaves that out for models that compute.
A row whose `generator_lags` is true is not valid: the clients could not send as fast as the case asks.

Clients that give up close their HTTP connection, or reset their gRPC call, which also has a deadline, after a second.
"""

import argparse
import errno
import itertools
import json
import os
import resource
import select
import selectors
import socket
import struct
import sys
import tempfile
import textwrap
import time
import urllib.request
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import hpack
import numpy as np
from tritonclient.grpc import service_pb2

from bench import models
from bench.peers import Naiad, Running
from bench.process_tree import CpuMeter

PATIENCE_S = 1.0
_CLOSED_LOOP = 32
_WINDOW_S = 0.25
_RECOVERED_S = 0.25
_GRPC_CONNECTIONS = 16
_STREAMS = 1000
_HTTP_CONNECTIONS = 1000
"""Opened before the overload begins; more are opened as they are needed."""
_MOST_HTTP_CONNECTIONS = 8000
"""Beyond, requests wait in their client for a connection, in order of arrival."""
_CONNECTS_AT_ONCE = 250
_LATE_S = 0.05
"""A generator that sends one request in a hundred later than this does not offer the load that it reports."""
_END_S = 20.0
"""For how long answers are waited for after the last request."""

SLEEP_PY = """
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            time.sleep(0.004)
            x = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", x)]))
        return responses
"""
CONFIG = """
name: "{name}"
backend: "{backend}"
max_batch_size: 0
input [ {{ name: "INPUT0" data_type: TYPE_FP32 dims: [ 256 ] }} ]
output [ {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 256 ] }} ]
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
{more}
"""
MODELS = ("onnx", "python", "tiny")


def write_models(repository: Path) -> None:
    """Write an ONNX model of about 4 ms, a Python model that sleeps for 4 ms, and an ONNX model of a few us."""
    one_thread = 'parameters { key: "intra_op_thread_count" value { string_value: "1" } }'
    for name, layers in (("onnx", 33 * models.BUSY_LAYERS), ("tiny", 1)):
        version = repository / name / "1"
        version.mkdir(parents=True)
        (version / "model.onnx").write_bytes(models.busy(layers).SerializeToString())
        config = CONFIG.format(name=name, backend="onnxruntime", more=one_thread)
        (repository / name / "config.pbtxt").write_text(config)
    version = repository / "python" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(textwrap.dedent(SLEEP_PY))
    (repository / "python" / "config.pbtxt").write_text(CONFIG.format(name="python", backend="python", more=""))


class Request:
    """One request of the generator."""

    __slots__ = ("due_s", "ended_s", "is_good")

    def __init__(self, due_s: float) -> None:
        self.due_s = due_s
        self.ended_s = 0.0
        """0 while it is open."""
        self.is_good = False
        """Whether it was answered with success."""

    def end(self, *, is_good: bool) -> None:
        """Note what became of it."""
        self.ended_s = time.perf_counter()
        self.is_good = is_good

    @property
    def is_in_time(self) -> bool:
        """Whether it was answered with success while its client had patience."""
        return self.is_good and self.ended_s - self.due_s <= PATIENCE_S


class _HttpConnection:
    """One kept-alive connection and the request on it."""

    __slots__ = ("is_connected", "received", "request", "socket")

    def __init__(self, connecting: socket.socket) -> None:
        self.socket = connecting
        self.is_connected = False
        self.request: Request | None = None
        self.received = b""


class HttpClients:
    """A connection for each request in flight; one that is answered serves the next. Nothing blocks."""

    def __init__(self, port: int, model: str) -> None:
        tensor = {"name": "INPUT0", "shape": [256], "datatype": "FP32", "parameters": {"binary_data_size": 1024}}
        body = json.dumps({"inputs": [tensor]}).encode()
        head = (
            f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: bench\r\nContent-Length: {len(body) + 1024}\r\n"
            f"Inference-Header-Content-Length: {len(body)}\r\nContent-Type: application/octet-stream\r\n\r\n"
        )
        self._bytes = head.encode() + body + np.linspace(-1, 1, 256, dtype=np.float32).tobytes()
        self._port = port
        self._poll = select.epoll()
        self._connections: dict[int, _HttpConnection] = {}
        """By file descriptor."""
        self._free: list[_HttpConnection] = []
        self._waiting: deque[Request] = deque()
        """Requests without a connection."""
        self._carriers: dict[Request, _HttpConnection] = {}
        self.open_count = 0
        """Requests without an answer."""

    def prepare(self, count: int) -> None:
        """Open connections in advance, so that an overload does not begin with the cost of connecting."""
        while len(self._connections) < count:
            for _ in range(min(_CONNECTS_AT_ONCE, count - len(self._connections))):
                self._free.append(self._connect())
            end_s = time.perf_counter() + _END_S
            while any(not connection.is_connected for connection in self._free[-_CONNECTS_AT_ONCE:]):
                if time.perf_counter() > end_s:
                    raise RuntimeError("the server does not accept connections")
                self.wait(0.1)

    def send(self, request: Request, *, gives_up: bool) -> Callable[[], None]:
        """Send a request; the function that is returned gives it up."""
        self.open_count += 1
        if self._free:
            self._put(request, self._free.pop())
        elif len(self._connections) < _MOST_HTTP_CONNECTIONS:
            self._put(request, self._connect())
        else:
            self._waiting.append(request)
        return lambda: self._abort(request)

    def _put(self, request: Request, connection: _HttpConnection) -> None:
        connection.request = request
        self._carriers[request] = connection
        if connection.is_connected:
            self._write(connection)

    def _connect(self) -> _HttpConnection:
        connecting = socket.socket()
        connecting.setblocking(False)
        connecting.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        error = connecting.connect_ex(("127.0.0.1", self._port))
        if error not in (0, errno.EINPROGRESS):
            raise OSError(error, os.strerror(error))
        connection = self._connections[connecting.fileno()] = _HttpConnection(connecting)
        self._poll.register(connecting.fileno(), select.EPOLLOUT)
        return connection

    def _write(self, connection: _HttpConnection) -> None:
        try:
            connection.socket.sendall(self._bytes)  # one request fits an empty socket buffer
        except OSError:
            self._close(connection)

    def _abort(self, request: Request) -> None:
        connection = self._carriers.get(request)
        if connection is not None:
            self._close(connection)
        elif not request.ended_s:  # it still waits for a connection
            self._end(request, is_good=False)

    def _end(self, request: Request, *, is_good: bool) -> None:
        self._carriers.pop(request, None)
        self.open_count -= 1
        request.end(is_good=is_good)

    def _next(self) -> Request | None:
        """Return the oldest request that waits for a connection and was not given up."""
        while self._waiting:
            request = self._waiting.popleft()
            if not request.ended_s:
                return request
        return None

    def _close(self, connection: _HttpConnection) -> None:
        if connection.request is not None:
            self._end(connection.request, is_good=False)
            connection.request = None
        elif connection in self._free:
            self._free.remove(connection)
        del self._connections[connection.socket.fileno()]
        connection.socket.close()

    def wait(self, timeout_s: float) -> None:
        """Take answers for at most so long."""
        while self._waiting and len(self._connections) < _MOST_HTTP_CONNECTIONS:
            request = self._next()
            if request is not None:
                self._put(request, self._connect())
        for descriptor, events in self._poll.poll(max(0.0, timeout_s)):
            connection = self._connections[descriptor]
            if connection.is_connected:
                self._receive(connection)
            elif events & (select.EPOLLERR | select.EPOLLHUP):
                self._close(connection)
            else:
                connection.is_connected = True
                self._poll.modify(descriptor, select.EPOLLIN)
                if connection.request is not None:
                    self._write(connection)

    def _receive(self, connection: _HttpConnection) -> None:
        try:
            data = connection.socket.recv(1 << 16)
        except OSError:
            data = b""
        request = connection.request
        if not data or request is None:
            self._close(connection)
            return
        received = connection.received = connection.received + data
        end = received.find(b"\r\n\r\n")
        if end < 0:
            return
        length = int(received[:end].lower().split(b"\r\ncontent-length:")[1].split(b"\r\n")[0])
        if len(received) >= end + 4 + length:
            self._end(request, is_good=received.startswith(b"HTTP/1.1 200"))
            connection.request = None
            connection.received = b""
            waiting = self._next()
            if waiting is None:
                self._free.append(connection)
            else:
                self._put(waiting, connection)

    def close(self) -> None:
        """Close everything."""
        for connection in self._connections.values():
            connection.socket.close()
        self._poll.close()


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload) << 8 | kind) + struct.pack(">BI", flags, stream) + payload


_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_CANCEL = struct.pack(">I", 8)


class _Channel:
    """One HTTP/2 connection; a client that only counts."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        settings = _frame(_SETTINGS, 0, 0, struct.pack(">HI", 4, (1 << 31) - 1))
        update = _frame(_WINDOW_UPDATE, 0, 0, struct.pack(">I", (1 << 31) - 65_536))
        self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings + update)
        self.socket.setblocking(False)
        self.unsent = bytearray()
        self.received = bytearray()
        self.next_stream = 1
        self.open: dict[int, tuple[Request, bool]] = {}
        """Stream to request, and whether a message has come."""

    def flush(self) -> None:
        if self.unsent:
            with suppress(BlockingIOError):
                sent = self.socket.send(self.unsent)
                del self.unsent[:sent]


class GrpcClients:
    """Calls over a few connections."""

    def __init__(self, port: int, model: str) -> None:
        message = service_pb2.ModelInferRequest(model_name=model)
        message.inputs.add(name="INPUT0", datatype="FP32", shape=[256])
        message.raw_input_contents.append(np.linspace(-1, 1, 256, dtype=np.float32).tobytes())
        body = message.SerializeToString()
        self._body = b"\0" + struct.pack(">I", len(body)) + body
        fields = [
            *((":method", "POST"), (":scheme", "http"), (":path", "/inference.GRPCInferenceService/ModelInfer")),
            *((":authority", "localhost"), ("content-type", "application/grpc"), ("te", "trailers")),
        ]
        # Without the dynamic table, so that every block says all.
        plain, timed = hpack.Encoder(), hpack.Encoder()
        plain.header_table_size = timed.header_table_size = 0
        self._block = plain.encode(fields)
        self._timed_block = timed.encode([*fields, ("grpc-timeout", f"{int(PATIENCE_S * 1000)}m")])
        self._channels = [_Channel(port) for _ in range(_GRPC_CONNECTIONS)]
        self._turns = itertools.cycle(self._channels)
        self._selector = selectors.EpollSelector()
        for channel in self._channels:
            self._selector.register(channel.socket, selectors.EVENT_READ, channel)

    @property
    def open_count(self) -> int:
        """Requests without an answer."""
        return sum(len(channel.open) for channel in self._channels)

    def prepare(self, count: int) -> None:
        """Do nothing: every connection is open, and carries many calls."""

    def send(self, request: Request, *, gives_up: bool) -> Callable[[], None]:
        """Send a request; the function that is returned gives it up."""
        channel = next(self._turns)
        for _ in range(_GRPC_CONNECTIONS):
            if len(channel.open) < _STREAMS:
                break
            channel = next(self._turns)
        stream = channel.next_stream
        channel.next_stream += 2
        channel.open[stream] = request, False
        block = self._timed_block if gives_up else self._block
        channel.unsent += _frame(_HEADERS, 4, stream, block) + _frame(_DATA, 1, stream, self._body)
        channel.flush()
        return lambda: self._abort(channel, stream)

    def _abort(self, channel: _Channel, stream: int) -> None:
        entry = channel.open.pop(stream, None)
        if entry is not None:
            entry[0].end(is_good=False)
            channel.unsent += _frame(_RST_STREAM, 0, stream, _CANCEL)
            channel.flush()

    def wait(self, timeout_s: float) -> None:
        """Take answers for at most so long."""
        for key, _ in self._selector.select(max(0.0, timeout_s)):
            self._receive(key.data)
        for channel in self._channels:
            channel.flush()

    def _receive(self, channel: _Channel) -> None:
        with suppress(BlockingIOError):
            data = channel.socket.recv(1 << 18)
            if not data:
                raise RuntimeError("the server closed a gRPC connection")
            channel.received += data
        frames, position = channel.received, 0
        while len(frames) - position >= 9:
            stop = position + 9 + int.from_bytes(frames[position : position + 3], "big")
            if stop > len(frames):
                break
            kind, flags = frames[position + 3], frames[position + 4]
            stream = int.from_bytes(frames[position + 5 : position + 9], "big")
            self._take(channel, kind, flags, stream, frames[position + 9 : stop])
            position = stop
        del frames[:position]

    def _take(self, channel: _Channel, kind: int, flags: int, stream: int, payload: bytearray) -> None:
        if kind == _SETTINGS and not flags & 1:
            channel.unsent += _frame(_SETTINGS, 1, 0, b"")
        elif kind == _PING and not flags & 1:
            channel.unsent += _frame(_PING, 1, 0, bytes(payload))
        elif kind == _GOAWAY:
            raise RuntimeError(f"the server ended a gRPC connection: {bytes(payload)!r}")
        entry = channel.open.get(stream)
        if entry is None:
            return
        if kind == _DATA:
            channel.open[stream] = entry[0], True
        if kind == _RST_STREAM or (kind in (_DATA, _HEADERS) and flags & 1):
            del channel.open[stream]
            entry[0].end(is_good=entry[1] and kind == _HEADERS)

    def close(self) -> None:
        """Close everything."""
        for channel in self._channels:
            channel.socket.close()
        self._selector.close()


Clients = HttpClients | GrpcClients


@dataclass(frozen=True)
class Found:
    """What an overload came to."""

    model: str
    transport: str
    clients: str
    factor: float
    capacity_per_s: float
    offered_per_s: float
    goodput_per_s: float
    share: float
    """Goodput as a share of the capacity."""
    share_of_cpu: float
    """Goodput for each second of CPU that the server had, as a share of the same at capacity."""
    useful: float
    """Answers in time for each execution during the overload; neighbours on the machine do not change it."""
    answered_late: int
    refused_or_given_up: int
    p50_ms: float
    """Of the answers in time."""
    recovery_s: float
    server_cores: float
    """CPU time of the server's processes a second, during the overload."""
    late_p99_ms: float
    """How late the generator itself was."""
    generator_lags: bool
    """It was too late: the offered load was smaller than reported and came in bursts, so the goodput says little."""


def capacity(server: Running, clients: Clients, seconds: float) -> tuple[float, float]:
    """Return how many answers come when some requests are always in flight: a second, and for each second of CPU."""
    began_s = time.perf_counter()
    requests: list[Request] = []
    meter: CpuMeter | None = None
    while (now_s := time.perf_counter()) < began_s + seconds:
        if meter is None and now_s >= began_s + seconds / 3:
            meter = CpuMeter(server.process.pid)
        while clients.open_count < _CLOSED_LOOP:
            requests.append(Request(now_s))
            clients.send(requests[-1], gives_up=False)
        clients.wait(0.1)
    cpu_s = meter.seconds() if meter is not None else 0.0
    _finish(clients)
    # The first third warms up.
    from_s = began_s + seconds / 3
    counted = [r for r in requests if r.is_good and from_s <= r.ended_s < began_s + seconds]
    return len(counted) / (seconds * 2 / 3), len(counted) / max(cpu_s, 1e-3)


def _finish(clients: Clients) -> None:
    end_s = time.perf_counter() + _END_S
    while clients.open_count and time.perf_counter() < end_s:
        clients.wait(0.1)


def offer(
    clients: Clients, due_s: Sequence[float], *, gives_up: bool, at_s: float, then: Callable[[], object]
) -> tuple[list[Request], list[float]]:
    """Send requests when they are due, in seconds from now; return them, and how late each has left.

    `then` is called `at_s` after the beginning.
    """
    began_s = time.perf_counter()
    requests: list[Request] = []
    late_s: list[float] = []
    patience: deque[tuple[float, Callable[[], None]]] = deque()
    upcoming = deque(due_s)
    while upcoming or patience:
        now_s = time.perf_counter()
        if at_s <= now_s - began_s:
            at_s = float("inf")
            then()
        while upcoming and began_s + upcoming[0] <= now_s:
            request = Request(began_s + upcoming.popleft())
            requests.append(request)
            abort = clients.send(request, gives_up=gives_up)
            late_s.append(time.perf_counter() - request.due_s)
            if gives_up:
                patience.append((request.due_s + PATIENCE_S, abort))
        while patience and patience[0][0] <= now_s:
            patience.popleft()[1]()
        next_s = min([began_s + upcoming[0]] if upcoming else [], default=now_s + 0.05)
        clients.wait(min(0.05, next_s - time.perf_counter()))
    return requests, late_s


def _steady(rate_per_s: float, seconds: float, from_s: float) -> Iterator[float]:
    return (from_s + number / rate_per_s for number in range(int(rate_per_s * seconds)))


def measure(
    server: Running,
    clients: Clients,
    row: tuple[str, str, str],
    factor: float,
    rates: tuple[float, float],
    seconds: float,
) -> Found:
    """Offer an overload, then half of the capacity."""
    calm_s = 4.0
    rate_per_s, rate_per_cpu_s = rates
    due = [*_steady(factor * rate_per_s, seconds, 0.0), *_steady(rate_per_s / 2, calm_s, seconds)]
    executed = [_executed(server, row[0])]
    meter, cores = CpuMeter(server.process.pid), [0.0]

    def note() -> None:
        cores[0] = meter.seconds() / seconds
        executed.append(_executed(server, row[0]))

    began_s = time.perf_counter()
    requests, late_s = offer(clients, due, gives_up=row[2] == "impatient", at_s=seconds, then=note)
    _finish(clients)
    during = [r for r in requests if r.due_s < began_s + seconds]
    after = [r for r in requests if r.due_s >= began_s + seconds]
    in_time = sorted(r.ended_s - r.due_s for r in during if r.is_in_time)
    goodput = len(in_time) / seconds
    late_p99_s = sorted(late_s)[int(0.99 * len(late_s))]
    return Found(
        *row,
        factor=factor,
        capacity_per_s=round(rate_per_s, 1),
        offered_per_s=round(factor * rate_per_s, 1),
        goodput_per_s=round(goodput, 1),
        share=round(goodput / rate_per_s, 3),
        share_of_cpu=round(goodput / max(cores[0], 1e-3) / rate_per_cpu_s, 3),
        useful=round(len(in_time) / (executed[1] - executed[0]), 3),
        answered_late=sum(r.is_good and not r.is_in_time for r in during),
        refused_or_given_up=sum(not r.is_good for r in during),
        p50_ms=round(1e3 * in_time[len(in_time) // 2], 1) if in_time else 0.0,
        recovery_s=_recovery_s(after, began_s + seconds),
        server_cores=round(cores[0], 2),
        late_p99_ms=round(1e3 * late_p99_s, 1),
        generator_lags=late_p99_s > _LATE_S,
    )


def _executed(server: Running, model: str) -> int:
    """Return how many requests a model has executed."""
    url = f"http://127.0.0.1:{server.http_port}/v2/models/{model}/stats"
    with urllib.request.urlopen(url, timeout=10) as answer:
        count: int = json.load(answer)["model_stats"][0]["inference_count"]
    return count


def _recovery_s(after: Sequence[Request], end_s: float) -> float:
    """Return the end of the last window whose p99 was too long."""
    recovered_s = 0.0
    for number in itertools.count():
        window = [r for r in after if number * _WINDOW_S <= r.due_s - end_s < (number + 1) * _WINDOW_S]
        if not window:
            return recovered_s
        latencies = sorted(r.ended_s - r.due_s if r.is_good else PATIENCE_S for r in window)
        if latencies[int(0.99 * (len(latencies) - 1))] > _RECOVERED_S:
            recovered_s = (number + 1) * _WINDOW_S
    return recovered_s


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases and print a line of JSON for each."""
    parser = argparse.ArgumentParser(prog="python -m bench.overload", description=__doc__)
    parser.add_argument("--models", default="onnx,python")
    parser.add_argument("--transports", default="http,grpc")
    parser.add_argument("--clients", default="waiting,impatient")
    parser.add_argument("--factors", default="2,4")
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--apart", action="store_true", help="the server on one core, the clients on another")
    parser.add_argument("--flags", action="append", default=[], help="of the server; repeatable")
    parser.add_argument("--checkout", type=Path, default=Path(__file__).resolve().parents[1])
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as work:
        repository = Path(work) / "models"
        write_models(repository)
        _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))  # a connection for each request
        first, *others = sorted(os.sched_getaffinity(0))
        if arguments.apart:
            os.sched_setaffinity(0, {first})  # inherited by the server
        server = Naiad(*arguments.flags, checkout=arguments.checkout).start(repository, Path(work))
        if arguments.apart:
            os.sched_setaffinity(0, others)
        try:
            for model, transport in itertools.product(arguments.models.split(","), arguments.transports.split(",")):
                _run(server, model, transport, arguments)
        finally:
            server.stop()
    return 0


def _run(server: Running, model: str, transport: str, arguments: argparse.Namespace) -> None:
    with closing(_clients(server, model, transport)) as clients:
        rates = capacity(server, clients, 3.0)
    for kind, factor in itertools.product(arguments.clients.split(","), arguments.factors.split(",")):
        with closing(_clients(server, model, transport)) as clients:
            clients.prepare(_HTTP_CONNECTIONS)
            found = measure(server, clients, (model, transport, kind), float(factor), rates, arguments.seconds)
        print(json.dumps(asdict(found)), flush=True)
        if found.generator_lags:
            print(f"not valid: the generator sent its requests {found.late_p99_ms} ms late", file=sys.stderr)
        time.sleep(0.5)


def _clients(server: Running, model: str, transport: str) -> Clients:
    if transport == "http":
        return HttpClients(server.http_port, model)
    return GrpcClients(server.grpc_port, model)


if __name__ == "__main__":
    sys.exit(main())
