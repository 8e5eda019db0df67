"""Usable cores, read from file trees as kernels with control groups of either version show them."""

import os
from pathlib import Path

import pytest

from naiad.backend import cores


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


V2 = "sys/fs/cgroup"
V1 = "sys/fs/cgroup/cpu,cpuacct"


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        pytest.param({}, None, id="no control groups"),
        pytest.param({"proc/self/cgroup": "0::/\n"}, None, id="v2 root without cpu.max"),
        pytest.param({"proc/self/cgroup": "0::/a\n", f"{V2}/a/cpu.max": "max 100000\n"}, None, id="v2 no limit"),
        pytest.param({"proc/self/cgroup": "0::/a\n", f"{V2}/a/cpu.max": "150000 100000\n"}, 1.5, id="v2"),
        pytest.param(
            {
                "proc/self/cgroup": "0::/pod/container\n",
                f"{V2}/pod/container/cpu.max": "400000 100000\n",
                f"{V2}/pod/cpu.max": "200000 100000\n",
                f"{V2}/cpu.max": "max 100000\n",
            },
            2.0,
            id="v2 the group above is tighter",
        ),
        pytest.param(
            {"proc/self/cgroup": "0::/host/path/of/pod\n", f"{V2}/cpu.max": "50000 100000\n"},
            0.5,
            id="v2 container whose own group is mounted at the top",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "4:memory:/m\n3:cpu,cpuacct:/a\n1:name=systemd:/\n",
                f"{V1}/a/cpu.cfs_quota_us": "300000\n",
                f"{V1}/a/cpu.cfs_period_us": "100000\n",
            },
            3.0,
            id="v1",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/a\n",
                f"{V1}/a/cpu.cfs_quota_us": "-1\n",
                f"{V1}/a/cpu.cfs_period_us": "100000\n",
            },
            None,
            id="v1 no limit",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "3:cpu:/docker/abc\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "100000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "50000\n",
            },
            2.0,
            id="v1 container",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "3:cpuset:/a\n",
                "sys/fs/cgroup/cpuset/a/cpu.cfs_quota_us": "1\n",
                "sys/fs/cgroup/cpuset/a/cpu.cfs_period_us": "1\n",
            },
            None,
            id="v1 another controller",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/a\n0::/a\n",
                f"{V1}/a/cpu.cfs_quota_us": "300000\n",
                f"{V1}/a/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/unified/a/cpu.max": "100000 100000\n",
            },
            1.0,
            id="hybrid",
        ),
    ],
)
def test_quota(tmp_path, files, quota):
    assert cores.cgroup_quota(tree(tmp_path, files)) == quota


@pytest.mark.parametrize(
    ("allowed", "cpu_max", "usable"),
    [(8, "max 100000", 8), (8, "250000 100000", 3), (2, "400000 100000", 2), (4, "10000 100000", 1)],
)
def test_the_tighter_of_affinity_and_quota_counts(tmp_path, monkeypatch, allowed, cpu_max, usable):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(allowed)), raising=False)
    tree(tmp_path, {"proc/self/cgroup": "0::/\n", f"{V2}/cpu.max": cpu_max})
    assert cores.usable_cores(tmp_path) == usable


@pytest.mark.parametrize(
    ("cpu_max", "is_charged"), [("max 100000", False), ("200000 100000", True), ("300000 100000", False)]
)
def test_waiting_awake_is_dear_under_a_small_quota(tmp_path, cpu_max, is_charged):
    tree(tmp_path, {"proc/self/cgroup": "0::/\n", f"{V2}/cpu.max": cpu_max})
    assert cores.is_charged_for_waiting(tmp_path) == is_charged


def test_systems_without_affinity_count_their_cpus(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert cores.allowed_cpu_count() == 6
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert cores.allowed_cpu_count() == 1
