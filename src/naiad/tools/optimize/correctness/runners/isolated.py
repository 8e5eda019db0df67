"""A model in a process of its own, with limits of time and memory: its crash is an error, no more."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from naiad.tools.optimize.correctness.runners.runner import Arrays, RunnerError

if TYPE_CHECKING:
    from naiad.core.tensor import TensorSpec

_LOOK_S = 0.1
"""Between looks at the memory of a process that works."""
_LAST_WORDS_BYTES = 2000
MAY_UNPICKLE = "--may-unpickle"
"""Argument of the process."""
_CHILD = "naiad.tools.optimize.correctness.runners.child"


@dataclass(frozen=True, slots=True)
class CandidateLimits:
    """What a candidate may use."""

    load_s: float = 300.0
    call_s: float = 60.0
    memory_mib: float = 4096.0
    """Resident memory; not measured where there is no /proc."""


class ModelProcess:
    """A process that answers messages about a model: each with the reason of a failure or "", and the result."""

    def __init__(self, module: str, arguments: Sequence[str], limits: CandidateLimits) -> None:
        """Run `module` with the file descriptor of the connection and `arguments`."""
        self._limits = limits
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        own, other = socket.socketpair()
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(other.fileno()), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                pass_fds=[other.fileno()],
                start_new_session=True,
                # Pickles and plugins may need modules that only this process has on its path.
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        self.pid = self._process.pid
        self._connection = Connection(own.detach())

    @property
    def is_alive(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def call(self, message: Any, limit_s: float) -> Any:
        """Send a message and return the result. Raises RunnerError."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # `receive` says why the process has ended
            self._connection.send(message)
        return self.receive(limit_s)

    def receive(self, limit_s: float) -> Any:
        """Return the next result. Raises RunnerError for a failure, a crash, or when a limit is exceeded."""
        deadline_s = time.monotonic() + limit_s
        try:
            while not self._connection.poll(_LOOK_S):
                if time.monotonic() > deadline_s:
                    self._end()
                    raise RunnerError(f"no answer after {limit_s:g} s")
                self._check_memory()
            failure, answer = self._connection.recv()
        except (EOFError, ConnectionResetError) as error:
            raise RunnerError(self._ending()) from error
        self._check_memory()
        if failure:
            raise RunnerError(failure)
        return answer

    def close(self) -> None:
        """End the process, and what it has started."""
        self._end()
        self._connection.close()
        self._log.close()

    def _check_memory(self) -> None:
        used_mib = resident_mib(self._process.pid)
        if used_mib > self._limits.memory_mib:
            self._end()
            raise RunnerError(f"it uses {used_mib:.0f} MiB of memory, allowed are {self._limits.memory_mib:.0f} MiB")

    def _ending(self) -> str:
        self._process.wait()
        status = self._process.returncode
        how = signal.Signals(-status).name if status < 0 else f"status {status}"
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - _LAST_WORDS_BYTES))
        words = self._log.read().decode(errors="replace").strip().splitlines()
        return f"its process ended with {how}" + (f"; its last output: {words[-1]}" if words else "")

    def _end(self) -> None:
        with contextlib.suppress(ProcessLookupError):  # the group is empty
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class IsolatedRunner:
    """A model of a repository as naiad serves it, in another process. `close` ends it."""

    def __init__(
        self, repository: Path, model: str, limits: CandidateLimits | None = None, *, may_unpickle: bool = False
    ) -> None:
        """Start the process and load the model. Raises RunnerError.

        With `may_unpickle` also a pickle of `torch.save`, whose load executes code.
        """
        self._limits = limits or CandidateLimits()
        arguments = [str(repository), model, *([MAY_UNPICKLE] if may_unpickle else [])]
        self._process = ModelProcess(_CHILD, arguments, self._limits)
        self.pid = self._process.pid
        """Of the process."""
        try:
            self.max_batch: int
            """The most rows of a request; 0 if there is no limit."""
            self.inputs: Sequence[TensorSpec]
            self.outputs: Sequence[TensorSpec]
            self.max_batch, self.inputs, self.outputs = self._process.receive(self._limits.load_s)
        except BaseException:
            self.close()
            raise

    def infer(self, inputs: Arrays) -> Arrays:
        """Execute one request."""
        return self.infer_concurrently([inputs])[0]

    def infer_concurrently(self, requests: Sequence[Arrays]) -> Sequence[Arrays]:
        """Execute requests at the same time."""
        found: Sequence[Arrays] = self._process.call([dict(each) for each in requests], self._limits.call_s)
        return found

    def close(self) -> None:
        """End the process, and what it has started."""
        self._process.close()


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process; 0 where there is no /proc."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
