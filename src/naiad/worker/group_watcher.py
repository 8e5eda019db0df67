"""The end of the processes that a model has started, when the server is killed.

A worker leads a process group, and the server ends all of it. A server that was killed ends nothing: Linux then kills
the worker, and what the worker has started would stay, with the memory of its GPU. A small process in the group waits
for the end of the channel from the server, and kills the group. It is started for a model that has processes of its
own, before these: otherwise a worker costs one process.
"""

from __future__ import annotations

import os
import sys
from typing import Any

_PROGRAM = """
import os, select, signal
for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(each, signal.SIG_IGN)
poll = select.poll()
poll.register(0, getattr(select, "POLLRDHUP", 0))
while not poll.poll():
    pass
os.kill(0, signal.SIGKILL)
"""
"""It reads nothing: what arrives is for the worker. After a service manager's signals the server drains, as usual."""


class _Channel:
    server_fd = -1
    """The end that the worker reads from; -1 in a process that is no worker."""
    watcher: Any = None


def follow_channel(server_fd: int) -> None:
    """Note the channel of this worker; its other end closes with the server."""
    _Channel.server_fd = server_fd


def watch_group() -> None:
    """Start the watcher, once; nothing in a process that leads no group of a server. Raises OSError."""
    if _Channel.server_fd < 0 or _Channel.watcher is not None or os.getpgrp() != os.getpid():
        return
    import subprocess  # here, because other workers start without it

    _Channel.watcher = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _PROGRAM],
        stdin=_Channel.server_fd,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        close_fds=True,
    )
