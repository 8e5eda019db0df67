"""The server that variants are loaded into: one that runs already, or one that the analysis starts itself."""

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from naiad.client import Client, InferError
from naiad.tools.analyze.point_measurement import ServerLostError
from naiad.tools.perf.perf_plan import Protocol as Transport
from naiad.tools.perf.perf_plan import ServerTarget
from naiad.tools.perf.targets.connections import client_tls
from naiad.tools.process.child import ProcessError
from naiad.tools.process.own_server import LOOPBACK, ServeProcess

_START_S = 120.0
_ALIVE_S = 5.0
_TAIL_BYTES = 4000


def make_client(service: ServerTarget, timeout_s: float) -> Client:
    """Return a client of the server's control and metadata. Raises InferError(INVALID_ARG) for a wrong address."""
    return Client(service.url, headers=service.headers, tls=client_tls(service), timeout_s=timeout_s)


async def _is_live(service: ServerTarget) -> bool:
    async with make_client(service, _ALIVE_S) as client:
        with contextlib.suppress(InferError):
            return await client.is_live()
    return False


class RunningServer:
    """A naiad or Triton in explicit control mode that something else has started, here or on another machine."""

    is_own = False
    output = ""

    def __init__(self, service: ServerTarget, metrics_url: str = "", pid: int = 0) -> None:
        """`pid` of a server on this machine gives its CPU and memory; otherwise they come from `metrics_url`."""
        self.service = service
        self.metrics_url = metrics_url
        self.pid = pid

    async def start(self) -> None:
        """Check that the server responds. Raises ServerLostError."""
        if not await self.is_alive():
            raise ServerLostError(f"no server responds at {self.service.url}")

    async def is_alive(self) -> bool:
        """Return whether the server responds."""
        return await _is_live(self.service)

    async def stop(self) -> None:
        """Leave the server as it is."""


class OwnServer:
    """`naiad serve` as a child process on free ports of the loopback interface; it ends with this process."""

    is_own = True

    def __init__(
        self,
        repositories: Sequence[str | Path],
        flags: Sequence[str] = (),
        transport: Transport = Transport.GRPC,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`flags` of `naiad serve` follow the flags of the analysis; `environment` adds to the process's own."""
        self._environment = environment or {}
        self._arguments = [*(f"--model-repository={each}" for each in repositories), *flags]
        self._transport = transport
        self._process: ServeProcess | None = None
        self._has_failed = False
        descriptor, path = tempfile.mkstemp(prefix="naiad-analyze-", suffix=".log")
        os.close(descriptor)
        self.log = Path(path)
        """The output of the server; removed by `stop` unless the server has failed."""
        self.service = ServerTarget("", transport)
        self.metrics_url = ""

    @property
    def pid(self) -> int:
        """Return the process id; 0 before the start."""
        return self._process.pid if self._process else 0

    @property
    def output(self) -> str:
        """Return the end of the server's output."""
        with contextlib.suppress(OSError):
            return self.log.read_bytes()[-_TAIL_BYTES:].decode(errors="replace")
        return ""

    async def start(self) -> None:
        """Start the process and wait until it listens. Raises ServerLostError with the output."""
        await self._end()
        self._has_failed = False
        flags = [*LOOPBACK, "--model-control-mode=explicit", *self._arguments]
        self._process = ServeProcess(flags, output=self.log, environment={**os.environ, **self._environment})
        try:
            addresses = await self._process.ready(_START_S)
        except ProcessError as error:
            raise ServerLostError(f"the server did not start (output in {self.log}):\n{error}") from None
        url = addresses.urls.get(self._transport.value, "")
        if not url:
            raise ServerLostError(f"the flags turn {self._transport.value} off, over which the server is measured")
        self.service = ServerTarget(url if "://" in url else f"grpc://{url}", self._transport)
        self.metrics_url = addresses.urls.get("metrics", "")

    async def is_alive(self) -> bool:
        """Return whether the process runs and responds."""
        is_alive = self._is_running() and await _is_live(self.service)
        # A killed process closes its connections before its end can be seen.
        self._has_failed = not is_alive
        return is_alive

    def _is_running(self) -> bool:
        return self._process is not None and self._process.is_alive

    async def stop(self) -> None:
        """End the process."""
        has_failed = self._has_failed or (self._process is not None and not self._is_running())
        await self._end()
        if not has_failed:
            self.log.unlink(missing_ok=True)

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await asyncio.to_thread(process.close)


AnalyzedServer: TypeAlias = RunningServer | OwnServer
"""A server with explicit model control.

With `is_own` it may be started again, and what is loaded into it is of no use to anything else. An empty
`metrics_url` means none, a `pid` of 0 that it is not known.
"""
