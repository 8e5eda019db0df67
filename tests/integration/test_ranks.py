"""Instances that are groups of ranks: every batch goes to all of them, and they live and die together."""

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.model_repository import write_model
from support.rank_groups import (
    EXIT_LAST,
    FAIL_ALL,
    FAIL_FIRST,
    FAIL_LAST,
    HANG_LAST,
    MODEL,
    SLEEP,
    config,
    infer,
    notes,
    result,
)
from support.server_process import Answer, ServerProcess
from support.waiting import wait_until

StartServer = Callable[..., ServerProcess]

SIZE = 3
_CONFIG = config(SIZE, execute_timeout_s=8)


class Group:
    """The model and its notes."""

    def __init__(self, server: ServerProcess, home: Path) -> None:
        self.server = server
        self.home = home

    def infer(self, *values: int) -> Answer:
        return infer(self.server, *values)

    def result(self, *values: int) -> Any:
        return result(self.server, *values)

    def notes(self, kind: str) -> list[str]:
        return notes([self.home] * SIZE, kind)

    def pids(self) -> list[int]:
        return [int(each) for each in self.notes("pid")]


@pytest.fixture
def group(tmp_path: Path, start_server: StartServer) -> Iterator[Group]:
    root = tmp_path / "models"
    write_model(root, "ranks", _CONFIG, {"1/model.py": MODEL.encode()})
    server = start_server(root)
    server.wait_ready()
    return Group(server, root / "ranks" / "1")


def test_every_rank_gets_every_batch(group: Group) -> None:
    assert group.result(25, 6, 7) == [250, 60, 70]
    assert group.notes("sum") == ["38"] * SIZE
    assert group.notes("environment") == [f"{rank} {rank} 0 {SIZE} {SIZE} 127.0.0.1" for rank in range(SIZE)]
    assert len({*group.pids()}) == SIZE
    large = np.arange(300_000).tolist()
    assert group.result(10, *large) == [100, *(10 * each for each in large)]
    assert group.notes("sum") == [str(10 + sum(large))] * SIZE


def test_ranks_are_finalized_and_end(group: Group) -> None:
    pids = group.pids()
    group.server.post("/v2/repository/models/ranks/unload", {})
    group.server.process.send_signal(signal.SIGTERM)
    assert group.server.wait_exit() == 0
    assert group.notes("finalized") == ["yes"] * SIZE
    for pid in pids:
        assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("rank", [0, 1])
def test_killed_rank_restarts_the_group(group: Group, rank: int) -> None:
    before = group.pids()
    with ThreadPoolExecutor() as threads:
        executing = threads.submit(group.infer, SLEEP)
        wait_until((group.home / f"sum_{rank}").exists, "the batch never reached the rank")
        os.kill(before[rank], signal.SIGKILL)
        answer = executing.result()
    assert answer.status == 503
    assert f"rank {rank}" in answer.json["error"]
    assert "SIGKILL" in answer.json["error"]
    (group.home / "go").touch()
    assert group.result(8) == [80]
    assert not {*before} & {*group.pids()}


def test_error_of_all_ranks_keeps_the_group(group: Group) -> None:
    before = group.pids()
    answer = group.infer(FAIL_ALL)
    assert answer.status == 500
    assert "failed in rank 0" in answer.json["error"]
    assert group.result(9) == [90]
    assert group.pids() == before


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        (FAIL_LAST, "rank 2 failed and others did not"),
        (EXIT_LAST, "rank 2 exited with code 7"),
        (FAIL_FIRST, "failed in rank 0) and others did not respond within"),
        (HANG_LAST, "a batch took longer than execute_timeout_s"),
    ],
)
def test_failure_of_one_rank_restarts_the_group(group: Group, what: int, reason: str) -> None:
    before = group.pids()
    answer = group.infer(what)
    assert answer.status == 503
    assert reason in answer.json["error"]
    assert group.result(9) == [90]
    assert not {*before} & {*group.pids()}


def test_idle_rank_dies_and_is_replaced(group: Group) -> None:
    before = group.pids()
    os.kill(before[2], signal.SIGKILL)
    group.server.wait_log("rank 2 was killed by SIGKILL")
    wait_until(lambda: not {*before} & {*group.pids()}, "the group did not restart")
    assert group.result(9) == [90]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (_CONFIG.replace('"3"', '"0"'), "use a number of ranks from 1 to 64"),
        (_CONFIG + "model_transaction_policy { decoupled: true }", "needs a model that is not decoupled"),
        (_CONFIG + 'parameters { key: "torch_distributed" value { string_value: "mpi" } }', "use 'gloo' or 'nccl'"),
        (_CONFIG, "rank 1 failed to start: .*no weights for this rank"),
    ],
)
def test_group_that_cannot_start_says_why(tmp_path: Path, start_server: StartServer, text: str, reason: str) -> None:
    write_model(tmp_path / "models", "ranks", text, {"1/model.py": MODEL.encode(), "1/broken": b""})
    server = start_server(tmp_path / "models", "--exit-on-error=false")
    server.wait_started()
    server.wait_log(reason)
