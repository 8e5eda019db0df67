import os
from pathlib import Path

import pytest

from naiad.server.cores import usable_cores


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("max 100000\n", 8),
        ("200000 100000\n", 2),
        ("150000 100000\n", 2),
        ("10000 100000\n", 1),
        ("1600000 100000", 8),
    ],
)
def test_quota_of_cgroup_v2_bounds_the_cores(tmp_path: Path, text: str, cores: int) -> None:
    (tmp_path / "cpu.max").write_text(text)
    assert usable_cores(tmp_path) == cores


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize(("quota", "cores"), [("-1", 8), ("300000", 3)])
def test_quota_of_cgroup_v1_bounds_the_cores(tmp_path: Path, quota: str, cores: int) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(quota)
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000")
    assert usable_cores(tmp_path) == cores


@pytest.mark.usefixtures("eight_cores")
def test_without_a_cgroup_affinity_decides(tmp_path: Path) -> None:
    assert usable_cores(tmp_path) == 8
