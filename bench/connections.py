"""What connections cost: thousands that are idle, and TLS on those that are not."""

import contextlib
import resource
import socket
import time
from collections.abc import Iterator, Sequence
from statistics import median

from bench.load import Measurement, Shape, measure
from bench.payloads import GRPC, HTTP_BINARY, Payload, add_sub, check, make
from bench.peers import Naiad, Running
from bench.process_tree import memory
from bench.session import Session
from bench.tls import certificate

IDLE = 5_000
_BATCH = 250
_SETTLE_S = 1.0
_REQUEST = b"GET /v2/health/live HTTP/1.1\r\nHost: bench\r\n\r\n"
_ADDRESSES = ("127.0.0.1", "127.0.0.2")
"""Of this end: one address has too few free ports on some systems."""


def idle_connections(session: Session) -> None:
    """Load on 32 connections alone and beside 5,000 that are open, have asked once and are silent."""
    repository = session.repository("add_sub")
    with session.serve(Naiad(), repository) as server:
        payload = _checked(session, server, HTTP_BINARY)
        shape = Shape(32)
        _load(session, server, payload, shape)
        # Before the first round: later ones use its memory again.
        before = memory(server.process.pid).rss
        for _ in range(session.options.rounds):
            alone = _load(session, server, payload, shape)
            with _idle(server.http_port, IDLE):
                time.sleep(_SETTLE_S)
                per_connection = (memory(server.process.pid).rss - before) / IDLE
                beside = _load(session, server, payload, shape)
            for idle, found in ((0, alone), (IDLE, beside)):
                extra = {"bytes_per_connection": per_connection} if idle else {}
                session.add("idle_connections", {"server": "naiad", "idle": idle}, {**found.as_dict(), **extra})
            time.sleep(_SETTLE_S)


def tls(session: Session) -> None:
    """The same load in plain text and over TLS, over connections that are kept."""
    repository = session.repository("add_sub")
    encrypted = Naiad(*_tls_flags(session), scheme="https")
    with session.serve(Naiad(), repository, "plain") as plain, session.serve(encrypted, repository, "tls") as secured:
        for transport in (HTTP_BINARY, GRPC):
            payload = _checked(session, plain, transport)
            for _ in range(session.options.rounds):
                for server in (plain, secured):
                    found = _load(session, server, payload, Shape(8))
                    row = {"server": "naiad", "transport": transport, "tls": server.scheme == "https"}
                    session.add("tls", row, found.as_dict())


def _load(session: Session, server: Running, payload: Payload, shape: Shape) -> Measurement:
    return measure(server, payload, shape, session.options.seconds, session.options.warm_up_s)


def _checked(session: Session, server: Running, transport: str) -> Payload:
    payload = make(add_sub("add_sub"), transport, session.work / "payloads")
    return check(payload, server.http_port, server.grpc_port)


def _tls_flags(session: Session) -> Sequence[str]:
    cert, key = certificate(session.work / "certificates")
    flags = []
    for protocol in ("http", "grpc"):
        flags += [f"--{protocol}-use-ssl=true", f"--{protocol}-server-cert={cert}", f"--{protocol}-server-key={key}"]
    return flags


@contextlib.contextmanager
def _idle(port: int, count: int) -> Iterator[None]:
    """Keep connections open that have had one answer each."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with contextlib.ExitStack() as stack:
        for begin in range(0, count, _BATCH):
            batch = []
            for number in range(begin, min(count, begin + _BATCH)):
                each = stack.enter_context(contextlib.closing(socket.socket()))
                each.settimeout(30)
                each.bind((_ADDRESSES[number % len(_ADDRESSES)], 0))
                each.connect(("127.0.0.1", port))
                each.sendall(_REQUEST)
                batch.append(each)
            for each in batch:
                if not each.recv(4096).startswith(b"HTTP/1.1 200"):
                    raise RuntimeError("an idle connection got no answer")
        yield


def slowdowns(alone: Sequence[float], beside: Sequence[float]) -> float:
    """Return the median ratio of rounds that followed each other."""
    return median(b / a for a, b in zip(alone, beside, strict=True))
