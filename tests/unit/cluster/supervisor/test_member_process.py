"""Processes of a server: fork, wait, end."""

import os
import signal
import socket
import subprocess
import time

import pytest

from naiad.cluster.supervisor.member_process import ForkedProcess, StartedProcess, end_unused


def fork(status: int | None) -> ForkedProcess:
    """Fork a child that exits with a status; None for one that sleeps."""
    pid = os.fork()
    if not pid:
        if status is None:
            time.sleep(60)
        os._exit(status or 0)
    return ForkedProcess(pid)


def test_exit_status_of_a_forked_process() -> None:
    child = fork(3)
    assert child.returncode is None
    assert (child.wait(30.0), child.returncode) == (3, 3)
    assert child.wait() == 3
    child.kill()  # has no effect


def test_killed_process_has_its_signal_as_status() -> None:
    child = fork(None)
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.0)
    child.kill()
    assert child.wait() == -signal.SIGKILL


def test_unused_processes_are_ended_and_closed() -> None:
    ends = [socket.socketpair() for _ in range(2)]
    started = StartedProcess(fork(None), ends[0][0], ends[1][0])
    end_unused([started])
    assert started.process.returncode == -signal.SIGKILL
    assert [theirs.recv(1) for _, theirs in ends] == [b"", b""]
    for _, theirs in ends:
        theirs.close()
