"""Read live streams in a process of their own, so that reading them does not delay a generator of requests.

    python -m bench.live_reader URL MODEL INTERVAL_MS

Each line of the standard input is the number of streams that are to be open from now on; at its end all are closed.
"""

import asyncio
import sys
from types import TracebackType

from naiad.client import Client


class LiveReader:
    """The process, for the length of a `with` block."""

    def __init__(self, url: str, model: str, interval_ms: int) -> None:
        self._command = [sys.executable, "-m", "bench.live_reader", url, model, str(interval_ms)]

    async def __aenter__(self) -> "LiveReader":
        self._process = await asyncio.create_subprocess_exec(*self._command, stdin=asyncio.subprocess.PIPE)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._input.close()
        await self._process.wait()

    @property
    def _input(self) -> asyncio.StreamWriter:
        assert self._process.stdin is not None
        return self._process.stdin

    async def open(self, pages: int) -> None:
        """Have `pages` streams open. Raises ConnectionError when the process has ended."""
        if self._process.returncode is not None:
            raise ConnectionError(f"the reader of live streams ended with {self._process.returncode}")
        self._input.write(f"{pages}\n".encode())
        await self._input.drain()


async def _read_page(url: str, model: str, interval_ms: int) -> None:
    async for _ in Client(url).live(model, interval_ms=interval_ms):
        continue


async def _follow(url: str, model: str, interval_ms: int) -> None:
    loop, commands = asyncio.get_running_loop(), asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    readers: list[asyncio.Task[None]] = []
    while line := await commands.readline():
        while len(readers) < int(line):
            readers.append(asyncio.ensure_future(_read_page(url, model, interval_ms)))
        while len(readers) > int(line):
            readers.pop().cancel()
        for reader in readers:
            if reader.done():
                reader.result()  # A stream that could not be read ends the process: the figures would be wrong.


if __name__ == "__main__":
    asyncio.run(_follow(sys.argv[1], sys.argv[2], int(sys.argv[3])))
