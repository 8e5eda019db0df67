"""How long each test file took, so that the processes of pytest-xdist begin with the longest ones.

Files in the order of their names, or of their number of tests as xdist has it, leave one process alone with a file of
minutes at the end of a run. `pytest --write-file-seconds` writes the table again.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

TABLE = Path(__file__).parents[1] / "file_seconds.json"
_LEAST_S = 3.0
"""Shorter files are not in the table: their order hardly matters, and they would change it with each run."""


def known_seconds(table: Path = TABLE) -> dict[str, float]:
    """Return the seconds of the files in the table, by their paths from the root of the repository."""
    found: dict[str, float] = json.loads(table.read_text())
    return found


def longest_first(files: Sequence[str], seconds: Mapping[str, float]) -> list[int]:
    """Return the order of tests, given the file of each: long files, then those with many tests; no file is torn."""
    counts = Counter(files)
    first = {file: index for index, file in reversed(list(enumerate(files)))}

    def rank(index: int) -> tuple[float, int, int]:
        file = files[index]
        return -seconds.get(file, 0.0), -counts[file], first[file]

    return sorted(range(len(files)), key=rank)


def sort_tests(items: list[pytest.Item]) -> None:
    """Bring the collected tests into the order in which xdist is to give them away."""
    order = longest_first([item.nodeid.split("::", 1)[0] for item in items], known_seconds())
    items[:] = [items[index] for index in order]


class FileSeconds:
    """A plugin that adds up the seconds of each file and writes them into the table."""

    def __init__(self, table: Path) -> None:
        self._table = table
        self._seconds: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count the setup, the call and the teardown of a test."""
        file = report.nodeid.split("::", 1)[0]
        self._seconds[file] = self._seconds.get(file, 0.0) + report.duration

    def pytest_sessionfinish(self) -> None:
        """Replace what ran, keep the rest, and forget files that are gone."""
        root = Path(__file__).parents[2]
        found = {**known_seconds(self._table), **self._seconds}
        kept = {file: round(each) for file, each in found.items() if each >= _LEAST_S and (root / file).exists()}
        ordered = dict(sorted(kept.items(), key=lambda pair: (-pair[1], pair[0])))
        self._table.write_text(json.dumps(ordered, indent=1) + "\n")
