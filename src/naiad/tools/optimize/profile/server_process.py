"""A `naiad serve` process of one finalist, on free ports of the loopback interface."""

import asyncio
import contextlib
import ctypes
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from naiad.tools.optimize.correctness.runners.isolated import resident_mib
from naiad.tools.optimize.correctness.runners.runner import RunnerError
from naiad.tools.optimize.profile.processor import tree_cpu_s

_START_S = 60.0
_STOP_S = 10.0
_POLL_S = 0.05
_LAST_WORDS_BYTES = 2000
_STARTED = re.compile(rb"Started GRPCInferenceService at ([^\s\"]+)")
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


class ServerProcess:
    """A server with explicit model control; `close` ends it, as does the end of this process."""

    def __init__(self, repository: Path) -> None:
        """Start the process; it does not listen yet."""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        command = [sys.executable, "-m", "naiad", "serve", f"--model-repository={repository}"]
        command += ["--model-control-mode=explicit", "--grpc-address=127.0.0.1", "--grpc-port=0"]
        command += ["--allow-http=false", "--allow-metrics=false"]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            preexec_fn=_end_with_parent if _libc is not None else None,  # noqa: PLW1509 - a single system call
        )

    async def url(self) -> str:
        """Return the URL when the server listens. Raises RunnerError."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_START_S):
                while self._process.poll() is None:
                    if match := _STARTED.search(self._output()):
                        return f"grpc://{match[1].decode()}"
                    await asyncio.sleep(_POLL_S)
        raise RunnerError(f"the server did not start: {self.last_words}")

    @property
    def is_alive(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    @property
    def last_words(self) -> str:
        """Return the end of its output."""
        return self._output()[-_LAST_WORDS_BYTES:].decode(errors="replace").strip()

    @property
    def memory_mib(self) -> float:
        """Return its resident memory; 0 where there is no /proc."""
        return resident_mib(self._process.pid)

    @property
    def cpu_s(self) -> float:
        """Return its CPU time with that of its processes; 0 where there is no /proc."""
        return tree_cpu_s(self._process.pid)

    def close(self) -> None:
        """End the process."""
        if self.is_alive:
            self._process.terminate()
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()
        self._log.close()

    def _output(self) -> bytes:
        self._log.seek(0)
        return self._log.read()


def _end_with_parent() -> None:
    """Ask Linux for SIGTERM when the optimization ends, however it does."""
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
