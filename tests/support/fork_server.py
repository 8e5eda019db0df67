"""Servers and commands that start without importing naiad again: a process that has imported it forks for each.

Importing costs about a second of CPU time, and the integration tests start more than a thousand servers.

Theory of operation. Each pytest process has at most one fork server for servers and one for commands, which this file
is too when it is run. It imports what they need, and does nothing else: it has no threads and no event loop when it
forks. Both sides talk over a pair of SOCK_SEQPACKET sockets, a JSON object in a message:

    to the fork server    {"arguments": [...], "folder": "...", "environment": {...}}, with the files of both outputs
    back, at once         {"pid": 12}
    back, when it ends    {"pid": 12, "status": 0}       as `Popen.returncode`

The forked process gets the output, the folder and the environment, and runs `python -m naiad` with the arguments. The
fork server ends when the pytest process closes its end, as it does by ending.
"""

import gc
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

_SERVER_MODULES = ("naiad.cli.serve", "naiad.server.app", "uvloop")
_COMMAND_MODULES = (
    *("naiad.cli.models.analyze", "naiad.cli.models.compare", "naiad.cli.models.optimize"),
    *("naiad.cli.models.consume", "naiad.cli.models.predict", "naiad.cli.perf.command", "naiad.tools.measure.charts"),
)
_MOST_BYTES = 1 << 17
_START_S = 120.0
_STEP_S = 0.005


class ForkedProcess:
    """A process of the fork server, with what the tests use of `subprocess.Popen`."""

    def __init__(self, server: "ForkServer", pid: int) -> None:
        self._server = server
        self.pid = pid

    @property
    def returncode(self) -> int | None:
        return self._server.status(self.pid)

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (status := self.returncode) is None:
            if deadline is not None and timeout is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("naiad", timeout)
            time.sleep(_STEP_S)
        return status

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """A fork server of this process."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._lock = threading.Lock()
        self._statuses: dict[int, int] = {}
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        source = Path(__file__).resolve().parents[2] / "src"
        with other:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(other.fileno()), *modules],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[other.fileno()],
                env={**os.environ, "PYTHONPATH": str(source)},
            )

    def start(
        self,
        arguments: Sequence[str],
        output: BinaryIO,
        environment: Mapping[str, str],
        *,
        errors: BinaryIO | None = None,
        folder: Path | None = None,
    ) -> ForkedProcess:
        """Start `python -m naiad` with these arguments. Without `errors` both outputs go to the same file."""
        order = {
            "arguments": list(arguments),
            "folder": str(folder or os.getcwd()),
            "environment": dict(environment),
        }
        files = [output.fileno(), (errors or output).fileno()]
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(order).encode()], files)
            self._socket.settimeout(_START_S)
            while True:
                answer = self._receive()
                if "status" not in answer:
                    return ForkedProcess(self, answer["pid"])

    def status(self, pid: int) -> int | None:
        """Return how a process has ended; None if it runs."""
        with self._lock:
            self._socket.settimeout(0)
            try:
                while True:
                    self._receive()
            except BlockingIOError:
                return self._statuses.get(pid)

    def _receive(self) -> dict[str, Any]:
        data = self._socket.recv(_MOST_BYTES)
        if not data:
            raise RuntimeError("the fork server has ended")
        answer: dict[str, Any] = json.loads(data)
        if "status" in answer:
            self._statuses[answer["pid"]] = answer["status"]
        else:
            self._statuses.pop(answer["pid"], None)  # the kernel may give a number again
        return answer


@cache
def fork_server() -> ForkServer:
    """Return what forks servers, started when it is first used."""
    return ForkServer(_SERVER_MODULES)


@cache
def command_server() -> ForkServer:
    """Return what forks commands that users run in a terminal, started when it is first used."""
    return ForkServer(_COMMAND_MODULES)


def _serve(orders: socket.socket, modules: Sequence[str]) -> None:
    """Fork for each order until the other end is closed."""
    for module in modules:
        __import__(module)
    gc.freeze()  # what is imported is no garbage in any process
    selector = selectors.DefaultSelector()
    selector.register(orders, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is not orders:
                selector.unregister(key.fileobj)
                os.close(key.fd)
                _, status = os.waitpid(key.data, 0)
                ended = {"pid": key.data, "status": os.waitstatus_to_exitcode(status)}
                orders.send(json.dumps(ended).encode())
                continue
            data, files, _, _ = socket.recv_fds(orders, _MOST_BYTES, 2)
            if not data:
                os._exit(0)
            pid = os.fork()
            if pid == 0:
                for other in list(selector.get_map().values()):
                    os.close(other.fd)
                orders.detach()
                selector.close()
                for number, file in zip((1, 2), files, strict=True):
                    os.dup2(file, number)
                    os.close(file)
                return _run(json.loads(data))
            for file in files:
                os.close(file)
            selector.register(os.pidfd_open(pid), selectors.EVENT_READ, pid)
            orders.send(json.dumps({"pid": pid}).encode())


def _run(order: Mapping[str, Any]) -> None:
    """Be the process that was ordered, until it ends."""
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.argv[:] = ["naiad", *order["arguments"]]
    from naiad.cli.main import main

    sys.exit(main())


if __name__ == "__main__":
    del sys.path[0]  # the folder of this file
    _serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
