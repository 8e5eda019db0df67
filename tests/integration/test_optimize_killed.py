"""`naiad optimize` goes on after it was killed."""

import pytest

from support.optimize_command import FLAGS, optimize, start, write_files
from support.waiting import wait_until

CASE_TIMEOUT_S = 240


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("optimize"))


def kill_after(folder, stage, arguments):
    """Run until the second step of a stage has ended, kill the command, and return its lines."""
    running = start(folder, *arguments)

    def has_ended_two_steps():
        steps = [line for line in running.errors.splitlines() if line.startswith(stage)]
        return len(steps) >= 2 or running.process.poll() is not None

    wait_until(has_ended_two_steps, f"no second {stage}", CASE_TIMEOUT_S)
    running.process.kill()
    return running.end().stderr.splitlines()


@pytest.mark.long
def test_killed_run_repeats_no_finished_step(folder):
    arguments = ("--candidates", "onnx-optimized-all,onnx-optimized-basic", "--workspace", "killed", *FLAGS)
    finished, made = set(), {}
    for stage in ("conversion", "compared", "measured"):
        lines = kill_after(folder, stage, arguments)
        assert {line for line in lines if line.split(":")[0] in finished and "earlier run" not in line} == set()
        finished |= {line.split(":")[0] for line in lines if line.startswith("compared")}
        found = {each: each.stat().st_mtime_ns for each in (folder / "killed/conversions").glob("*/conversion.json")}
        assert all(found[each] == time_ns for each, time_ns in made.items())
        made = found
    done = optimize(folder, *arguments, "--output", "survivor")
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert all("earlier run" in line for line in lines if line.startswith("compared"))
    assert len(finished) == len([line for line in lines if line.startswith("compared")])
