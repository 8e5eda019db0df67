"""A worker whose own thread fails exits with the reason: the server starts another one."""

import subprocess
import sys

import pytest

from naiad.worker.last_resort import EXIT_STATUS, start_thread

_PROGRAM = """
import time
from naiad.worker.last_resort import start_thread

def work():
    raise {raised}

start_thread("response_sender", work)
time.sleep(600)
"""


@pytest.mark.parametrize("raised", ["KeyboardInterrupt", "SystemExit(0)", "MemoryError", "GeneratorExit"])
def test_failing_thread_ends_the_worker(raised: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM.format(raised=raised)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == EXIT_STATUS
    assert "thread 'response_sender' of the worker has failed" in done.stderr
    assert raised.partition("(")[0] in done.stderr


def test_thread_that_ends_leaves_the_worker_alone() -> None:
    ended: list[bool] = []
    start_thread("calls", lambda: ended.append(True)).join(60)
    assert ended == [True]
