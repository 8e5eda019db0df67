"""The rendezvous of a group whose ranks are on several machines: the server of node 0, and `NodeRanks` elsewhere.

The server listens on the rendezvous address while a group starts. `naiad rank` on each other node makes two
connections for each of its ranks. Each begins with a line of JSON that names the rank.

    data     the frames between server and worker, as through the pipes of a local worker; tensors are in the frames
    control  from the server: the environment of the rank, later a byte for each request to log its stacks.
             From the node: how the worker has ended. Its end kills the worker, or reports that the node is lost.

Neither is encrypted or authenticated, as the connections of torch.distributed are not.

On the other nodes each rank has a thread that waits for the next group, and each worker one that watches it: the
server may start the next version of a model before the group of the previous one ends.
"""

import contextlib
import json
import logging
import os
import secrets
import select
import socket
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from naiad.backend.api import ModelContext
from naiad.backend.workers.process.server_channel import ServerChannel
from naiad.backend.workers.process.worker_process import CallsListener, Event, WorkerProcess
from naiad.backend.workers.worker_settings import WorkerSettings, worker_environment
from naiad.core.errors import invalid_argument
from naiad.core.version import PACKAGE_DIR
from naiad.telemetry.last_resort import keep_running, report
from naiad.worker.channel.flags_page import create_board

_log = logging.getLogger(__name__)

_LONGEST_LINE = 1 << 20
_HELLO_S = 5.0
"""Time for a connection to say whose it is, and for the description of a worker's exit to arrive."""
_POLL_S = 0.2
_RETRY_S = 0.25
_CONNECT_S = 10.0
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
_UNACKNOWLEDGED_MS = 25_000
"""A node that does not acknowledge for so long is lost."""


def prepare(connection: socket.socket) -> None:
    """Let a connection send at once, and end if the other machine is gone."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in {**_KEEPALIVE, "TCP_USER_TIMEOUT": _UNACKNOWLEDGED_MS}.items():
        if hasattr(socket, name):  # not on every system
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def send_line(connection: socket.socket, notes: Mapping[str, Any]) -> None:
    """Send an object as a line. Raises OSError."""
    connection.sendall(json.dumps(notes).encode("ascii") + b"\n")


def receive_line(connection: socket.socket) -> dict[str, Any]:
    """Return an object that was sent as a line; nothing may follow it. Raises OSError, ValueError."""
    data = b""
    while not data.endswith(b"\n"):
        piece = connection.recv(65536)
        if not piece or len(data) > _LONGEST_LINE:
            raise ConnectionError("the connection has ended")
        data += piece
    notes = json.loads(data)
    if not isinstance(notes, dict):
        raise ValueError("not an object")
    return notes


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address of this machine. Raises OSError."""
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server((host, port), family=family)


def _agreed(model: str, settings: WorkerSettings) -> dict[str, Any]:
    """Return what all nodes must have alike."""
    return {
        "model": model,
        "nnodes": settings.nnodes,
        "tensor_parallel_size": settings.tensor_parallel_size,
        "torch_distributed": settings.torch_distributed,
    }


class Rendezvous:
    """Waits for the ranks of the other nodes during the start of a group."""

    def __init__(self, settings: WorkerSettings, model: str) -> None:
        """Raises InferError(INVALID_ARG) if the address cannot be listened on."""
        self._settings = settings
        self._model = model
        self._host, self._port = settings.rendezvous
        try:
            self._listener = listen(self._host, self._port)
        except OSError as error:
            raise invalid_argument(
                f"model '{model}': parameter 'rendezvous' is '{self._host}:{self._port}', which cannot be listened "
                f"on: {error.strerror or error}; use an address of this machine and a port that is free"
            ) from error
        self._changed = threading.Condition()
        self._hellos: dict[str, tuple[dict[str, Any], socket.socket]] = {}
        """Control connections by token, until their data connection has come."""
        self._arrived: dict[int, RemoteWorker] = {}
        self._problem = ""
        self._is_closed = False
        self._deadline_s = time.monotonic() + settings.rendezvous_timeout_s
        self._thread = threading.Thread(target=self._run, name=f"rendezvous of {model}", daemon=True)
        self._thread.start()

    def join(self, rank: int, variables: Mapping[str, str]) -> "RemoteWorker":
        """Wait for a rank of another node, and start it with these environment variables. Raises OSError."""
        with self._changed:
            while rank not in self._arrived:
                left_s = self._deadline_s - time.monotonic()
                if self._is_closed or self._problem or left_s <= 0:
                    raise ConnectionError(self._problem or self._absence(rank))
                self._changed.wait(left_s)
            worker = self._arrived.pop(rank)
        worker.order(variables)
        return worker

    def close(self) -> None:
        """Listen no longer."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        for _, control in self._hellos.values():
            control.close()
        for worker in self._arrived.values():
            worker.close()

    def _absence(self, rank: int) -> str:
        node = rank // self._settings.local_rank_count
        return (
            f"node {node} has not joined at {self._host}:{self._port} within "
            f"{self._settings.rendezvous_timeout_s:g} s (rendezvous_timeout_s); is `naiad rank` running there?"
        )

    def _run(self) -> None:
        keep_running("the rendezvous of ranks", self._welcome_all, self._pause)

    def _pause(self, seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._is_closed, seconds)

    def _welcome_all(self) -> None:
        while not self._is_closed:
            if not select.select([self._listener], [], [], _POLL_S)[0]:
                continue
            try:
                connection, _ = self._listener.accept()
            except OSError:
                continue  # closed, or the peer has gone again
            connection.settimeout(_HELLO_S)
            try:
                self._welcome(connection)
            except (OSError, ValueError, KeyError, TypeError):  # not a rank
                connection.close()

    def _welcome(self, connection: socket.socket) -> None:
        prepare(connection)
        hello = receive_line(connection)
        token = str(hello["token"])
        if "rank" not in hello:
            first, control = self._hellos.pop(token)
            worker = RemoteWorker(self._model, first, control, connection)
            with self._changed:
                previous = self._arrived.pop(int(first["rank"]), None)
                self._arrived[int(first["rank"])] = worker
                self._changed.notify_all()
            if previous is not None:  # of a node that has started again
                previous.close()
            return
        problem = self._disagreement(hello)
        if problem:
            send_line(connection, {"error": problem})
            connection.close()
            with self._changed:
                self._problem = problem
                self._changed.notify_all()
        else:
            self._hellos[token] = (hello, connection)

    def _disagreement(self, hello: Mapping[str, Any]) -> str:
        """Return what a node has differently, or empty."""
        node = f"node {hello['node_rank']} at the rendezvous of model '{self._model}'"
        for name, own in _agreed(self._model, self._settings).items():
            if hello[name] != own:
                return f"{node} has {name} {hello[name]!r}, the server has {own!r}; use the same on all nodes"
        return ""


class RemoteWorker(WorkerProcess):
    """The worker of a rank on another node, which `naiad rank` starts and watches there."""

    def __init__(self, model: str, hello: Mapping[str, Any], control: socket.socket, data: socket.socket) -> None:
        self._model = model
        self._node = int(hello["node_rank"])
        self._place: Mapping[str, Any] = hello["place"]
        self._calls = CallsListener(None)
        self._control = control
        self.gone, self.settled = threading.Event(), threading.Event()
        self.exit_text = self.kill_text = ""
        self.pid = 0
        data.settimeout(None)
        read_fd = data.detach()
        # There is no shared memory: no descriptors are passed, and the page has only the server's marks.
        descriptors, self._side = socket.socketpair()
        self.channel = ServerChannel(read_fd, os.dup(read_fd), descriptors, limit_bytes=0)
        self.board, board_fd = create_board()
        os.close(board_fd)
        self._output = -1
        self._exit_fd = control.fileno()
        self._poll = select.poll()
        self._poll.register(self._exit_fd, select.POLLIN)
        self._read_fd = read_fd

    def order(self, variables: Mapping[str, str]) -> None:
        """Let the node start the worker. Raises OSError."""
        send_line(self._control, {"environment": dict(variables)})

    def localized(self, notes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the notes with the directories of the node: its copy of the model, its packages."""
        directory = str(notes["args"]["model_repository"])
        made: dict[str, Any] = _moved(notes, directory, self._place["model_dir"])
        return {**made, **{name: self._place[name] for name in ("import_paths", "package_dir") if made.get(name)}}

    def kill(self, why: str = "", signal_number: int = 0) -> None:
        """Let the node kill the worker."""
        self.kill_text = self.kill_text or why
        with contextlib.suppress(OSError):  # it is gone
            self._control.shutdown(socket.SHUT_WR)

    def dump_stacks(self) -> None:
        """Let the worker write its stacks to the log of its node."""
        with contextlib.suppress(OSError):
            self._control.send(b".")

    def _finish(self) -> None:
        how = "is lost: its connection has ended"
        with contextlib.suppress(OSError, ValueError, KeyError):
            how = str(receive_line(self._control)["exit"])
        self.exit_text = self.kill_text or f"{how} (node {self._node})"
        self.gone.set()

    def _release(self) -> None:
        self._side.close()
        self._control.close()


def _moved(value: Any, here: str, there: str) -> Any:
    """Return an object in which the directory `here` is `there`."""
    if isinstance(value, dict):
        return {key: _moved(each, here, there) for key, each in value.items()}
    return value.replace(here, there) if isinstance(value, str) else value


# --- the other nodes ------------------------------------------------------------------------------------------------


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
            threading.Thread(target=self._keep_serving, args=(rank,), name=f"rank {rank}", daemon=True).start()
        self._is_rejected.wait()
        raise RejectedError(self._rejection)

    def _keep_serving(self, rank: int) -> None:
        keep_running(f"rank {rank}", lambda: self._serve(rank), self._is_rejected.wait)

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
            **_agreed(self._context.name, settings),
            "place": {
                "model_dir": str(self._context.model_dir),
                "import_paths": sys.path,
                "package_dir": str(PACKAGE_DIR),
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
        try:
            self._run_worker(rank, control, data, order)
        except BaseException as error:
            report(f"the worker of rank {rank}", error)
        finally:  # with them the server sees that this rank is lost
            control.close()
            data.close()

    def _run_worker(self, rank: int, control: socket.socket, data: socket.socket, order: Mapping[str, Any]) -> None:
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
