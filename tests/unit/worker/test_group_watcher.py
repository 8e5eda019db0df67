"""What a worker has started ends when the server is gone, and lives while it is there."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest

from naiad.worker.group_watcher import watch_group
from support.server_process import SOURCE

WORKER = """
import os, subprocess, sys
from naiad.worker.group_watcher import follow_channel, watch_group
follow_channel(int(sys.argv[1]))
watch_group()
watch_group()
subprocess.Popen(["sleep", "600"])
print("started", flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.fixture
def server() -> Iterator[tuple["subprocess.Popen[str]", int]]:
    """Start a worker that has died, with a process of its own; the second is the server's end of the channel."""
    theirs, ours = os.pipe()
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(theirs)],
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=(theirs,),
        process_group=0,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    os.close(theirs)
    assert worker.stdout is not None
    with closing(worker.stdout):
        assert worker.stdout.readline() == "started\n"
        yield worker, ours
    worker.wait()


def test_group_ends_with_the_channel(server: tuple["subprocess.Popen[str]", int]) -> None:
    worker, ours = server
    # What the server sends is for the worker, and a signal of a service manager is no end.
    os.write(ours, b"frame")
    os.killpg(worker.pid, 0)
    os.close(ours)
    assert worker.stdout is not None
    assert worker.stdout.read() == "", "the end of the output: no process has it any more"


def test_process_that_is_no_worker_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process is started"))
    watch_group()
