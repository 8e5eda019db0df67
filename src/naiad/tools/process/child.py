"""A child process of a tool: its start, its output and its end.

Theory of operation. The child leads a session of its own: Ctrl-C in a terminal reaches the tool alone, which decides
when the child ends, and the processes that the child has started end with it. When this process ends, Linux sends
SIGTERM to the child (prctl(2), PR_SET_PDEATHSIG; it is the end of the thread that has started the child). A child
with a lifeline gets no signal: it notices the end of its standard input, and ends itself together with what it has
started, which a signal to the child alone would leave behind.

The output of the child goes to a file, not to a pipe: nothing has to read it while the child runs, and the last lines
are there when an error has to be explained.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None
_LAST_BYTES = 4000


class ProcessError(Exception):
    """A command did not do what it was started for; the text has the reason and its last output."""


class ChildProcess:
    """A running command. `close` ends it, if it runs, with all that it has started."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        output: Path | None = None,
        environment: Mapping[str, str] | None = None,
        descriptors: Sequence[int] = (),
        has_lifeline: bool = False,
        shows_output: bool = False,
        is_own_session: bool = True,
    ) -> None:
        """Start the command. Raises OSError.

        Its output goes to a temporary file, to the file `output`, or with `shows_output` where the output of this
        process goes. `environment` replaces that of this process. `descriptors` are open in the child, too. With
        `has_lifeline` its standard input ends when this process does; otherwise it is empty. Without
        `is_own_session` it belongs to the session of this process, and to what limits or ends that.
        """
        self._log = None if shows_output else _open(output)
        self._is_own_session = is_own_session
        self._is_killed = False
        try:
            self._process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.PIPE if has_lifeline else subprocess.DEVNULL,
                stdout=self._log,
                stderr=None if self._log is None else subprocess.STDOUT,
                pass_fds=descriptors,
                start_new_session=is_own_session,
                preexec_fn=None if has_lifeline or _libc is None else _end_with_parent,  # noqa: PLW1509 - one call
            )
        except BaseException:
            if self._log is not None:
                self._log.close()
            raise
        self.pid = self._process.pid

    # --- output -----------------------------------------------------------------------------------------------------

    @property
    def output_bytes(self) -> int:
        """Return the size of its output; 0 if that is shown."""
        return 0 if self._log is None or self._log.closed else os.fstat(self._log.fileno()).st_size

    def last_output(self, size: int = _LAST_BYTES) -> str:
        """Return the end of its output, at most `size` bytes of it; "" if that is shown, and after `close`."""
        if self._log is None or self._log.closed:
            return ""
        # Not `seek`: both processes have the same position in the file.
        text = os.pread(self._log.fileno(), size, max(0, self.output_bytes - size))
        return text.decode(errors="replace").strip()

    @property
    def last_line(self) -> str:
        """Return the last line of its output."""
        return (self.last_output().splitlines() or [""])[-1]

    # --- end --------------------------------------------------------------------------------------------------------

    @property
    def status(self) -> int | None:
        """Return its exit status, negative for a signal; None while it runs."""
        return self._process.poll()

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return self.status is None

    def wait(self, time_s: float | None = None) -> int | None:
        """Return the exit status when it has ended; None if that takes longer than `time_s`."""
        try:
            return self._process.wait(time_s)
        except subprocess.TimeoutExpired:
            return None

    @property
    def ending(self) -> str:
        """Return how it has ended, with the last line of its output; waits for the end."""
        status = self._process.wait()
        words = f"; its last output: {self.last_line}" if self.last_line else ""
        return f"its process ended with {status_text(status)}{words}"

    def terminate(self, grace_s: float) -> None:
        """Ask it to end, and end it if it still runs after `grace_s`."""
        if self.is_alive:
            self._process.terminate()
            self.wait(grace_s)
        self.kill()

    def kill(self) -> None:
        """End it with all processes of its session. May be called again, also while another thread waits."""
        try:
            if self._is_own_session and not self._is_killed:  # Later the system may have given its id again.
                self._is_killed = True
                os.killpg(self.pid, signal.SIGKILL)
            else:
                self._process.kill()
        except (ProcessLookupError, PermissionError):
            self._process.kill()  # The group has ended; nothing is sent to a process that has, too.
        self._process.wait()
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def close(self) -> None:
        """End it, and forget its output unless that has a file."""
        self.kill()
        if self._log is not None:
            self._log.close()


def status_text(status: int) -> str:
    """Return an exit status in words: `status 3`, `SIGKILL`."""
    if status >= 0:
        return f"status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"


def with_this_path(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return an environment in which Python finds the modules that this process finds: pickles may need them."""
    path = os.pathsep.join(filter(None, sys.path))
    return {**(os.environ if environment is None else environment), "PYTHONPATH": path}


def _open(output: Path | None) -> IO[bytes]:
    return tempfile.TemporaryFile() if output is None else output.open("wb+")


def _end_with_parent() -> None:
    """Ask Linux for SIGTERM when the parent ends."""
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
