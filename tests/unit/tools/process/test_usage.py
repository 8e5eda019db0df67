"""What processes use, read from a folder that looks like /proc."""

import os
from pathlib import Path

import pytest

from naiad.tools.process.usage import (
    MachineUsage,
    cpu_s,
    family,
    main_thread_s,
    read_machine,
    read_processes,
    resident_mib,
    session_bytes,
)

TICKS = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def write(
    proc: Path, pid: int, parent: int, *, session: int = 0, seconds: int = 0, ended_s: int = 0, pages: int = 0
) -> None:
    fields = ["S", parent, 0, session, *[0] * 7, seconds * TICKS, 0, ended_s * TICKS, 0, *[0] * 6, pages]
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "stat").write_text(f"{pid} (a (b) c) " + " ".join(map(str, fields)))
    (proc / str(pid) / "statm").write_text(f"9999 {pages} 0 0 0 0 0")


def test_process_has_parent_session_time_and_memory(tmp_path: Path) -> None:
    write(tmp_path, 10, 1, session=7, seconds=2, ended_s=3, pages=4)
    (tmp_path / "self").mkdir()
    found = read_processes(tmp_path)
    assert list(found) == [10]
    assert (found[10].parent, found[10].session) == (1, 7)
    assert found[10].cpu_s == pytest.approx(5)
    assert found[10].resident_bytes == 4 * PAGE_BYTES


def test_family_is_a_process_and_its_descendants(tmp_path: Path) -> None:
    for pid, parent in ((10, 1), (12, 11), (11, 10), (20, 1)):
        write(tmp_path, pid, parent, seconds=pid)
    processes = read_processes(tmp_path)
    assert sorted(family(10, processes)) == [10, 11, 12]
    assert family(99, processes) == []
    assert cpu_s(family(10, processes), processes) == pytest.approx(33)


def test_session_has_the_memory_of_its_processes(tmp_path: Path) -> None:
    write(tmp_path, 10, 1, session=10, pages=1)
    write(tmp_path, 11, 1, session=10, pages=2)  # its parent has ended
    write(tmp_path, 12, 10, session=12, pages=4)
    assert session_bytes(10, tmp_path) == 3 * PAGE_BYTES


def test_process_that_ends_meanwhile_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, 10, 1)
    (tmp_path / "11").mkdir()
    (tmp_path / "12").mkdir()
    (tmp_path / "12" / "stat").write_text("")
    assert list(read_processes(tmp_path)) == [10]


def test_resident_memory_of_one_process(tmp_path: Path) -> None:
    write(tmp_path, 10, 1, pages=2**20)
    assert resident_mib(10, tmp_path) == PAGE_BYTES
    assert resident_mib(11, tmp_path) == 0


def test_machine_is_busy_without_idle_waiting_and_guests(tmp_path: Path) -> None:
    # user, nice, system, idle, iowait, irq, softirq, steal; guest is a part of user.
    values = [each * TICKS for each in (300, 20, 60, 9000, 900, 1, 2, 7, 300, 0)]
    (tmp_path / "stat").write_text(f"cpu  {' '.join(map(str, values))}\ncpu0 1 1 1 1 1 1 1 1 0 0\n")
    assert read_machine(tmp_path) == MachineUsage(pytest.approx(390), pytest.approx(9000))


def test_main_thread_is_read_in_nanoseconds(tmp_path: Path) -> None:
    assert main_thread_s(10, tmp_path) == 0
    (tmp_path / "10" / "task" / "10").mkdir(parents=True)
    (tmp_path / "10" / "task" / "10" / "schedstat").write_text("1500000000 7 3\n")
    assert main_thread_s(10, tmp_path) == 1.5


def test_without_proc_all_is_zero(tmp_path: Path) -> None:
    proc = tmp_path / "missing"
    assert read_processes(proc) == {}
    assert session_bytes(1, proc) == 0
    assert resident_mib(1, proc) == 0
    assert read_machine(proc) == MachineUsage()
