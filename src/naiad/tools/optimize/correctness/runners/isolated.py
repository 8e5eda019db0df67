"""A model in a process of its own, with limits of time and memory: its crash is an error, no more."""

import contextlib
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from naiad.tools.optimize.correctness.runners.model_runner import Arrays, Runner, RunnerError
from naiad.tools.process.child import ChildProcess, with_this_path
from naiad.tools.process.usage import resident_mib

if TYPE_CHECKING:
    from naiad.core.tensor import TensorSpec

_LOOK_S = 0.1
"""Between looks at the memory of a process that works."""
MAY_UNPICKLE = "--may-unpickle"
"""Argument of the process."""
_CHILD = "naiad.tools.optimize.correctness.runners.runner_child"


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
        own, other = socket.socketpair()
        with other:
            self._process = ChildProcess(
                [sys.executable, "-m", module, str(other.fileno()), *arguments],
                descriptors=[other.fileno()],
                environment=with_this_path(),
            )
        self.pid = self._process.pid
        self._connection = Connection(own.detach())

    @property
    def is_alive(self) -> bool:
        """Whether the process has not ended."""
        return self._process.is_alive

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
                    self._process.kill()
                    raise RunnerError(f"no answer after {limit_s:g} s")
                self._check_memory()
            failure, answer = self._connection.recv()
        except (EOFError, ConnectionResetError) as error:
            raise RunnerError(self._process.ending) from error
        self._check_memory()
        if failure:
            raise RunnerError(failure)
        return answer

    def close(self) -> None:
        """End the process, and what it has started."""
        self._process.close()
        self._connection.close()

    def _check_memory(self) -> None:
        used_mib = resident_mib(self._process.pid)
        if used_mib > self._limits.memory_mib:
            self._process.kill()
            raise RunnerError(f"it uses {used_mib:.0f} MiB of memory, allowed are {self._limits.memory_mib:.0f} MiB")


class IsolatedRunner(Runner):
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
