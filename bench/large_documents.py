"""Small requests beside clients with large JSON documents: `python bench/large_documents.py`.

A client sends small requests one after the other, first alone, then beside clients that each send JSON documents of
2 MB without a pause. What counts is how much longer the small requests take: at most twice as long for the median and
five times as long for the 99th percentile. The clients with documents have the lowest priority: they would run on
other machines, and here the server and the client of the small requests do not wait for them.
"""

import argparse
import json
import multiprocessing
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from pathlib import Path

_CONFIG = """backend: "identity"
input { name: "INPUT0" data_type: TYPE_FP32 dims: -1 }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: -1 }
"""


def request(port: int, values: int, *, answers: bool) -> bytes:
    """Return a request with `values` elements; without `answers` it asks for a binary response."""
    data = [round(i * 0.6180339887498949 % 1, 6) for i in range(values)]
    tensor = {"name": "INPUT0", "shape": [values], "datatype": "FP32", "data": data}
    output = {"name": "OUTPUT0", "parameters": {"binary_data": not answers}}
    body = json.dumps({"inputs": [tensor], "outputs": [output]}).encode()
    head = f"POST /v2/models/identity/infer HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def exchange(connection: socket.socket, message: bytes, buffer: bytearray) -> None:
    """Send a request and read its whole response."""
    connection.sendall(message)
    received = b""
    while b"\r\n\r\n" not in received:
        piece = connection.recv(65536)
        if not piece:
            raise SystemExit("the server has closed a connection")
        received += piece
    head, _, rest = received.partition(b"\r\n\r\n")
    if b" 200 " not in head[:16]:
        raise SystemExit(f"refused: {received[:100]!r}")
    left = int(head.lower().split(b"\r\ncontent-length:")[1].split(b"\r\n")[0]) - len(rest)
    while left > 0:
        left -= connection.recv_into(buffer)


def send_documents(port: int, message: bytes, count: "Synchronized[int]", stop: Event) -> None:
    """Send documents until `stop` is set."""
    os.nice(19)
    buffer = bytearray(1 << 20)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        while not stop.is_set():
            exchange(connection, message, buffer)
            with count.get_lock():
                count.value += 1


def measure(port: int, seconds: float) -> Sequence[float]:
    """Return the times of small requests in ms."""
    times = []
    buffer = bytearray(65536)
    message = request(port, 4, answers=True)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            began = time.perf_counter()
            exchange(connection, message, buffer)
            times.append((time.perf_counter() - began) * 1e3)
    return times


def show(name: str, times: Sequence[float], more: str = "") -> tuple[float, float]:
    """Print and return median and 99th percentile."""
    cuts = statistics.quantiles(times, n=100)
    print(f"{name}: {len(times)} requests, p50 {cuts[49]:.2f} ms, p99 {cuts[98]:.2f} ms{more}", flush=True)
    return cuts[49], cuts[98]


def serve(directory: Path, flags: Sequence[str]) -> tuple["subprocess.Popen[bytes]", int]:
    """Start a server; return it and its HTTP port."""
    (directory / "models" / "identity" / "1").mkdir(parents=True)
    (directory / "models" / "identity" / "config.pbtxt").write_text(_CONFIG)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ports = [f"--http-port={port}", "--http-address=127.0.0.1", "--allow-grpc=false", "--allow-metrics=false"]
    command = [sys.executable, "-m", "naiad", "serve", f"--model-repository={directory / 'models'}", *ports, *flags]
    with (directory / "log").open("wb") as log:
        server = subprocess.Popen(command, stderr=log, stdout=log)
    for _ in range(600):
        if b"ready: " in (directory / "log").read_bytes():
            return server, port
        time.sleep(0.1)
    raise SystemExit((directory / "log").read_text())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--megabytes", type=float, default=2.0)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--answers", action="store_true", help="responses are as large JSON documents, too")
    options, flags = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as name:
        server, port = serve(Path(name), flags)
        try:
            message = request(port, int(options.megabytes * 1e6 / 10), answers=options.answers)
            print(f"document: {len(message) / 1e6:.1f} MB, clients: {options.clients}")
            alone = show("alone", measure(port, options.seconds))
            stop, count = multiprocessing.Event(), multiprocessing.Value("i", 0)
            clients = [
                multiprocessing.Process(target=send_documents, args=(port, message, count, stop), daemon=True)
                for _ in range(options.clients)
            ]
            for client in clients:
                client.start()
            time.sleep(1)
            before = count.value
            times = measure(port, options.seconds)
            rate = (count.value - before) / options.seconds
            beside = show("beside", times, f"; {rate:.1f} documents/s")
            print(f"ratio: p50 {beside[0] / alone[0]:.2f}, p99 {beside[1] / alone[1]:.2f}")
            stop.set()
            for client in clients:
                client.terminate()
        finally:
            server.terminate()
            server.wait(60)


if __name__ == "__main__":
    main()
