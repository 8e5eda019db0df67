"""The default memory limit for request bodies."""

import pytest

from naiad.options.options import ServerOptions
from naiad.server.process.memory import default_limit_bytes, open_budget, usable_memory_bytes
from naiad.telemetry.metrics.metrics import Registry

MB = 1 << 20


@pytest.fixture
def root(tmp_path):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text(f"MemTotal: {16 * 1024 * 1024} kB\nMemAvailable: 1024 kB\n")
    return tmp_path


def group(root, line, name, text):
    (root / "proc/self/cgroup").write_text(line)
    path = root / "sys/fs/cgroup" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_machine_counts_without_control_groups(root):
    assert usable_memory_bytes(root) == 16 * 1024 * MB
    assert default_limit_bytes(1, root) == 4 * 1024 * MB
    assert default_limit_bytes(4, root) == 1024 * MB


def test_control_groups_of_v2_limit_the_memory(root):
    group(root, "0::/a/b\n", "a/b/memory.max", "max\n")
    group(root, "0::/a/b\n", "a/memory.max", f"{8 * 1024 * MB}\n")
    assert usable_memory_bytes(root) == 8 * 1024 * MB


def test_control_groups_of_v1_limit_the_memory(root):
    group(root, "4:memory:/a\n", "memory/a/memory.limit_in_bytes", f"{2 * 1024 * MB}\n")
    assert default_limit_bytes(1, root) == 512 * MB


def test_little_memory_leaves_the_least_budget(root):
    group(root, "0::/a\n", "a/memory.max", f"{300 * MB}\n")
    assert default_limit_bytes(2, root) == 256 * MB


def test_unknown_memory_leaves_a_fixed_budget(tmp_path):
    assert default_limit_bytes(1, tmp_path) == 1024 * MB


def test_the_budget_is_shown_as_metrics():
    registry = Registry()
    budget = open_budget(ServerOptions(max_request_bytes=1000), registry)
    assert budget.reserve(600)
    assert not budget.reserve(600)
    text = registry.render().decode()
    assert "naiad_request_bytes_in_flight 600\n" in text
    assert "naiad_request_bytes_limit 1000\n" in text
    assert "naiad_request_bytes_rejections_total 1\n" in text
