"""Child processes of the tools: real ones, with their output, their limits and their end."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from naiad.tools.process.child import ChildProcess, ProcessError, with_this_path
from naiad.tools.process.own_server import LOOPBACK, ServeProcess
from naiad.tools.process.running import ProcessLimits, run, run_checked
from support.model_repository import write_identity
from support.server_process import SOURCE
from support.waiting import wait_until

_BEGIN = "import time; print('begun', flush=True); time.sleep(600)"
SLEEP = [sys.executable, "-c", _BEGIN]


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def has_ended(pid: int) -> None:
    wait_until(lambda: not is_running(pid), f"process {pid} is still there")


# --- output ---------------------------------------------------------------------------------------------------------


def test_output_larger_than_a_pipe_blocks_nothing(tmp_path: Path) -> None:
    child = ChildProcess(python("print('x' * 2**20); print('the last line')"), output=tmp_path / "log")
    try:
        assert child.wait(120) == 0
        assert child.last_line == "the last line"
        assert len(child.last_output(100)) <= 100
    finally:
        child.close()
    assert (tmp_path / "log").stat().st_size > 2**20
    assert child.last_output() == ""


def test_ending_names_status_signal_and_last_line() -> None:
    child = ChildProcess(python("import sys; print('why', file=sys.stderr); sys.exit(3)"))
    assert child.ending == "its process ended with status 3; its last output: why"
    child.close()
    child = ChildProcess(SLEEP)
    child.kill()
    assert child.ending.startswith("its process ended with SIGKILL")
    child.close()


def test_shown_output_goes_where_ours_goes(capfd: pytest.CaptureFixture[str]) -> None:
    child = ChildProcess(python("print('seen')"), shows_output=True)
    assert child.wait(120) == 0
    child.close()
    assert capfd.readouterr().out == "seen\n"


def test_missing_program_raises_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ChildProcess([str(tmp_path / "missing")])


# --- end ------------------------------------------------------------------------------------------------------------

_WITH_CHILD = """
import subprocess, sys, time
print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid, flush=True)
time.sleep(600)
"""


def test_end_includes_what_the_child_started() -> None:
    child = ChildProcess(python(_WITH_CHILD))
    wait_until(lambda: child.last_line != "", "the child never started its own")
    grandchild = int(child.last_line)
    assert child.wait(0.01) is None
    child.close()
    child.close()
    assert not child.is_alive
    has_ended(grandchild)


def test_patient_end_lets_the_child_finish() -> None:
    child = ChildProcess(python(f"import signal, sys; signal.signal(15, lambda *_: sys.exit(7)); {_BEGIN}"))
    wait_until(lambda: child.last_line == "begun", "the child never began")
    child.terminate(120)
    assert child.status == 7
    child.close()


def test_child_that_ignores_the_request_is_killed() -> None:
    child = ChildProcess(python(f"import signal; signal.signal(15, signal.SIG_IGN); {_BEGIN}"))
    wait_until(lambda: child.last_line == "begun", "the child never began")
    child.terminate(0.05)
    assert child.status == -signal.SIGKILL
    child.close()


_PARENT = """
import sys, time
from naiad.tools.process.child import ChildProcess
child = ChildProcess([sys.executable, "-c", {code!r}], has_lifeline={has_lifeline})
print(child.pid, flush=True)
time.sleep(600)
"""
_LIFELINE = "import os; os.read(0, 1)"


@pytest.mark.skipif(sys.platform != "linux", reason="needs prctl")
@pytest.mark.parametrize(("code", "has_lifeline"), [("import time; time.sleep(600)", False), (_LIFELINE, True)])
def test_child_ends_when_its_parent_is_killed(code: str, has_lifeline: bool) -> None:
    script = _PARENT.format(code=code, has_lifeline=has_lifeline)
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    with subprocess.Popen(python(script), stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert is_running(child)
        parent.kill()
    has_ended(child)


# --- limits ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "limits", "reason"),
    [
        ("import time; time.sleep(600)", ProcessLimits(time_s=0.2), "not finished after 0.2 s"),
        ("x = bytearray(2**28); import time; time.sleep(600)", ProcessLimits(memory_mib=100), "MiB of memory"),
        ("while True: print('x' * 1000)", ProcessLimits(output_bytes=100_000), "more than 100000 bytes of output"),
    ],
)
def test_exceeded_limit_ends_the_command(tmp_path: Path, code: str, limits: ProcessLimits, reason: str) -> None:
    ended = run(python(code), limits, tmp_path / "log")
    assert reason in ended.exceeded
    assert ended.status == -signal.SIGKILL


def test_run_within_limits_has_status_and_output(tmp_path: Path) -> None:
    ended = run(python("import sys; print('done'); sys.exit(5)"), ProcessLimits(), tmp_path / "log")
    assert (ended.status, ended.exceeded) == (5, "")
    assert (tmp_path / "log").read_text() == "done\n"


def test_checked_command_returns_its_whole_output() -> None:
    assert run_checked(python("print('x' * 10000)"), 120) == "x" * 10000


@pytest.mark.parametrize(
    ("code", "time_s", "reason"),
    [
        ("import sys; sys.exit('no disk')", 120, "status 1\nno disk"),
        (_BEGIN, 0.1, "not finished"),
    ],
)
def test_checked_command_that_fails_raises_the_reason(code: str, time_s: float, reason: str) -> None:
    with pytest.raises(ProcessError, match=reason):
        run_checked(python(code), time_s)


# --- servers --------------------------------------------------------------------------------------------------------


def test_own_server_has_addresses_and_ends(tmp_path: Path) -> None:
    write_identity(tmp_path)
    server = ServeProcess([f"--model-repository={tmp_path}", *LOOPBACK], environment=with_this_path())
    try:
        found = server.wait_ready(150)
        assert set(found.urls) == {"http", "grpc", "metrics"}
        assert found.urls["grpc"] == f"127.0.0.1:{found.ports['grpc']}"
    finally:
        server.close()
    assert server.process.status == 0
    assert not is_running(server.pid)
    server.close()


def test_own_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    server = ServeProcess([f"--model-repository={tmp_path / 'missing'}", *LOOPBACK], environment=with_this_path())
    try:
        with pytest.raises(ProcessError, match="missing"):
            server.wait_ready(150)
    finally:
        server.close()
