"""Stacks of a worker on demand, whatever it is doing: the server sends a signal, the worker writes to its stderr.

What a worker is doing just now: its calls of other models tell, so that the server knows whose calls they are.

The side line: a socket on which a worker tells the server log lines, and gives it the ends of further lines.

Each message is a JSON array on a line of its own. It works while the model executes, from any of its threads.
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
    """The batch that executes, and where."""

    __slots__ = ("is_executing", "is_initializing", "is_open", "serial", "thread")

    def __init__(self) -> None:
        self.serial = 0
        """Number of the last batch; the server counts too."""
        self.is_executing = False
        self.thread = threading.get_ident()
        """The thread that executes."""
        self.is_initializing = False
        self.is_open = False
        """Whether the model may call others: it is initialized and not being finalized."""

    @property
    def holds_execution(self) -> bool:
        """Whether the execution cannot go on before the calling thread does."""
        return self.is_executing and threading.get_ident() == self.thread


streams: contextvars.ContextVar[Sequence[Any]] = contextvars.ContextVar("streams", default=())
"""Decoupled models: weak references to the streams of the batch that a thread or a coroutine works on."""

late_streams: contextvars.ContextVar[Sequence[Any]] = contextvars.ContextVar("late_streams", default=())
"""Ordinary models: the same of the batch that a coroutine belongs to, once it was answered without all responses."""


def open_slots() -> list[int]:
    """Return the slots of the requests that the caller works on, as far as that is known."""
    return _slots_of(streams.get())


def late_slots() -> list[int]:
    """Return those of the requests of an ordinary model whose batch was answered without their responses."""
    return _slots_of(late_streams.get())


def _slots_of(references: Sequence[Any]) -> list[int]:
    found = [reference() for reference in references]
    return [stream.slot for stream in found if stream is not None and not stream.is_closed]


_LONGEST_TEXT = 1 << 20


class ControlSocket:
    """The worker's end."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        # Of a kind that its owner may take again: a signal handler, or an object that is collected, may log as well.
        self._lock = threading.RLock()
        if hasattr(os, "register_at_fork"):
            # A process that the model forks while another thread logs would wait for ever.
            os.register_at_fork(after_in_child=self._renew_lock)
        self.request_ids = ""
        """Ids of the requests that are being executed, with NUL between them."""

    def log(self, level: int, file: str, line: int, text: str) -> None:
        """Send a line for the server's log."""
        self._send(["log", level, file, line, text[:_LONGEST_TEXT], self.request_ids])

    def pass_descriptors(self, name: str, descriptors: Sequence[int]) -> None:
        """Give the server descriptors; `name` says what for. The caller closes its own."""
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
"""Not one that models use. What handles it is C: it works while native code holds the interpreter."""


def dump_on_signal() -> None:
    """Write the stacks of all threads to descriptor 2 whenever the signal comes."""
    faulthandler.register(DUMP_SIGNAL, file=2, all_threads=True)
