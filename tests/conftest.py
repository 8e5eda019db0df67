"""Settings of all tests."""

import compileall
import functools
import gc
import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

# Each of a thousand processes imports numpy, whose OpenBLAS starts a thread for each core that waits awake for 30 ms:
# an eighth of the CPU time of the import. `naiad` itself has these threads sleep after 2^20 cycles, 0.4 ms.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "20")

import hypothesis
import pytest

from support.file_seconds import TABLE, CpuOfTests, FileSeconds, known_times, sort_tests, waiting_files
from support.long_run import CI, EXAMPLES, LONG

# No test asserts a time: how long an example takes depends on what else the machine does.
slowness = [hypothesis.HealthCheck.too_slow]
for profile in (CI, LONG):
    hypothesis.settings.register_profile(
        profile, deadline=None, suppress_health_check=slowness, max_examples=EXAMPLES[profile]
    )
hypothesis.settings.load_profile(CI)

# Sixteen thousand tests and what they import are some million objects that live to the end. While they are made, and
# in each full collection afterwards, the garbage collector would look at all of them and find none.
gc.disable()

# A shell that runs the tests in the background has them ignore it, and with them all that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Containers often set PYTHONDONTWRITEBYTECODE. Then each server that a test starts would compile naiad again, which
# takes as long as all the rest of its start. Workers of pytest-xdist find what their parent has compiled.
if sys.dont_write_bytecode and "PYTEST_XDIST_WORKER" not in os.environ:
    compileall.compile_dir(Path(__file__).parents[1] / "src", quiet=1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="also tests marked long, and all examples of properties")
    parser.addoption("--fast", action="store_true", help=f"without the files in {TABLE.name}: they take seconds")
    parser.addoption("--write-file-seconds", action="store_true", help=f"write seconds of files into {TABLE.name}")
    parser.addoption(
        "--waiting-processes",
        type=int,
        default=0,
        metavar="N",
        help="how many of the processes take only files whose tests mostly wait; with --dist loadfile",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("long"):
        hypothesis.settings.load_profile(LONG)
    if config.getoption("write_file_seconds"):
        config.pluginmanager.register(CpuOfTests())
        if not hasattr(config, "workerinput"):
            config.pluginmanager.register(FileSeconds(TABLE))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    count = config.getoption("waiting_processes")
    if not count:
        return None  # xdist's own one
    from support.file_schedule import WaitingFilesBeside

    return WaitingFilesBeside(config, log, waiting_files(known_times()), count)


class FolderFromItsEnd(pytest.Dir):
    """A folder whose last file is collected first."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        return reversed([*super().collect()])


def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Let every other process of xdist collect from the end.

    In a new checkout, pytest compiles the assertions of all files, in 20 s of CPU time. Two processes meet in the
    middle, and each reads what the other has compiled.
    """
    number = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    if int(number) % 2 == 0 or (path / "__init__.py").exists():
        return None
    return FolderFromItsEnd.from_parent(parent, path=path)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files that are not even imported: long ones with --fast, and those that this process never takes."""
    if config.getoption("fast") and collection_path in _long_files(config.rootpath):
        return True
    if collection_path.suffix == ".py" and _takes_only_waiting(config):
        return collection_path not in _waiting_files(config.rootpath) or None
    return None


@functools.cache
def _long_files(root: Path) -> frozenset[Path]:
    return frozenset(root / name for name in known_times())


@functools.cache
def _waiting_files(root: Path) -> frozenset[Path]:
    return frozenset(root / name for name in waiting_files(known_times()))


@functools.cache
def _takes_only_waiting(config: pytest.Config) -> bool:
    """Return whether this is a process of xdist that takes only files that wait."""
    count = config.getoption("waiting_processes")
    if not count or not hasattr(config, "workerinput"):
        return False
    from support.file_schedule import takes_only_waiting

    return takes_only_waiting(config.workerinput["workerid"], config.workerinput["workercount"], count)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("long"):
        left_out = [item for item in items if item.get_closest_marker("long")]
        items[:] = [item for item in items if not item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=left_out)
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: str(item.path))  # not all processes collect from the beginning
        sort_tests(items)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()
