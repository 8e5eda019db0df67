"""The ranks of one node that is not the first: they join the server's group at the rendezvous (`rendezvous.py`).

Each rank has a thread that waits for the next group, and each worker one that watches it: the server may start the
next version of a model before the group of the previous one ends.
"""

import logging
import secrets
import socket
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import naiad
from naiad.backend.api import ModelContext
from naiad.backend.python.rendezvous import prepare, receive_line, send_line
from naiad.backend.python.settings import WorkerSettings, worker_environment
from naiad.backend.python.worker.process import Event, WorkerProcess

_log = logging.getLogger(__name__)

_RETRY_S = 0.25
_CONNECT_S = 10.0


class RejectedError(Exception):
    """The server does not accept this node; the message has the reason."""


class NodeRanks:
    """The ranks of this node."""

    def __init__(self, context: ModelContext, settings: WorkerSettings, node_rank: int) -> None:
        self._context = context
        self._settings = settings
        self._node_rank = node_rank
        self._rejection = ""
        self._is_rejected = threading.Event()
        self._is_unreachable = False
        """Whether the log says so."""

    def run(self) -> None:
        """Serve groups without end. Raises RejectedError."""
        first = self._node_rank * self._settings.local_rank_count
        for rank in range(first, first + self._settings.local_rank_count):
            threading.Thread(target=self._serve, args=(rank,), name=f"rank {rank}", daemon=True).start()
        self._is_rejected.wait()
        raise RejectedError(self._rejection)

    def _serve(self, rank: int) -> None:
        while True:
            try:
                control, data = self._connect(rank)
                order = receive_line(control)
            except (OSError, ValueError) as error:
                self._note_unreachable(error)
                time.sleep(_RETRY_S)
                continue
            self._is_unreachable = False
            if "error" in order:
                self._rejection = str(order["error"])
                self._is_rejected.set()
                return
            name = f"worker of rank {rank}"
            threading.Thread(target=self._work, args=(rank, control, data, order), name=name, daemon=True).start()

    def _connect(self, rank: int) -> tuple[socket.socket, socket.socket]:
        """Return the control and the data connection of a rank. Raises OSError."""
        token = secrets.token_hex(16)
        settings = self._settings
        hello = {
            "token": token,
            "rank": rank,
            "node_rank": self._node_rank,
            "model": self._context.name,
            "nnodes": settings.nnodes,
            "tensor_parallel_size": settings.tensor_parallel_size,
            "torch_distributed": settings.torch_distributed,
            "place": {
                "model_dir": str(self._context.model_dir),
                "import_paths": sys.path,
                "package_dir": str(Path(naiad.__file__).parent),
            },
        }
        control = socket.create_connection(settings.rendezvous, _CONNECT_S)
        try:
            prepare(control)
            send_line(control, hello)
            data = socket.create_connection(settings.rendezvous, _CONNECT_S)
        except OSError:
            control.close()
            raise
        prepare(data)
        send_line(data, {"token": token})
        # The order comes when the server starts a group; until then the connections stay open.
        control.settimeout(None)
        data.settimeout(None)
        return control, data

    def _note_unreachable(self, error: Exception) -> None:
        if not self._is_unreachable:
            self._is_unreachable = True
            host, port = self._settings.rendezvous
            _log.info("waiting for the server of node 0 to start the model at %s:%d (%s)", host, port, error)

    def _work(self, rank: int, control: socket.socket, data: socket.socket, order: Mapping[str, Any]) -> None:
        """Start a worker, and watch it to its end. The process ends with this thread."""
        environment = self._settings.interpreter.environ(worker_environment(self._context))
        try:
            process = WorkerProcess(
                self._settings.interpreter.executable,
                {**environment, **order["environment"]},
                model=self._context.name,
                transport_bytes=self._settings.transport_bytes,
                connection=data,
            )
        except OSError as error:
            how = f"cannot be started: {error}"
        else:
            _log.info("rank %d of model '%s' starts, pid %d", rank, self._context.name, process.pid)
            data.close()
            _watch(process, control)
            how = process.exit_text
            process.close()
        _log.info("rank %d of model '%s' %s", rank, self._context.name, how)
        try:
            send_line(control, {"exit": how})
        except OSError as error:
            _log.debug("the server is gone: %s", error)
        control.close()
        data.close()


def _watch(process: WorkerProcess, control: socket.socket) -> None:
    """Return when the process has ended; the end of the control connection kills it."""
    while True:
        try:
            event = process.wait(None, control.fileno())
        except OSError:  # the connection was reset
            process.kill()
            continue
        if event is Event.EXIT:
            return
        if _has_ended(control):
            process.kill("was killed because the server has ended the group")
        else:
            process.dump_stacks()


def _has_ended(control: socket.socket) -> bool:
    try:
        return not control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True
