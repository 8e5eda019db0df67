"""How long each test file took, so that the processes of pytest-xdist begin with the longest ones.

Files in the order of their names, or of their number of tests as xdist has it, leave one process alone with a file of
minutes at the end of a run. The CPU time of a file, with the servers and commands that it starts, says whether its
tests mostly wait. `pytest --write-file-seconds` writes the table again.
"""

import json
import os
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from naiad.tools.process.usage import cpu_s, family, read_processes

TABLE = Path(__file__).parents[1] / "file_seconds.json"
_LEAST_S = 3.0
"""Shorter files are not in the table: their order hardly matters, and they would change it with each run."""


_MOST_CPU_SHARE = 0.35
"""Of the time of tests that mostly wait. What computes has half a core when four processes share two cores."""
_CPU_S = "cpu_s"


@dataclass(frozen=True, slots=True)
class FileTime:
    """What the tests of a file took."""

    seconds: float
    cpu_s: float
    """Of the processes of the test, of servers and of commands together."""

    def __add__(self, other: "FileTime") -> "FileTime":
        return FileTime(self.seconds + other.seconds, self.cpu_s + other.cpu_s)


def known_times(table: Path = TABLE) -> dict[str, FileTime]:
    """Return the times of the files in the table, by their paths from the root of the repository."""
    found: dict[str, list[float]] = json.loads(table.read_text())
    return {file: FileTime(*times) for file, times in found.items()}


def waiting_files(times: Mapping[str, FileTime]) -> frozenset[str]:
    """Return the files whose tests mostly wait."""
    return frozenset(file for file, each in times.items() if each.cpu_s < _MOST_CPU_SHARE * each.seconds)


def longest_first(files: Sequence[str], times: Mapping[str, FileTime]) -> list[int]:
    """Return the order of tests, given the file of each: long files, then those with many tests; no file is torn."""
    counts = Counter(files)
    first = {file: index for index, file in reversed(list(enumerate(files)))}

    def rank(index: int) -> tuple[float, int, int]:
        file = files[index]
        seconds = times[file].seconds if file in times else 0.0
        return -seconds, -counts[file], first[file]

    return sorted(range(len(files)), key=rank)


def sort_tests(items: list[pytest.Item]) -> None:
    """Bring the collected tests into the order in which xdist is to give them away."""
    order = longest_first([item.nodeid.split("::", 1)[0] for item in items], known_times())
    items[:] = [items[index] for index in order]


class CpuOfTests:
    """A plugin of each process that runs tests: a report of a test's end has the CPU time since the one before."""

    def __init__(self) -> None:
        self._until_s = 0.0

    def pytest_collection_finish(self) -> None:
        """Begin to count."""
        self._until_s = _cpu_s()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add the time to the report of the teardown."""
        report = yield
        if report.when == "teardown":
            now_s = _cpu_s()
            report.user_properties.append((_CPU_S, now_s - self._until_s))
            self._until_s = now_s
        return report


class FileSeconds:
    """A plugin that adds up the times of each file and writes them into the table."""

    def __init__(self, table: Path) -> None:
        self._table = table
        self._times: dict[str, FileTime] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count the setup, the call and the teardown of a test."""
        file = report.nodeid.split("::", 1)[0]
        used_s = sum(float(str(value)) for name, value in report.user_properties if name == _CPU_S)
        self._times[file] = self._times.get(file, FileTime(0, 0)) + FileTime(report.duration, used_s)

    def pytest_sessionfinish(self) -> None:
        """Replace what ran, keep the rest, and forget files that are gone."""
        root = Path(__file__).parents[2]
        found = {**known_times(self._table), **self._times}
        kept = [(file, each) for file, each in found.items() if each.seconds >= _LEAST_S and (root / file).exists()]
        kept.sort(key=lambda pair: (-round(pair[1].seconds), pair[0]))
        lines = [f" {json.dumps(file)}: [{round(each.seconds)}, {round(each.cpu_s)}]" for file, each in kept]
        self._table.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _cpu_s() -> float:
    """Return the CPU time of this process and all that it has started; 0 where there is no /proc."""
    processes = read_processes()
    return cpu_s(family(os.getpid(), processes), processes)
