"""Commands of naiad that run to their end, each a process of its own, forked from one that has imported naiad."""

import contextlib
import io
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from naiad.cli.main import main
from support.fork_server import ForkedProcess, command_server
from support.server_process import SOURCE

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")])}
END_S = 240.0
"""A command has ended after this, however busy the machine is."""


class RunningCommand:
    """`python -m naiad` with some arguments; it reads nothing from its standard input."""

    def __init__(
        self, *arguments: object, folder: Path | None = None, environment: Mapping[str, str] = ENVIRONMENT
    ) -> None:
        self._files = [tempfile.TemporaryFile() for _ in range(2)]  # noqa: SIM115 - closed by `end`
        self.arguments = ["naiad", *map(str, arguments)]
        self.process: ForkedProcess = command_server().start(
            self.arguments[1:], self._files[0], environment, errors=self._files[1], folder=folder
        )

    @property
    def errors(self) -> str:
        """Return what it has printed to its standard error so far."""
        descriptor = self._files[1].fileno()
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")

    def end(self, timeout_s: float = END_S) -> "subprocess.CompletedProcess[str]":
        """Wait for its end; return its status and outputs. One that takes too long is killed, and fails the test."""
        try:
            status = self.process.wait(timeout_s)
        finally:
            if self.process.poll() is None:
                self.process.kill()
            texts = []
            for file in self._files:
                file.seek(0)
                texts.append(file.read().decode(errors="replace"))
                file.close()
        return subprocess.CompletedProcess(self.arguments, status, *texts)


def run_command(
    *arguments: object,
    status: int | None = 0,
    folder: Path | None = None,
    environment: Mapping[str, str] = ENVIRONMENT,
    timeout_s: float = END_S,
) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end; fails unless it exits with `status`. None: with any."""
    done = RunningCommand(*arguments, folder=folder, environment=environment).end(timeout_s)
    assert status in (None, done.returncode), f"exited with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done


def command_here(*arguments: object, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run a command in this process: for mistakes, which a command reports before it starts anything.

    What it imports stays, where each process of its own would import it again.
    """
    shown, errors = io.StringIO(), io.StringIO()
    words = [*map(str, arguments)]
    with contextlib.chdir(folder), contextlib.redirect_stdout(shown), contextlib.redirect_stderr(errors):
        try:
            status = main(words)
        except SystemExit as end:  # of argparse
            status = int(end.code or 0)
    return subprocess.CompletedProcess(["naiad", *words], status, shown.getvalue(), errors.getvalue())
