"""The side line: a socket on which a worker tells the server log lines, and gives it the ends of further lines.

Each message is a JSON array on a line of its own. It works while the model executes, from any of its threads.
"""

from __future__ import annotations

import array
import json
import os
import socket
import threading
from typing import Sequence

_LONGEST_TEXT = 1 << 20


class SideLine:
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
