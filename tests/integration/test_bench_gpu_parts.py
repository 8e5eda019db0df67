"""How the benchmark of GPUs lives with parts that fail, hang, die, or cannot be run; its command line."""

import json
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from bench.gpu import collect_wheels, machine
from bench.gpu.parts import Part, chosen
from bench.gpu.run import Collection
from bench.gpu.summary import table
from bench.gpu.throughput import judged

ROOT = Path(__file__).parents[2]
_PARTS = """
import os, subprocess, sys, time

def measure(room):
    if room.part == "hangs":
        room.judge("before", True, figure=1.5)
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        room.row("child", "ok", pid=child.pid)
        time.sleep(600)
    if room.part == "dies":
        room.judge("before", True)
        os.kill(os.getpid(), 9)
    if room.part == "lacks":
        import tensorrt_that_nobody_has
    if room.part == "raises":
        raise MemoryError("CUDA out of memory")
    if room.part == "silent":
        return
    with room.check("one"):
        raise ValueError("the first check fails")
    with room.check("two"):
        room.judge("two", 1 + 1 == 2)
"""


@pytest.fixture
def collect(tmp_path, monkeypatch):
    (tmp_path / "gpu_bench_parts.py").write_text(_PARTS)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    monkeypatch.chdir(ROOT)

    def collect(*names, limit_s=20.0, minutes=1.0, problem=""):
        parts = [Part(name, name, limit_s, "gpu_bench_parts") for name in names]
        collection = Collection(tmp_path / "out", minutes, False, ["python"], problem_of=lambda gib: problem)
        status = collection.collect(parts)
        rows = json.loads((tmp_path / "out" / "results.json").read_text())["rows"]
        return status, {(row["part"], row["check"]): row for row in rows}

    return collect


def test_every_way_to_fail_has_a_row(collect):
    status, rows = collect("dies", "lacks", "raises", "silent", "checks")
    assert status == 1
    said = {key: (row["verdict"], row["note"]) for key, row in rows.items()}
    assert said["dies", "before"] == ("ok", "")
    assert said["dies", "the part"] == ("failed", "the part ended with status -9; see logs.txt")
    assert said["lacks", "the part"] == ("not run", "there is no module tensorrt_that_nobody_has")
    assert said["raises", "the part"] == ("failed", "MemoryError: CUDA out of memory")
    assert said["silent", "the part"] == ("failed", "the part wrote no row")
    assert said["checks", "one"] == ("failed", "ValueError: the first check fails")
    assert said["checks", "two"] == ("ok", "")


def test_hanging_part_is_ended_with_what_it_started(collect, tmp_path):
    began = time.monotonic()
    status, rows = collect("hangs", "checks", limit_s=20.0)
    assert status == 1
    assert rows["hangs", "before"]["figures"] == {"figure": 1.5}
    assert rows["hangs", "the part"]["note"] == "the part was ended after its limit of 20 s; see logs.txt"
    assert rows["checks", "two"]["verdict"] == "ok"
    pid = rows["hangs", "child"]["figures"]["pid"]
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    assert "hangs/part.log" in (tmp_path / "out" / "logs.txt").read_text()
    assert time.monotonic() - began < 120


@pytest.mark.parametrize(
    "problem", ["no GPU: libnvidia-ml.so.1 was not found", "too little memory: GPU 0 has 0.5 GiB free"]
)
def test_part_that_cannot_be_run_says_why(collect, problem):
    status, rows = collect("checks", problem=problem)
    assert status == 0
    assert [(row["verdict"], row["note"]) for row in rows.values()] == [("not run", problem)]


def test_run_without_time_left_begins_no_part(collect):
    status, rows = collect("checks", minutes=0.1)
    assert status == 0
    assert "no time left; run it alone: --parts checks" in rows["checks", "the part"]["note"]


def test_little_memory_is_a_problem(monkeypatch):
    gpu = {"name": "H100", "uuid": "GPU-1", "total_bytes": 80 << 30, "free_bytes": 3 << 30}
    monkeypatch.setattr(machine, "gpus", lambda: [gpu])
    assert machine.gpu_problem(2.0) == ""
    assert machine.gpu_problem(4.0) == "too little memory: GPU 0 has 3.0 GiB free, this part takes 4 GiB"
    monkeypatch.setattr(machine, "gpus", list)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "9")
    assert machine.gpu_problem() == "no GPU: CUDA_VISIBLE_DEVICES is '9' or the machine has none"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--parts", "correctnes"], "there is no part 'correctnes'; choose from throughput"),
        (["--minutes", "0"], "--minutes is 0; use 0.2 to 600"),
    ],
)
def test_wrong_command_line(tmp_path, arguments, said):
    command = [sys.executable, "-m", "bench.gpu", "--out", str(tmp_path), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert said in done.stderr


def test_parts_keep_their_order():
    assert [part.name for part in chosen("memory, correctness")] == ["correctness", "memory"]
    assert [part.name for part in chosen("")][:3] == ["throughput", "transfers", "ranks"]
    assert [part.name for part in chosen("")][-2:] == ["aot", "optimize"], "they take the most time"
    assert {"tensorrt", "onnxruntime"}.isdisjoint(part.name for part in chosen(""))
    assert [part.name for part in chosen("tensorrt,onnxruntime")] == ["tensorrt", "onnxruntime"]


def test_long_table_is_cut():
    row = {"part": "p", "check": "c" * 80, "verdict": "ok", "note": "n" * 300, "figures": {}}
    facts = {"date": "d", "gpus": "none: x", "driver": "", "cores": 2, "versions": {}}
    assert len(table([row] * 500, facts, {})) < 12_000


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ([0.96, 1.0, 1.1, 0.97], "ok"),
        ([0.93, 0.94, 0.96, 0.92, 0.94, 0.95], "ok"),
        ([0.7, 1.0, 1.2, 0.96], "ok"),
        ([0.9, 0.94, 0.6, 0.8], "failed"),
        ([0.6, 0.9, 1.3, 0.8], "not proven"),
        ([0.6, 0.7], "not proven"),
        ([0.99], "ok"),
    ],
)
def test_verdict_about_pairs(ratios, verdict):
    assert judged(ratios)[0] == verdict


def test_wheels_are_asked_for_the_machines_python(tmp_path):
    command = collect_wheels.command("3.12", tmp_path, ["httptools"])
    assert command[command.index("--python-version") + 1] == "3.12"
    assert command[-1] == "httptools"
    assert "manylinux_2_17_x86_64" in command
    assert "--no-deps" in command
