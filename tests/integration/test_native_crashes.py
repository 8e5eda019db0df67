"""A crash of native code in a server process: the log has the stacks of all threads."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from support.model_repository import write_identity
from support.server_process import ServerProcess

StartServer = Callable[..., ServerProcess]


@pytest.mark.parametrize("processes", [1, 2])
def test_crashed_process_leaves_its_stacks_in_the_log(
    tmp_path: Path, start_server: StartServer, processes: int
) -> None:
    write_identity(tmp_path / "models")
    running = start_server(tmp_path / "models", f"--processes={processes}")
    running.wait_ready()
    serving = running.members()[0] if processes > 1 else running.process.pid
    os.kill(serving, signal.SIGSEGV)
    running.wait_log(r"Fatal Python error: Segmentation fault[\s\S]*in run_to_status")
