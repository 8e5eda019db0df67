"""A real NATS server with JetStream for tests."""

import asyncio
import json
import shutil
import socket
import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import nats
import nats.js.api
import nats.js.errors
import pytest

from support.waiting import wait_until


class NatsServer:
    """A NATS server on a free port, with its streams in a folder."""

    dead = "in-dead"
    group = "naiad"

    def __init__(self, directory: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as found:
            self.port = found.getsockname()[1]
        self._directory = directory
        self._process: subprocess.Popen | None = None

    def start(self) -> None:
        program = shutil.which("nats-server") or pytest.skip("there is no nats-server: apt install nats-server")
        command = [program, "-js", "-a", "127.0.0.1", "-p", str(self.port), "-sd", str(self._directory)]
        self._process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        wait_until(self._answers, "the NATS server did not start")

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 5).close()
        except OSError:
            return False
        return True

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60)
            self._process = None

    def address(self, stream: str) -> str:
        return f"nats://127.0.0.1:{self.port}/{stream}"

    def run(self, work: Callable[[Any, Any], Awaitable[Any]]) -> Any:
        """Return what a coroutine of a client, and of its JetStream interface, returns."""

        async def run() -> Any:
            client = await nats.connect(f"nats://127.0.0.1:{self.port}")
            try:
                return await work(client, client.jetstream())
            finally:
                await client.close()

        return asyncio.run(run())

    def clear(self) -> None:
        async def clear(client: Any, jetstream: Any) -> None:
            for stream in await jetstream.streams_info():
                await jetstream.delete_stream(stream.config.name)

        self.run(clear)

    def send(self, messages: Sequence[str | Mapping[str, str]]) -> list[str]:
        """Add messages: texts, or headers without a payload; return their ids."""

        async def send(client: Any, jetstream: Any) -> list[str]:
            await jetstream.add_stream(name="in", subjects=["in"])
            found = []
            for each in messages:
                payload, headers = (each.encode(), None) if isinstance(each, str) else (b"", dict(each))
                ack = await jetstream.publish("in", payload, headers=headers)
                found.append(str(ack.seq))
            return found

        return self.run(send)

    def deliver_in_vain(self, times: int) -> None:
        """Deliver all messages of the group to consumers that end before an answer."""

        async def deliver(client: Any, jetstream: Any) -> None:
            config = nats.js.api.ConsumerConfig(ack_wait=0.2, filter_subject="in")
            reader = await jetstream.pull_subscribe("in", "naiad", "in", config)
            for _ in range(times):
                await reader.fetch(100, 5)

        self.run(deliver)

    def delete(self, stream: str) -> None:
        self.run(lambda client, jetstream: jetstream.delete_stream(stream))

    def count(self, stream: str) -> int:
        async def count(client: Any, jetstream: Any) -> int:
            try:
                return (await jetstream.stream_info(stream)).state.messages
            except nats.js.errors.NotFoundError:
                return 0

        return self.run(count)

    def entries(self, stream: str) -> list[dict[str, str]]:
        """Return the messages of a stream: headers, and the payload as `data`."""
        total = self.count(stream)

        async def read(client: Any, jetstream: Any) -> list[dict[str, str]]:
            found = [await jetstream.get_msg(stream, number) for number in range(1, total + 1)]
            return [{**(each.headers or {}), "data": (each.data or b"").decode()} for each in found]

        return self.run(read)

    def answers(self) -> list[dict[str, Any]]:
        return [{"id": each["id"], **json.loads(each["data"])} for each in self.entries("out")]

    def open_count(self) -> int:
        """Return how many messages of the group are not acknowledged."""

        async def read(client: Any, jetstream: Any) -> int:
            info = await jetstream.consumer_info("in", "naiad")
            return info.num_pending + info.num_ack_pending

        return self.run(read)
