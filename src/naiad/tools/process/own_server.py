"""`naiad serve` as a child process of a tool, whose addresses come from its ready file."""

import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from naiad.tools.process.child import ChildProcess, ProcessError

_LOOK_S = 0.05
"""Between looks whether the server is ready."""
_GRACE_S = 15.0
"""A server that takes longer to end is killed."""
LOOPBACK = (
    "--http-address=127.0.0.1",
    "--grpc-address=127.0.0.1",
    "--http-port=0",
    "--grpc-port=0",
    "--metrics-port=0",
)
"""Flags of a server on free ports that only this machine reaches."""


@dataclass(frozen=True, slots=True)
class ServerAddresses:
    """Where a server that is ready listens; the services are http, grpc and metrics, without those that are off."""

    urls: Mapping[str, str]
    """By the name of the service; that of gRPC is `host:port`."""
    ports: Mapping[str, int]


class ServeProcess:
    """`naiad serve` with flags; `close` ends it, as does the end of this process."""

    def __init__(
        self,
        flags: Sequence[str],
        *,
        output: Path | None = None,
        environment: Mapping[str, str] | None = None,
        shows_output: bool = False,
    ) -> None:
        """Start the process; it does not listen yet. Raises OSError.

        `ChildProcess` says what output and environment mean.
        """
        self._home = tempfile.TemporaryDirectory(prefix="naiad-own-server-")
        self._ready_file = Path(self._home.name, "ready.json")
        command = [sys.executable, "-m", "naiad", "serve", *flags, f"--ready-file={self._ready_file}"]
        try:
            self.process = ChildProcess(command, output=output, environment=environment, shows_output=shows_output)
        except BaseException:
            self._home.cleanup()
            raise
        self.pid = self.process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the process has not ended."""
        return self.process.is_alive

    async def ready(self, within_s: float) -> ServerAddresses:
        """Wait until its models are loaded, and return its addresses. Raises ProcessError with its last output."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while (found := self._addresses()) is None:
                    await asyncio.sleep(_LOOK_S)
                return found
        raise self._not_ready(within_s)

    def wait_ready(self, within_s: float) -> ServerAddresses:
        """Do what `ready` does where there is no event loop."""
        end_s = time.monotonic() + within_s
        while time.monotonic() < end_s:
            found = self._addresses()
            if found is not None:
                return found
            time.sleep(_LOOK_S)
        raise self._not_ready(within_s)

    def _addresses(self) -> ServerAddresses | None:
        """Return the addresses; None while the server starts. Raises ProcessError when it has ended."""
        is_alive = self.is_alive
        try:
            document: Mapping[str, Any] = json.loads(self._ready_file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            if not is_alive:
                raise ProcessError(self.process.last_output() or self.process.ending) from None
            return None
        services = {name: each for name, each in document.items() if isinstance(each, dict)}
        return ServerAddresses(
            {name: str(each["url"]) for name, each in services.items()},
            {name: int(each["port"]) for name, each in services.items()},
        )

    def _not_ready(self, within_s: float) -> ProcessError:
        return ProcessError(f"not ready after {within_s:g} s; its last output:\n{self.process.last_output()}")

    def close(self, grace_s: float = _GRACE_S) -> None:
        """Let it finish what it does, and end it if that takes longer than `grace_s`. May be called again."""
        self.process.terminate(grace_s)
        self.process.close()
        self._home.cleanup()
