"""The worker as a process: signals, streams, log, modules; then its loop."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import logging
import os
import signal
import socket
import sys

from naiad.worker.api import pb_utils
from naiad.worker.api.logger import LineStream, SinkHandler, set_sink
from naiad.worker.channel.channel import Channel
from naiad.worker.channel.flags_page import FlagsPage
from naiad.worker.control import ControlSocket, dump_on_signal
from naiad.worker.loop import Worker

_PR_SET_PDEATHSIG = 1


def run(arguments: list[str]) -> None:
    """Serve: the arguments are descriptors (read, write, blocks, control socket, flags page) and the server's pid."""
    read_fd, write_fd, blocks_fd, side_fd, board_fd, server_pid = (int(argument) for argument in arguments)
    _follow(server_pid)
    # The server drains after Ctrl-C; its workers must continue meanwhile.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable(2)
    dump_on_signal()
    for descriptor in (read_fd, write_fd, blocks_fd, side_fd):
        os.set_inheritable(descriptor, False)
    side = ControlSocket(socket.socket(fileno=side_fd))
    _redirect(side)
    for name in ("triton_python_backend_utils", "c_python_backend_utils"):
        sys.modules[name] = pb_utils
    board = FlagsPage(board_fd)
    os.close(board_fd)
    channel = Channel(read_fd, write_fd, socket.socket(fileno=blocks_fd), limit_bytes=0, own=bytearray)
    worker = Worker(channel, side, board, read_fd)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=worker.forsake)
    worker.run()


def _follow(server_pid: int) -> None:
    """Exit with the server, even while the model executes."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != server_pid:
        os._exit(1)


def _redirect(side: ControlSocket) -> None:
    """Send prints, `logging` and `pb_utils.Logger` to the server's log."""
    set_sink(side.log)
    sys.stdout = LineStream(side.log, 1)
    sys.stderr = LineStream(side.log, 2)
    # Registered first, so that they run after the exit handlers of the model.
    for stream in (sys.stdout, sys.stderr):
        atexit.register(_send_rest, stream)
    root = logging.getLogger()
    root.addHandler(SinkHandler(side.log))
    root.setLevel(logging.INFO)


def _send_rest(stream: LineStream) -> None:
    with contextlib.suppress(OSError):  # the server has exited, and its log with it
        stream.send_rest()
