"""Trials: run the tests that a mutant names in a copy of the repository that has the defect."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from mutants.mutant import Mutant

_FOLDERS = ("src", "tests", "docs", "examples", "fuzz", "attack", "bench", "mutants")
_FILES = ("pyproject.toml", "README.md", "CHANGELOG.md")
_TESTS_FAILED = 1
"""Exit status of pytest; others are interruptions, internal errors and wrong arguments."""
_REPORT_LINES = 15


class Verdict(Enum):
    """What became of a mutant."""

    KILLED = "killed"
    SURVIVED = "SURVIVED"
    ERROR = "ERROR"
    """The tests did not run to an end, so nothing is known."""


@dataclass(frozen=True)
class Outcome:
    """The result of one trial."""

    mutant: Mutant
    verdict: Verdict
    seconds: float
    evidence: str
    """The first test that failed, or the end of pytest's output after an error."""


class TestedCopy:
    """A copy of the repository in which one mutant at a time is tried."""

    def __init__(self, source: Path, root: Path) -> None:
        self._root = root
        ignored = shutil.ignore_patterns("__pycache__", ".*", "site")
        for name in _FOLDERS:
            shutil.copytree(source / name, root / name, ignore=ignored)
        for name in _FILES:
            shutil.copy2(source / name, root / name)

    def run_tests(self, tests: Sequence[str], timeout_s: float) -> tuple[int, str]:
        """Run tests until the first failure; return pytest's exit status and output.

        Running out of time counts as a failure: a defect may make a test hang.
        """
        paths = [f"tests/{test}" for test in tests]
        options = [
            "-q",
            "-x",
            "-p",
            "no:cacheprovider",
            "--hypothesis-seed=0",
            "--long",  # all examples of properties
            "--timeout=60",
            "--tb=line",
            "--show-capture=no",
        ]
        # The bytecode of the intact source would be used for a defect of the same size and second.
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(self._root / "src"), str(self._root))),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        try:
            done = subprocess.run(
                [sys.executable, "-m", "pytest", *options, *paths],
                cwd=self._root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                errors="replace",
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return _TESTS_FAILED, f"FAILED the tests did not end within {timeout_s:.0f} s"
        return done.returncode, done.stdout

    def run_trial(self, mutant: Mutant, timeout_s: float) -> Outcome:
        """Try one mutant, and restore the source. Raises StaleMutantError."""
        path = self._root / mutant.file
        mutated = mutant.mutated(self._root)
        intact = path.read_text(encoding="utf-8")
        begin = time.monotonic()
        path.write_text(mutated, encoding="utf-8")
        try:
            status, output = self.run_tests(mutant.tests, timeout_s)
        finally:
            path.write_text(intact, encoding="utf-8")
        seconds = time.monotonic() - begin
        if status == 0:
            return Outcome(mutant, Verdict.SURVIVED, seconds, "")
        if status == _TESTS_FAILED:
            return Outcome(mutant, Verdict.KILLED, seconds, _first_failure(output))
        return Outcome(mutant, Verdict.ERROR, seconds, tail(output))


def _first_failure(output: str) -> str:
    for line in output.splitlines():
        if line.startswith(("FAILED ", "ERROR ")):
            return line.partition(" - ")[0].partition(" ")[2]
    return tail(output)


def tail(output: str) -> str:
    """Return the last lines of pytest's output."""
    return "\n".join(output.splitlines()[-_REPORT_LINES:])
