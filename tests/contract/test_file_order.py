"""The order of test files over processes: no file is torn, the longest ones begin, and the table is true."""

import json
from dataclasses import dataclass
from pathlib import Path

from support.file_seconds import FileSeconds, known_seconds, longest_first

ROOT = Path(__file__).parents[2]


@dataclass
class Report:
    nodeid: str
    duration: float


def test_long_files_come_first_and_whole():
    files = ["few", "few", "long", "many", "many", "many", "longest"]
    order = longest_first(files, {"long": 3.0, "longest": 9.0})
    assert [files[each] for each in order] == ["longest", "long", "many", "many", "many", "few", "few"]
    assert order == [6, 2, 3, 4, 5, 0, 1]


def test_files_of_the_table_exist():
    assert [file for file in known_seconds() if not (ROOT / file).exists()] == []


def test_seconds_of_a_run_replace_those_known(tmp_path):
    table = tmp_path / "table.json"
    known = "tests/contract/test_file_order.py"
    table.write_text(json.dumps({known: 50, "tests/contract/test_backends.py": 7, "tests/test_gone.py": 60}))
    plugin = FileSeconds(table)
    for seconds in (1.5, 2.5):
        plugin.pytest_runtest_logreport(Report(f"{known}::test_one", seconds))
    plugin.pytest_runtest_logreport(Report("tests/contract/test_mutants.py::test_short", 0.5))
    plugin.pytest_sessionfinish()
    assert list(json.loads(table.read_text()).items()) == [("tests/contract/test_backends.py", 7), (known, 4)]
