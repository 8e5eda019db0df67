"""CPU time of programs, read from a folder that looks like /proc."""

import os

import pytest

from naiad.tools.optimize.profile.processor import read_processor, tree_cpu_s

TICKS = os.sysconf("SC_CLK_TCK")


def process(folder, pid, parent, user_s, children_s=0.0, name="a (b) c"):
    fields = [f"{pid}", f"({name})", "S", f"{parent}", *["0"] * 9]
    fields += [str(int(each * TICKS)) for each in (user_s, 0, children_s, 0)] + ["0"] * 7
    (folder / str(pid)).mkdir(exist_ok=True)
    (folder / str(pid) / "stat").write_text(" ".join(fields))


def machine(folder, busy_s, idle_s=100.0):
    values = [busy_s * TICKS, 0, 0, idle_s * TICKS, 5 * TICKS, 0, 0, 0, 77 * TICKS, 0]
    (folder / "stat").write_text("cpu  " + " ".join(str(int(each)) for each in values) + "\n")


def test_tree_has_descendants_and_those_that_ended(tmp_path):
    process(tmp_path, 10, 1, 1.0, children_s=4.0)
    process(tmp_path, 11, 10, 2.0)
    process(tmp_path, 12, 11, 3.0)
    process(tmp_path, 20, 1, 50.0)
    assert tree_cpu_s(10, tmp_path) == pytest.approx(10.0)
    assert tree_cpu_s(11, tmp_path) == pytest.approx(5.0)
    assert tree_cpu_s(99, tmp_path) == 0


def test_others_are_what_is_busy_beside_this_program(tmp_path):
    own = os.getpid()
    process(tmp_path, own, 1, 10.0)
    machine(tmp_path, 100.0)
    before = read_processor(tmp_path)
    process(tmp_path, own, 1, 12.0)
    machine(tmp_path, 106.0)
    after = read_processor(tmp_path)
    passed_s = after.at_s - before.at_s
    assert after.others_since(before) * passed_s == pytest.approx(4.0)


def test_without_proc_there_are_no_figures(tmp_path):
    before, after = read_processor(tmp_path), read_processor(tmp_path)
    assert after.others_since(before) == 0
    assert tree_cpu_s(os.getpid(), tmp_path) == 0
