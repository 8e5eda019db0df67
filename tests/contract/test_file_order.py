"""The order of test files over processes: no file is torn, the longest ones begin, and the table is true."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from support.file_schedule import WaitingFilesBeside, takes_only_waiting
from support.file_seconds import CpuOfTests, FileSeconds, FileTime, known_times, longest_first, waiting_files

ROOT = Path(__file__).parents[2]


@dataclass
class Report:
    nodeid: str
    duration: float
    user_properties: list[tuple[str, float]] = field(default_factory=list)


@dataclass(eq=False)
class Process:
    """A process of xdist that runs nothing."""

    name: str
    files: list[str] = field(default_factory=list)
    shutting_down: bool = False

    @property
    def gateway(self):
        return SimpleNamespace(id=self.name)

    def send_runtest_some(self, indexes):
        self.indexes = indexes

    def shutdown(self):
        self.shutting_down = True


def cases_of(names):
    return [f"{name}::test_{number}" for name in names for number in range(4)]


def run_files(names, waiting, *, count=3, waiting_count=1):
    """Return which process has taken which files, when each test takes as long as any other.

    Processes for files that wait have collected nothing else.
    """
    option = SimpleNamespace(loadscopereorder=False)
    config = SimpleNamespace(option=option, getvalue=lambda _: [f"{count}*popen"])
    schedule = WaitingFilesBeside(config, None, waiting, waiting_count)
    processes = [Process(f"gw{number}") for number in range(count)]
    for each in processes:
        schedule.add_node(each)
    collected = {}
    for each in reversed(processes):  # a process with few files has collected them first
        is_part = takes_only_waiting(each.name, count, waiting_count)
        collected[each] = cases_of([name for name in names if name in waiting] if is_part else names)
        schedule.add_node_collection(each, collected[each])
    schedule.schedule()
    while schedule.has_pending:
        for each in list(schedule.nodes):
            pending = [name for file in schedule.assigned_work[each].values() for name in file if not file[name]]
            if pending:
                schedule.mark_test_complete(each, collected[each].index(pending[0]))
    assert all(each.shutting_down for each in processes)
    return [list(schedule.assigned_work[each]) for each in processes]


def test_long_files_come_first_and_whole():
    files = ["few", "few", "long", "many", "many", "many", "longest"]
    order = longest_first(files, {"long": FileTime(3.0, 0.0), "longest": FileTime(9.0, 0.0)})
    assert [files[each] for each in order] == ["longest", "long", "many", "many", "many", "few", "few"]
    assert order == [6, 2, 3, 4, 5, 0, 1]


def test_files_of_the_table_exist():
    assert [file for file in known_times() if not (ROOT / file).exists()] == []


def test_seconds_of_a_run_replace_those_known(tmp_path):
    table = tmp_path / "table.json"
    known = "tests/contract/test_file_order.py"
    times = {known: [50, 50], "tests/contract/test_backends.py": [7, 6], "tests/test_gone.py": [60, 9]}
    table.write_text(json.dumps(times))
    plugin = FileSeconds(table)
    for seconds in (1.5, 2.5):
        plugin.pytest_runtest_logreport(Report(f"{known}::test_one", seconds, [("cpu_s", 0.5), ("other", 7)]))
    plugin.pytest_runtest_logreport(Report("tests/contract/test_mutants.py::test_short", 0.5))
    plugin.pytest_sessionfinish()
    assert list(known_times(table).items()) == [
        ("tests/contract/test_backends.py", FileTime(7, 6)),
        (known, FileTime(4, 1)),
    ]


def test_end_of_a_test_reports_its_cpu_time():
    counted = CpuOfTests()
    counted.pytest_collection_finish()
    found = []
    for when in ("setup", "call", "teardown"):
        report = SimpleNamespace(when=when, user_properties=[])
        hook = counted.pytest_runtest_makereport()
        next(hook)
        with pytest.raises(StopIteration):
            hook.send(report)
        found.append([name for name, _ in report.user_properties])
    assert found == [[], [], ["cpu_s"]]


def test_files_wait_that_need_little_of_their_time():
    times = {"waits": FileTime(100, 10), "computes": FileTime(100, 50)}
    assert waiting_files(times) == {"waits"}


def test_last_process_takes_only_files_that_wait():
    computing = [f"c{number}" for number in range(9)]
    *others, last = run_files(["w1", *computing, "w2", "w3"], {"w1", "w2", "w3"})
    assert last == ["w1", "w2", "w3"]
    assert sorted(file for files in others for file in files) == computing


def test_waiting_files_that_are_left_go_to_all():
    taken = run_files(["w1", "w2", "w3", "w4", "w5", "c1"], {"w1", "w2", "w3", "w4", "w5"})
    assert sorted(file for files in taken for file in files) == ["c1", "w1", "w2", "w3", "w4", "w5"]
    assert all(taken)


def test_replacing_process_takes_all_files():
    assert [takes_only_waiting(f"gw{number}", 4, 2) for number in range(6)] == [
        False,
        False,
        True,
        True,
        False,
        False,
    ]


def test_without_files_that_wait_all_files_run():
    taken = run_files(["c1", "c2", "c3", "c4", "c5"], frozenset())
    assert sorted(file for files in taken for file in files) == ["c1", "c2", "c3", "c4", "c5"]
