"""A closed loop of HTTP clients in a process of its own, which runs whenever it receives an order.

A line on its input is an order in JSON, a line on its output the answer: `{"port", "body": file, "headers",
"clients", "seconds"}`. It sends the bytes of the file again and again, so that what it costs is no tensor's.
"""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

_CONNECT_S = 10.0
_END = b"\r\n\r\n"


class _Exchange(asyncio.Protocol):
    """One connection: the next request is sent when the response is complete."""

    def __init__(self, request: bytes, until: float) -> None:
        self.request = request
        self.until = until
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.times: list[float] = []
        self._received = bytearray()
        self._began = 0.0
        self._missing = -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._send()

    def _send(self) -> None:
        self._began = time.perf_counter()
        self._received.clear()
        self._missing = -1
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        if self._missing < 0:
            self._received += data
            end = self._received.find(_END)
            if end < 0:
                return
            head = bytes(self._received[:end]).lower()
            length = head.partition(b"content-length:")[2].partition(b"\r\n")[0]
            if b" 200 " not in head.partition(b"\r\n")[0] or not length:
                self._fail(bytes(self._received[:600]).decode(errors="replace"))
                return
            self._missing = int(length) - (len(self._received) - end - len(_END))
        else:
            self._missing -= len(data)
        if self._missing <= 0:
            self._complete()

    def _complete(self) -> None:
        now = time.perf_counter()
        self.times.append(now - self._began)
        if now < self.until:
            self._send()
        elif not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(f"the connection ended: {error}")

    def _fail(self, text: str) -> None:
        if not self.done.done():
            self.done.set_exception(RuntimeError(text))


async def generate(order: dict[str, Any]) -> dict[str, Any]:
    """Run the clients of an order; return the count of requests and their times. Raises RuntimeError, OSError."""
    body = Path(order["body"]).read_bytes()
    lines = [f"POST {order['path']} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in order["headers"].items()]
    request = "\r\n".join(lines).encode() + _END + body
    loop, cpu_s = asyncio.get_running_loop(), time.process_time()
    began = time.perf_counter()
    until = began + order["seconds"]
    made: list[_Exchange] = []
    try:
        for _ in range(order["clients"]):
            opened = loop.create_connection(lambda: _Exchange(request, until), "127.0.0.1", order["port"])
            made.append((await asyncio.wait_for(opened, _CONNECT_S))[1])
        await asyncio.gather(*(each.done for each in made))
    finally:
        for each in made:
            each.transport.close()
    seconds = time.perf_counter() - began
    times = np.array([each_s for exchange in made for each_s in exchange.times]) * 1e3
    return {
        "requests": len(times),
        "seconds": seconds,
        "p50_ms": round(float(np.percentile(times, 50)), 3),
        "p99_ms": round(float(np.percentile(times, 99)), 3),
        "cpu_share": round((time.process_time() - cpu_s) / seconds, 2),
    }


def main() -> None:
    """Obey until the input ends."""
    for line in sys.stdin:
        try:
            answer: dict[str, Any] = asyncio.run(generate(json.loads(line)))
        except (RuntimeError, OSError, TimeoutError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
