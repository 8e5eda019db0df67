"""The control socket of a worker, its execution context, and stack dumps on a signal.

The control socket carries log lines and the descriptors of further channels to the server. Each message is a JSON
array on a line of its own; any thread may send while the model executes. `ExecutionContext` identifies the batch of a
call to another model. On a signal of the server the worker writes the stacks of its threads to its stderr.
"""

from __future__ import annotations

import array
import contextvars
import faulthandler
import json
import os
import signal
import socket
import threading
from typing import Any, Sequence


class ExecutionContext:
    """The executing batch, and its thread."""

    __slots__ = ("is_executing", "is_initializing", "is_open", "serial", "thread")

    def __init__(self) -> None:
        self.serial = 0
        """Number of the last batch; the server counts too."""
        self.is_executing = False
        self.thread = threading.get_ident()
        """The executing thread."""
        self.is_initializing = False
        self.is_open = False
        """Whether the model may call other models: it is initialized and not being finalized."""

    @property
    def holds_execution(self) -> bool:
        """Whether the execution waits for the calling thread."""
        return self.is_executing and threading.get_ident() == self.thread


streams: contextvars.ContextVar[Sequence[Any]] = contextvars.ContextVar("streams", default=())
"""Decoupled models: weak references to the streams of the batch of a thread or coroutine."""

late_streams: contextvars.ContextVar[Sequence[Any]] = contextvars.ContextVar("late_streams", default=())
"""Ordinary models: the same for the batch of a coroutine, after its early responses were sent."""


def open_slots() -> list[int]:
    """Return the slots of the caller's requests, as far as known."""
    return _slots_of(streams.get())


def late_slots() -> list[int]:
    """Return the slots of the late responses of an ordinary model's batch."""
    return _slots_of(late_streams.get())


def _slots_of(references: Sequence[Any]) -> list[int]:
    found = [reference() for reference in references]
    return [stream.slot for stream in found if stream is not None and not stream.is_closed]


_LONGEST_TEXT = 1 << 20


class ControlSocket:
    """The worker's end."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        # Reentrant: a signal handler or a finalizer may log as well.
        self._lock = threading.RLock()
        if hasattr(os, "register_at_fork"):
            # A process that the model forks while another thread logs would deadlock.
            os.register_at_fork(after_in_child=self._renew_lock)
        self.request_ids = ""
        """Ids of the executing requests, with NUL between them."""

    def log(self, level: int, file: str, line: int, text: str) -> None:
        """Send a line for the server's log."""
        self._send(["log", level, file, line, text[:_LONGEST_TEXT], self.request_ids])

    def pass_descriptors(self, name: str, descriptors: Sequence[int]) -> None:
        """Pass descriptors to the server; `name` is their purpose. The caller closes its own."""
        data = json.dumps([name]).encode("ascii") + b"\n"
        passed = array.array("i", descriptors)
        with self._lock:
            self._connection.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)])

    def _renew_lock(self) -> None:
        self._lock = threading.RLock()

    def _send(self, message: object) -> None:
        data = json.dumps(message).encode("ascii") + b"\n"
        with self._lock:
            self._connection.sendall(data)


DUMP_SIGNAL: int = signal.SIGRTMIN + 7 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR2
"""Not used by models. Its handler is C: it works while native code holds the GIL."""


def dump_on_signal() -> None:
    """Write the stacks of all threads to descriptor 2 whenever the signal comes."""
    faulthandler.register(DUMP_SIGNAL, file=2, all_threads=True)
