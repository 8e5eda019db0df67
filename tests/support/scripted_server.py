"""A server of KServe v2 over HTTP in a thread, whose answers a script decides: it stalls, hangs, dies or lies."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

Script = Callable[[int], Awaitable["Answer | None"]]
"""Gets the number of an inference request from 0; None closes the connection."""

METADATA = {
    "name": "echo",
    "versions": ["1"],
    "platform": "scripted",
    "inputs": [{"name": "IN", "datatype": "FP32", "shape": [-1, 4]}],
    "outputs": [{"name": "OUT", "datatype": "FP32", "shape": [-1, 4]}],
}
_RIGHT = {"name": "OUT", "datatype": "FP32", "shape": [1, 4], "data": [1.0, 2.0, 3.0, 4.0]}


@dataclass
class Answer:
    """A response to an inference request."""

    body: bytes
    status: int = 200
    content_type: str = "application/json"
    last_bytes_after_s: float = 0.0
    """The last 8 bytes come later by this time."""
    copies: int = 1
    """How often the response is sent."""
    declared_bytes: int | None = None
    """Content-Length, where it is not that of the body."""


def right(**changes: object) -> Answer:
    """Return an answer with one output, the declared one with changes."""
    return Answer(json.dumps({"model_name": "echo", "outputs": [{**_RIGHT, **changes}]}).encode())


async def hang() -> None:
    """Never answer."""
    await asyncio.Event().wait()


class ScriptedServer:
    """Serves until it is closed; a script may call `die`."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._count = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.url = ""

    async def start(self) -> None:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def die(self) -> None:
        """Close the port and all connections."""
        self._server.close()
        for task in self._tasks:
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while answer := await self._answer(*await _request(reader)):
                await _respond(writer, answer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            return  # The client has gone, or the server dies.
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _answer(self, method: str, path: str) -> Answer | None:
        if method == "POST":
            self._count += 1
            return await self._script(self._count - 1)
        if path == "/v2":
            return Answer(json.dumps({"name": "scripted", "version": "1", "extensions": []}).encode())
        if path.endswith("/models/echo"):
            return Answer(json.dumps(METADATA).encode())
        return Answer(b'{"error": "not here"}', status=404)


async def _respond(writer: asyncio.StreamWriter, answer: Answer) -> None:
    length = len(answer.body) if answer.declared_bytes is None else answer.declared_bytes
    head = f"HTTP/1.1 {answer.status} OK\r\nContent-Type: {answer.content_type}\r\nContent-Length: {length}\r\n\r\n"
    data = (head.encode() + answer.body) * answer.copies
    if answer.last_bytes_after_s:
        writer.write(data[:-8])
        await asyncio.sleep(answer.last_bytes_after_s)
        data = data[-8:]
    writer.write(data)


async def _request(reader: asyncio.StreamReader) -> tuple[str, str]:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    lengths = [line.split(":")[1] for line in lines if line.lower().startswith("content-length:")]
    await reader.readexactly(int(lengths[0]) if lengths else 0)
    method, path, _ = lines[0].split()
    return method, path


@contextmanager
def scripted_server(script: Script) -> Iterator[ScriptedServer]:
    """Serve in a thread."""
    loop = asyncio.new_event_loop()
    server = ScriptedServer(script)
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(server.start(), loop).result()
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(server.die)
        asyncio.run_coroutine_threadsafe(_end(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _end() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.gather(*others, return_exceptions=True)
