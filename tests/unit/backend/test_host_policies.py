"""Host policies on this machine: which cores they mean, and threads that are bound to them."""

import os
import subprocess
import sys
import threading

import pytest

from naiad.backend.cores import bind_thread, resolve_policies, running_on
from naiad.core.errors import ErrorCode, InferError
from naiad.options.host_policy import HostPolicy

CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
ONE = frozenset(CORES[:1])

binds = pytest.mark.skipif(len(CORES) < 2, reason="needs a platform that binds threads, and two cores")


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine of two nodes with four cores each, of which this process may use 0 to 5; node 2 has memory only."""
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: None, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(6)), raising=False)
    for node, cores in enumerate(["0-3", "4-7", ""]):
        directory = tmp_path / f"sys/devices/system/node/node{node}"
        directory.mkdir(parents=True)
        (directory / "cpulist").write_text(f"{cores}\n")
    return tmp_path


@pytest.mark.parametrize(
    ("policy", "cores"),
    [
        (HostPolicy(frozenset({1, 5})), {1, 5}),
        (HostPolicy(numa_node=0), {0, 1, 2, 3}),
        (HostPolicy(numa_node=1), {4, 5}),
        (HostPolicy(frozenset({3, 4, 5}), 1), {4, 5}),
    ],
)
def test_cores_of_a_policy(machine, policy, cores):
    assert resolve_policies({"cpu": policy}, machine) == {"cpu": cores}


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (HostPolicy(frozenset({5, 6, 7})), ["cpu,cpu-cores=5-7", "may not use cores 6-7", "it may use cores 0-5"]),
        (HostPolicy(numa_node=7), ["cpu,numa-node=7", "no NUMA node 7", "there are: 0, 1, 2"]),
        (HostPolicy(numa_node=2), ["numa-node=2", "has memory only", "use a node with cores"]),
        (
            HostPolicy(frozenset({0, 1}), 1),
            ["numa-node=1,cpu-cores=0-1", "has cores 4-7", "none of them among 'cpu-cores' 0-1", "another node"],
        ),
    ],
)
def test_refusals_say_what_there_is(machine, policy, words):
    with pytest.raises(InferError) as caught:
        resolve_policies({"cpu": policy}, machine)
    assert caught.value.code is ErrorCode.INVALID_ARG
    for word in words:
        assert word in caught.value.message


def test_node_without_usable_core(machine, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {2})
    with pytest.raises(InferError, match="has cores 4-7, none of them among what it may use, core 2; name cores"):
        resolve_policies({"cpu": HostPolicy(numa_node=1)}, machine)


def test_machine_without_nodes(machine):
    with pytest.raises(InferError, match="there is no NUMA node 0 on this machine; there are: none"):
        resolve_policies({"cpu": HostPolicy(numa_node=0)}, machine / "nothing")


def test_a_platform_that_cannot_bind_refuses(monkeypatch):
    monkeypatch.delattr(os, "sched_setaffinity", raising=False)
    assert resolve_policies({}) == {}
    with pytest.raises(InferError, match="--host-policy=cpu,cpu-cores=0: this platform cannot bind") as caught:
        resolve_policies({"cpu": HostPolicy(frozenset({0}))})
    assert caught.value.code is ErrorCode.UNSUPPORTED


@binds
def test_threads_and_processes_run_where_they_were_started():
    seen = []
    before = os.sched_getaffinity(0)
    with running_on(ONE):
        assert os.sched_getaffinity(0) == ONE
        thread = threading.Thread(target=lambda: seen.append(os.sched_getaffinity(0)))
        thread.start()
        thread.join()
        code = "import os; print(*os.sched_getaffinity(0))"
        seen.append({int(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)})
    assert seen == [ONE, ONE]
    assert os.sched_getaffinity(0) == before


@binds
def test_the_affinity_comes_back_after_a_failure():
    before = os.sched_getaffinity(0)
    with pytest.raises(ValueError, match="x"), running_on(ONE):
        raise ValueError("x")
    assert os.sched_getaffinity(0) == before


def in_a_thread(function):
    """Return the affinity of a thread after it has called `function`."""
    seen = []

    def run():
        function()
        seen.append(os.sched_getaffinity(0))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return seen[0]


@binds
def test_a_thread_is_bound_for_good():
    assert in_a_thread(lambda: bind_thread(ONE)) == ONE
    assert in_a_thread(lambda: bind_thread(frozenset())) == set(CORES)


@binds
def test_cores_that_have_gone_since_the_start(caplog):
    gone = frozenset({CORES[-1] + 900})
    with pytest.raises(InferError, match=r"core \d+ of its host policy cannot be used"), running_on(gone):
        pass
    assert in_a_thread(lambda: bind_thread(gone)) == set(CORES)
    assert "an instance is not bound: core" in caplog.text
