"""The `naiad` command in a shell: pipes, signals, exit statuses."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from support.model_repository import write_model
from support.model_zoo import python_source

COMMAND = [sys.executable, "-m", "naiad"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
SLOW = python_source(
    {}, initialize='open(os.path.join(os.path.dirname(__file__), "loading"), "w").close(); time.sleep(600)'
)


def wait_until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_reader_that_has_seen_enough_is_no_failure() -> None:
    with subprocess.Popen(
        [*COMMAND, "serve", "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()  # before anything was written
        errors = process.stderr.read()
    assert (errors, process.returncode) == (b"", 128 + signal.SIGPIPE)


def test_ctrl_c_ends_check_and_what_it_loads(tmp_path: Path) -> None:
    write_model(tmp_path, "slow", 'backend: "python"', {"1/model.py": SLOW})
    with subprocess.Popen(
        [*COMMAND, "check", "--load", str(tmp_path)], stderr=subprocess.PIPE, env=ENVIRONMENT, text=True
    ) as process:
        assert process.stderr is not None
        wait_until((tmp_path / "slow" / "1" / "loading").exists)
        process.send_signal(signal.SIGINT)
        errors = process.stderr.read()
    assert (errors, process.returncode) == ("naiad: interrupted\n", 128 + signal.SIGINT)


def test_output_to_a_file_has_no_colours(tmp_path: Path) -> None:
    write_model(tmp_path, "m", 'backend: "identity"\nmax_batch_sise: 1')
    done = subprocess.run(
        [*COMMAND, "check", str(tmp_path)], capture_output=True, env=ENVIRONMENT, timeout=60, check=False
    )
    assert done.returncode == 1
    assert b"did you mean 'max_batch_size'?" in done.stdout
    assert b"\x1b" not in done.stdout + done.stderr
