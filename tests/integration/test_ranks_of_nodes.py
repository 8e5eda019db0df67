"""Ranks on two nodes: a server, and `naiad rank` with its own copy of the model, over the loopback interface."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.model_repository import write_model
from support.ports import free_port
from support.rank_groups import EXIT_LAST, FAIL_LAST, MODEL, SLEEP, config, infer, notes, result
from support.server_process import SOURCE, ServerProcess
from support.waiting import wait_until

StartServer = Callable[..., ServerProcess]


class Nodes:
    """The server's machine and the other one: directories with a copy of the model each."""

    def __init__(self, root: Path, timeout_s: int = 120) -> None:
        self.port = free_port()
        self.models = [root / "first", root / "second"]
        address = f"127.0.0.1:{self.port}"
        text = config(4, nnodes=2, rendezvous=address, rendezvous_timeout_s=timeout_s, restart_wait_s=50)
        for each in self.models:
            write_model(each, "ranks", text, {"1/model.py": MODEL.encode()})
        self.homes = [each / "ranks" / "1" for each in self.models]
        self.log = root / "rank.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start_rank(self, node_rank: int = 1) -> None:
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "naiad", "rank", str(self.models[1] / "ranks"), f"--node-rank={node_rank}"],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": str(SOURCE)},
            )

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def notes(self, kind: str) -> list[str]:
        return notes([self.homes[rank // 2] for rank in range(4)], kind)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(tmp_path)
    yield made
    made.stop()


@pytest.fixture
def server(nodes: Nodes, start_server: StartServer) -> ServerProcess:
    nodes.start_rank()
    running = start_server(nodes.models[0])
    running.wait_ready()
    return running


def test_ranks_of_both_nodes_get_every_batch(nodes: Nodes, server: ServerProcess) -> None:
    assert result(server, 25, 6) == [250, 60]
    assert nodes.notes("sum") == ["31"] * 4
    assert nodes.notes("environment") == [f"{rank} {rank % 2} {rank // 2} 4 2 127.0.0.1" for rank in range(4)]
    large = list(range(10, 300_010))
    assert result(server, *large) == [10 * each for each in large]
    assert nodes.notes("sum") == [str(sum(large))] * 4
    server.process.send_signal(signal.SIGTERM)
    assert server.wait_exit() == 0
    assert nodes.notes("finalized") == ["yes"] * 4


def test_rank_killed_on_other_node_restarts_group(nodes: Nodes, server: ServerProcess) -> None:
    before = nodes.notes("pid")
    with ThreadPoolExecutor() as threads:
        executing = threads.submit(infer, server, SLEEP)
        wait_until((nodes.homes[1] / "sum_2").exists, "the batch never reached the node")
        os.kill(int(before[2]), signal.SIGKILL)
        answer = executing.result()
    assert answer.status == 503
    assert "rank 2 was killed by SIGKILL (node 1) while it executed this request" in answer.json["error"]
    for home in nodes.homes:
        (home / "go").touch()
    assert result(server, 8) == [80]
    assert not {*before} & {*nodes.notes("pid")}


@pytest.mark.parametrize(
    ("what", "reason"),
    [(FAIL_LAST, "rank 3 failed and others did not"), (EXIT_LAST, "rank 3 exited with code 7 (node 1)")],
)
def test_failure_on_other_node_restarts_group(nodes: Nodes, server: ServerProcess, what: int, reason: str) -> None:
    before = nodes.notes("pid")
    answer = infer(server, what)
    assert answer.status == 503
    assert reason in answer.json["error"]
    assert result(server, 9) == [90]
    assert not {*before} & {*nodes.notes("pid")}


@pytest.mark.long
def test_lost_node_may_start_again(nodes: Nodes, server: ServerProcess) -> None:
    nodes.stop()
    server.wait_log(r"rank [23] (is lost: its connection has ended|was killed by SIGKILL) \(node 1\)")
    nodes.start_rank()
    assert result(server, 9) == [90]


@pytest.mark.long
def test_reload_replaces_the_group(nodes: Nodes, start_server: StartServer) -> None:
    nodes.start_rank()
    server = start_server(nodes.models[0], "--model-control-mode=explicit", "--load-model=ranks")
    server.wait_ready()
    before = nodes.notes("pid")
    for home in nodes.homes:
        (home / "model.py").write_text(MODEL.replace("each * 10", "each * 20"))
    assert server.post("/v2/repository/models/ranks/load", {}).status == 200
    assert result(server, 9) == [180]
    assert not {*before} & {*nodes.notes("pid")}


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (
            '"nnodes" value { string_value: "2" }',
            '"nnodes" value { string_value: "4" }',
            "has nnodes 4, the server has 2",
        ),
        ('string_value: "4"', 'string_value: "6"', "has tensor_parallel_size 6, the server has 4"),
    ],
)
def test_counts_that_disagree_are_rejected(
    nodes: Nodes, start_server: StartServer, old: str, new: str, reason: str
) -> None:
    path = nodes.models[1] / "ranks" / "config.pbtxt"
    path.write_text(path.read_text().replace(old, new, 1))
    nodes.start_rank()
    server = start_server(nodes.models[0], "--exit-on-error=false")
    server.wait_started()
    server.wait_log(f"node 1 at the rendezvous of model 'ranks' {reason}")
    assert nodes.process is not None
    assert nodes.process.wait(30) == 1
    assert reason in nodes.log.read_text()


def test_absent_node_fails_the_load(tmp_path: Path, start_server: StartServer) -> None:
    nodes = Nodes(tmp_path, timeout_s=1)
    server = start_server(nodes.models[0], "--exit-on-error=false")
    server.wait_started()
    server.wait_log(rf"node 1 has not joined at 127.0.0.1:{nodes.port} within 1 s")


@pytest.mark.parametrize("address", ["127.0.0.1", "192.0.2.1"])
def test_unusable_address_fails_the_load(nodes: Nodes, start_server: StartServer, address: str) -> None:
    path = nodes.models[0] / "ranks" / "config.pbtxt"
    path.write_text(path.read_text().replace("127.0.0.1", address))
    with socket.create_server(("127.0.0.1", nodes.port)):
        server = start_server(nodes.models[0], "--exit-on-error=false")
        server.wait_started()
        server.wait_log(f"'rendezvous' is '{address}:{nodes.port}', which cannot be listened on: ")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (
            '"nnodes" value { string_value: "2" }',
            '"nnodes" value { string_value: "3" }',
            "use a number of nodes that divides",
        ),
        ("127.0.0.1:", "127.0.0.1/", "use HOST:PORT of node 0"),
        ("max_batch_size: 4", "max_batch_size: 4 instance_group { count: 2 kind: KIND_CPU }", "use one instance"),
    ],
)
def test_parameters_of_nodes_are_checked(
    nodes: Nodes, start_server: StartServer, old: str, new: str, reason: str
) -> None:
    path = nodes.models[0] / "ranks" / "config.pbtxt"
    path.write_text(path.read_text().replace(old, new))
    server = start_server(nodes.models[0], "--exit-on-error=false")
    server.wait_started()
    server.wait_log(reason)


def test_node_rank_out_of_range_is_refused(nodes: Nodes) -> None:
    nodes.start_rank(2)
    assert nodes.process is not None
    assert nodes.process.wait(30) == 1
    assert "--node-rank is 2, and model 'ranks' has 2 nodes" in nodes.log.read_text()
