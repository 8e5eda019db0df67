"""A worker process: its start, its output in the server's log, its exit and the description of it."""

import contextlib
import json
import logging
import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

from naiad.backend.workers.process.server_channel import ServerChannel
from naiad.core.errors import excerpt
from naiad.core.version import PACKAGE_DIR
from naiad.worker.bls_calls import LINE
from naiad.worker.channel.flags_page import create_board
from naiad.worker.channel.frame import ChannelClosedError
from naiad.worker.control_socket import DUMP_SIGNAL

_VMSTAT = Path("/proc/vmstat")


def count_oom_kills() -> int:
    """Return the number of processes killed by the kernel for lack of memory; 0 if unknown."""
    try:
        for line in _VMSTAT.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    except OSError:
        return 0
    return 0


def describe_exit(returncode: int, oom_kills: int) -> str:
    """Return "exited with code 1", "was killed by SIGSEGV".

    `returncode` is that of `subprocess`; `oom_kills` happened during the life of the process.
    """
    if returncode >= 0:
        return f"exited with code {returncode}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = f"signal {-returncode}"
    if -returncode == signal.SIGKILL and oom_kills:
        return f"was killed by {name}, probably by the kernel because memory ran out"
    return f"was killed by {name}"


_log = logging.getLogger("naiad.model")


def log_line(model: str, level: int, file: str, line: int, text: str, request_ids: str) -> None:
    """Log a line of a model, with the position in its code.

    `request_ids` are the ids of the executing batch, with NUL between them.
    """
    if not _log.isEnabledFor(level):
        return
    ids = ", ".join(map(excerpt, request_ids.split(chr(0)))) if request_ids else ""
    opening = f"[request id: {ids}] " if ids else ""
    fields = {"model": model, **({"request_id": ids} if ids else {})}
    record = _log.makeRecord(
        _log.name,
        level,
        file,
        line,
        "%s",
        (f"{opening}model '{excerpt(model)}': {text}",),
        None,
        extra={"fields": fields},
    )
    _log.handle(record)


class LineSplitter:
    """Splits the output of native code into lines."""

    _LONGEST = 65536

    def __init__(self) -> None:
        self._begun = b""

    def split(self, data: bytes) -> list[str]:
        """Return the lines that `data` completes."""
        *lines, self._begun = (self._begun + data).split(b"\n")
        if len(self._begun) > self._LONGEST:
            lines, self._begun = [*lines, self._begun], b""
        return [line.decode("utf-8", "replace") for line in lines if line.strip()]

    def rest(self) -> list[str]:
        """Return the last, incomplete line."""
        return self.split(b"\n")


# Not by its module: a worker, which may start others, has it under another name.
_PACKAGE_DIR = PACKAGE_DIR / "worker"
_POLL_S = 0.05
"""Polling interval for the end of a process without pidfd."""
_LINE_DESCRIPTORS = 3
_LONGEST_SIDE_LINE = 16 << 20


class Event(Enum):
    """The reason for the return of `wait`."""

    TIMEOUT = 0
    REPLY = 1
    """The channel is readable."""
    EXIT = 2
    WAKE = 3


class WorkerProcess:
    """One process and the server's ends of its channels. One thread creates it and calls `wait`."""

    def __init__(
        self,
        executable: str,
        environment: Mapping[str, str],
        *,
        model: str,
        transport_bytes: int,
        inherited: Sequence[int] = (),
        on_line: Callable[["WorkerProcess", ServerChannel], Callable[[], None]] | None = None,
        connection: socket.socket | None = None,
    ) -> None:
        """Start the process, with the descriptors `inherited` besides the descriptors of its channels.

        With a `connection` the process exchanges frames with the server at its other end, and not with `channel`.

        `on_line` is called in `wait`, when the model makes its first call of another, and returns what closes the
        line with the process, on any thread.

        Raises OSError. The calling thread must outlive the process: Linux sends PR_SET_PDEATHSIG at the end of the
        *thread* that created it.
        """
        self._model = model
        self._calls = CallsListener(partial(on_line, self) if on_line is not None else None)
        self._lines = LineSplitter()
        self._exit_fd = -1
        self._side_begun = b""
        self._oom_kills = count_oom_kills()
        self.gone = threading.Event()
        """Set when the process has ended and `exit_text` says how."""
        self.settled = threading.Event()
        """Set when it is gone and the health of its instance says so."""
        self.exit_text = ""
        self.kill_text = ""
        """Why the server has killed it, if it has."""
        # If a step fails, all opened descriptors are closed again: a server with too many open files retries.
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            their_read, write_fd = _pipe(theirs, ours)
            read_fd, their_write = _pipe(ours, theirs)
            self._output, their_output = _pipe(ours, theirs)
            blocks, their_blocks = _socketpair(ours, theirs)
            self._side, their_side = _socketpair(ours, theirs)
            self.board, their_board = create_board()
            ours.callback(self.board.close)
            theirs.callback(os.close, their_board)
            if connection is not None:
                their_read, their_write = connection.fileno(), os.dup(connection.fileno())
                theirs.callback(os.close, their_write)
            passed = (their_read, their_write, their_blocks.fileno(), their_side.fileno(), their_board)
            self._process = subprocess.Popen(
                [executable, str(_PACKAGE_DIR), *map(str, passed), str(os.getpid())],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=their_output,
                stderr=their_output,
                pass_fds=(*passed, *inherited),
                process_group=0,
            )
            ours.pop_all()
        self.channel = ServerChannel(read_fd, write_fd, blocks, limit_bytes=transport_bytes)
        self.pid = self._process.pid
        os.set_blocking(self._output, False)
        self._side.setblocking(False)
        self._exit_fd = _open_exit(self.pid)
        self._poll = select.poll()
        for descriptor in (self._output, self._side.fileno(), self._exit_fd):
            if descriptor >= 0:
                self._poll.register(descriptor, select.POLLIN)
        self._read_fd = read_fd

    def wait(self, timeout_s: float | None, wake_fd: int, *, for_reply: bool = False) -> Event:
        """Forward the output of the process until an event. `timeout_s` None waits without limit."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        self._poll.register(wake_fd, select.POLLIN)
        if for_reply:
            self._poll.register(self._read_fd, select.POLLIN)
        try:
            while True:
                event = self._look(deadline_s, wake_fd)
                if event is not None:
                    return event
        finally:
            self._poll.unregister(wake_fd)
            if for_reply:
                self._poll.unregister(self._read_fd)

    def await_ready(self, wake_fd: int, is_closing: Callable[[], bool]) -> None:
        """Wait for other processes that belong to this one, which has loaded the model; none by default."""

    def localized(self, notes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the notes of a model with the directories of the machine of this process."""
        return dict(notes)

    def kill(self, why: str = "", signal_number: int = signal.SIGKILL) -> None:
        """Send a signal to the process and to all its descendants."""
        self.kill_text = self.kill_text or why
        if self.gone.is_set():
            return
        try:
            os.killpg(self.pid, signal_number)
        except ProcessLookupError:
            return

    def dump_stacks(self) -> None:
        """Let the process write the stacks of its threads to its output, which is logged."""
        if not self.gone.is_set():
            try:
                os.kill(self.pid, DUMP_SIGNAL)
            except ProcessLookupError:
                return

    def close(self) -> None:
        """Close the channels of an exited process; no thread may be using them."""
        self._calls.close()
        self.channel.close()
        self.board.close()
        self._release()

    def _release(self) -> None:
        os.close(self._output)
        self._side.close()
        if self._exit_fd >= 0:
            os.close(self._exit_fd)

    # --- listening --------------------------------------------------------------------------------------------------

    def _look(self, deadline_s: float | None, wake_fd: int) -> Event | None:
        left_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
        slice_s = left_s if self._exit_fd >= 0 else min(_POLL_S, _POLL_S if left_s is None else left_s)
        ready = self._await(None if slice_s is None else slice_s * 1000)
        if self._output in ready:
            self._read_output()
        if self._side.fileno() in ready:
            self._read_side()
        if self._exit_fd in ready or (self._exit_fd < 0 and self._process.poll() is not None):
            self._finish()
            return Event.EXIT
        if wake_fd in ready:
            os.read(wake_fd, 4096)
            return Event.WAKE
        if self._read_fd in ready:
            return Event.REPLY
        if left_s is not None and time.monotonic() >= (deadline_s or 0.0):
            return Event.TIMEOUT
        return None

    def _await(self, timeout_ms: float | None) -> set[int]:
        """Return the ready descriptors; pending data for the worker is sent."""
        full_fds = self.channel.full_fds
        for descriptor in full_fds:
            self._poll.register(descriptor, select.POLLOUT)
        try:
            ready = {descriptor for descriptor, _ in self._poll.poll(timeout_ms)}
        finally:
            for descriptor in full_fds:
                self._poll.unregister(descriptor)
        if not ready.isdisjoint(full_fds):
            with contextlib.suppress(ChannelClosedError):  # its end is detected, too
                self.channel.flush()
        return ready

    def _finish(self) -> None:
        # Until the process is reaped its number cannot belong to another.
        self.kill()
        returncode = self._process.wait()
        while self._read_output():
            pass
        while self._read_side():
            pass
        for text in self._lines.rest():
            log_line(self._model, logging.INFO, "worker", 0, text, "")
        self.exit_text = self.kill_text or describe_exit(returncode, count_oom_kills() - self._oom_kills)
        self.gone.set()

    def _read_output(self) -> bool:
        try:
            data = os.read(self._output, 65536)
        except BlockingIOError:
            return False
        if not data and not self.gone.is_set():
            self._forget(self._output)
        for text in self._lines.split(data):
            log_line(self._model, logging.INFO, "worker", 0, text, "")
        return bool(data)

    def _read_side(self) -> bool:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._side, 65536, _LINE_DESCRIPTORS)
        except (BlockingIOError, ConnectionResetError):
            return False
        if not data:
            self._forget(self._side.fileno())
        self._calls.passed.extend(descriptors)
        *lines, self._side_begun = (self._side_begun + data).split(b"\n")
        if len(self._side_begun) > _LONGEST_SIDE_LINE:
            self._side_begun = b""
        for line in lines:
            self._take(line)
        return bool(data)

    def _forget(self, descriptor: int) -> None:
        try:
            self._poll.unregister(descriptor)
        except KeyError:
            return

    def _take(self, line: bytes) -> None:
        try:
            kind, *values = json.loads(line)
            if kind == "log":
                level, file, number, text, request_ids = values
                log_line(self._model, int(level), str(file), int(number), str(text), str(request_ids))
            elif kind == LINE:
                self._calls.open()
        except (ValueError, TypeError, OSError) as error:
            logging.getLogger(__name__).warning("worker %d of model '%s': %r", self.pid, self._model, error)


def _pipe(reader: contextlib.ExitStack, writer: contextlib.ExitStack) -> tuple[int, int]:
    read_fd, write_fd = os.pipe()
    reader.callback(os.close, read_fd)
    writer.callback(os.close, write_fd)
    return read_fd, write_fd


def _socketpair(ours: contextlib.ExitStack, theirs: contextlib.ExitStack) -> tuple[socket.socket, socket.socket]:
    our_end, their_end = socket.socketpair()
    return ours.enter_context(our_end), theirs.enter_context(their_end)


def _open_exit(pid: int) -> int:
    """Return a descriptor that is readable when a process has ended, -1 if it must be polled."""
    if not hasattr(os, "pidfd_open"):
        return -1
    try:
        return os.pidfd_open(pid)
    except OSError:  # too many open files
        return -1


class CallsListener:
    """Receives the descriptors of a worker's channel of calls."""

    def __init__(self, on_line: Callable[[ServerChannel], Callable[[], None]] | None) -> None:
        self._on_line = on_line
        self._close_line: Callable[[], None] | None = None
        self.passed: deque[int] = deque()
        """Descriptors that came over the side line."""

    def open(self) -> None:
        """Open the channel; without a listener it is closed, which the worker detects."""
        if len(self.passed) < _LINE_DESCRIPTORS:
            count = len(self.passed)
            # The worker detects that its ends are closed, and its calls fail.
            self._close_passed()
            raise OSError(f"{count} descriptors for a line of calls; perhaps too many files are open")
        read_fd, write_fd, blocks_fd = (self.passed.popleft() for _ in range(_LINE_DESCRIPTORS))
        channel = ServerChannel(read_fd, write_fd, socket.socket(fileno=blocks_fd), limit_bytes=0)
        if self._on_line is None or self._close_line is not None:
            channel.close()
        else:
            self._close_line = self._on_line(channel)

    def close(self) -> None:
        """Close the line."""
        if self._close_line is not None:
            self._close_line()
        self._close_passed()

    def _close_passed(self) -> None:
        while self.passed:
            os.close(self.passed.popleft())
