"""Runs the parts, each in a process of its own, and keeps what they say after each one.

A part's process writes a row as soon as it is known. It is ended, with everything that it started, at its limit of
time; its rows stay, and one more says that it was ended.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import psutil

from bench.gpu import machine
from bench.gpu.parts import Part
from bench.gpu.room import FAILED, NOT_RUN
from bench.gpu.serving import python_path
from bench.gpu.summary import table

_LEAST_S = 8.0
"""With less time left a part is not begun."""
_RESERVE_S = 3.0
"""For ending the last part and writing the results."""
_SLOWER = 4
"""Times the limit of a part with --rehearse: machines of CI are slow, and other jobs use them, too."""
_LOG_TAIL_BYTES = 16_000
_ALL_LOGS_BYTES = 8 << 20

Row = dict[str, Any]


@dataclass
class Collection:
    """A run: its rows and files."""

    out: Path
    minutes: float
    is_dry_run: bool
    command: Sequence[str]
    rows: list[Row] = field(default_factory=list)
    spent_s: dict[str, float] = field(default_factory=dict)
    began_s: float = field(default_factory=time.monotonic)
    problem_of: Callable[[float], str] = machine.gpu_problem
    """Why nothing that needs this number of GiB can run on the GPU."""

    @property
    def left_s(self) -> float:
        """Seconds until the run must have ended."""
        return self.minutes * 60 - (time.monotonic() - self.began_s) - _RESERVE_S

    def collect(self, parts: Sequence[Part]) -> int:
        """Run parts; return the exit status: 1 if a check has failed."""
        self.out.mkdir(parents=True, exist_ok=True)
        facts = machine.facts(self.command)
        with tempfile.TemporaryDirectory(prefix="naiad-gpu-") as folder:
            work = Path(folder)
            self._save(facts, work)
            for part in parts:
                began = time.monotonic()
                self.rows += self._run(part, work / part.name)
                self.spent_s[part.name] = round(time.monotonic() - began, 1)
                self._save(facts, work)
        text = table(self.rows, facts, self.spent_s)
        (self.out / "summary.txt").write_text(text)
        print(text, flush=True)
        return int(any(row["verdict"] == FAILED for row in self.rows))

    def _run(self, part: Part, work: Path) -> list[Row]:
        problem = self.problem_of(part.free_gib if part.needs_gpu else 0.0)
        if part.needs_gpu and problem and not self.is_dry_run:
            return [_row(part, NOT_RUN, problem)]
        seconds = min(part.limit_s * (_SLOWER if self.is_dry_run else 1), self.left_s)
        if seconds < (_LEAST_S if self.is_dry_run else part.least_s):
            return [_row(part, NOT_RUN, f"no time left; run it alone: --parts {part.name}")]
        work.mkdir()
        rows_file = work / "rows.jsonl"
        has_gpu = not problem and not self.is_dry_run
        command = [
            sys.executable,
            "-m",
            "bench.gpu.part_process",
            part.name,
            part.module,
            str(work),
            str(rows_file),
            f"{seconds:.1f}",
        ]
        command += [f"--gpu={int(has_gpu)}", f"--rehearse={int(self.is_dry_run)}"]
        how = _watched(command, work / "part.log", seconds)
        rows = _read(rows_file)
        if how:
            rows.append(_row(part, FAILED, f"{how}; see logs.txt"))
        return rows or [_row(part, FAILED, "the part wrote no row")]

    def _save(self, facts: Row, work: Path) -> None:
        document = {"facts": facts, "is_dry_run": self.is_dry_run, "seconds": self.spent_s, "rows": self.rows}
        unfinished = self.out / "results.json.part"
        unfinished.write_text(json.dumps(document, indent=1) + "\n")
        unfinished.rename(self.out / "results.json")
        logs = sorted(work.rglob("*.log"), key=lambda path: path.stat().st_mtime)
        with (self.out / "logs.txt").open("w") as target:
            for log in logs:
                text = log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
                if target.tell() < _ALL_LOGS_BYTES:
                    target.write(f"===== {log.relative_to(work)} =====\n{text}\n")


def _row(part: Part, verdict: str, note: str) -> Row:
    return {"part": part.name, "check": "the part", "verdict": verdict, "note": note, "figures": {}}


def _read(path: Path) -> list[Row]:
    if not path.exists():
        return []
    rows = []
    for line in path.read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:  # it was ended while it wrote
            continue
    return rows


def _watched(command: Sequence[str], log: Path, seconds: float) -> str:
    """Run a part; return how it ended, "" if well."""
    environment = {**os.environ, "PYTHONPATH": python_path(), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    assert process.stdout is not None
    copier = threading.Thread(target=_copy, args=(process.stdout, log), daemon=True)
    copier.start()
    try:
        status = process.wait(seconds)
        how = f"the part ended with status {status}" if status else ""
    except subprocess.TimeoutExpired:
        how = f"the part was ended after its limit of {seconds:.0f} s"
    finally:
        _end(process)
        copier.join(2)
    return how


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a process, and all that it has started."""
    try:
        started = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        started = []
    if process.poll() is None:
        process.kill()
    process.wait()
    for each in started:
        try:
            each.kill()
        except psutil.NoSuchProcess:
            continue


def _copy(source: IO[bytes], log: Path) -> None:
    """Keep the output of a part, and show the lines of its progress."""
    with log.open("wb") as target:
        for line in source:
            target.write(line)
            target.flush()
            if line.startswith(b"["):
                sys.stderr.buffer.write(line)
                sys.stderr.flush()
