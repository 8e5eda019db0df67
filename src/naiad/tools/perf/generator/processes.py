"""Several generator processes that send one load together.

Theory of operation. One Python process sends some 15,000 to 25,000 requests/s; a load that needs more is shared by
processes of `naiad.tools.perf.generator.generator_process`, each with an event loop, a target and a
`LocalGenerator`. The session has a Unix socket pair to each. The first message is the `Setup`, which has the
process's number and the number of processes; each later one is a method of the generator and its arguments, and is
answered by the result or the InferError. A process ends when its socket is closed, so none outlives the session.

- The load is shared without messages: concurrency slots and requests of an open loop are dealt round robin by number,
  so the processes compute the same schedule and each sends every n-th request: arrivals, also Poisson ones, are as
  with one generator. Ids of sequences are partitioned.
- Times need no alignment: CLOCK_MONOTONIC is one clock for all processes of a host. An open loop begins at a moment a
  little in the future that all processes get.
- Records travel as raw arrays in the answer to `take`, four times a second, and are merged by their ends.
"""

import asyncio
import socket
import sys
from dataclasses import replace
from typing import Any

from naiad.core.errors import InferError, internal
from naiad.tools.perf.generator.generator_process import read, write
from naiad.tools.perf.generator.setup import MeasuredChunk, Setup
from naiad.tools.perf.perf_plan import Load
from naiad.tools.process.child import ChildProcess

_EXIT_S = 5.0


class _Worker:
    """A generator process."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup

    async def start(self) -> None:
        """Start the process and send it its setup."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = ChildProcess(
                [sys.executable, "-m", "naiad.tools.perf.generator.generator_process", str(theirs.fileno())],
                descriptors=[theirs.fileno()],
                shows_output=True,
            )
        self._reader, self._writer = await asyncio.open_connection(sock=ours)
        await write(self._writer, self._setup)

    async def call(self, method: str, *arguments: object) -> Any:
        """Return the result of a method of the generator. Raises its InferError."""
        try:
            await write(self._writer, (method, arguments))
            result = await read(self._reader)
        except (asyncio.IncompleteReadError, ConnectionError):
            status = await asyncio.to_thread(self._process.wait)
            raise internal(f"generator process {self._setup.part} exited with status {status}") from None
        if isinstance(result, InferError):
            raise result
        return result

    async def end(self) -> None:
        """End the process."""
        self._writer.close()
        await asyncio.to_thread(self._process.wait, _EXIT_S)
        self._process.close()


class GeneratorProcesses:
    """The generators of several processes as one."""

    def __init__(self, setup: Setup, count: int) -> None:
        self._workers = [_Worker(replace(setup, part=part, parts=count)) for part in range(count)]
        self._started: list[_Worker] = []

    async def open(self, connections: int) -> None:
        """Start the processes, and connect. Raises ConnectionFailedError."""
        if not self._started:
            for worker in self._workers:
                await worker.start()
                self._started.append(worker)
        await self._call("open", connections)

    async def start(self, load: Load, limit: int | None = None, begin_ns: int = 0) -> None:
        """Begin to send."""
        await self._call("start", load, limit, begin_ns)

    async def take(self) -> list[MeasuredChunk]:
        """Return what was measured since the last call, of each process."""
        return [chunk for chunks in await self._call("take") for chunk in chunks]

    async def stop(self, drain_s: float) -> list[MeasuredChunk]:
        """Send no more, wait for the outstanding requests, end the sequences, and return the rest."""
        return [chunk for chunks in await self._call("stop", drain_s) for chunk in chunks]

    async def close(self) -> None:
        """End the processes."""
        await asyncio.gather(*(worker.end() for worker in self._started))
        self._started = []

    async def _call(self, method: str, *arguments: object) -> list[Any]:
        return await asyncio.gather(*(worker.call(method, *arguments) for worker in self._workers))
