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
from support.server_process import Answer, ServerProcess
from support.waiting import wait_until

StartServer = Callable[..., ServerProcess]

SIZE = 3
_CONFIG = """
backend: "python"
max_batch_size: 4
input [ { name: "X" data_type: TYPE_INT64 dims: [ -1 ] } ]
output [ { name: "Y" data_type: TYPE_INT64 dims: [ -1 ] } ]
parameters { key: "tensor_parallel_size" value { string_value: "3" } }
parameters { key: "execute_timeout_s" value { string_value: "8" } }
"""
_MODEL = """
import os
import time
import triton_python_backend_utils as pb_utils

HERE = os.path.dirname(__file__)
SLEEP, FAIL_ALL, FAIL_LAST, EXIT_LAST, FAIL_FIRST, HANG_LAST = 1, 2, 3, 4, 5, 6


class TritonPythonModel:
    def initialize(self, args):
        self.rank = int(args["rank"])
        for name, value in (("RANK", args["rank"]), ("WORLD_SIZE", args["world_size"]), ("LOCAL_RANK", args["rank"])):
            assert os.environ[name] == value
        assert 0 < int(os.environ["MASTER_PORT"]) < 65536
        if os.path.exists(os.path.join(HERE, "broken")) and self.rank == 1:
            raise RuntimeError("no weights for this rank")
        self._note("pid", str(os.getpid()))

    def _note(self, kind, text):
        path = os.path.join(HERE, f"{kind}_{self.rank}")
        with open(path + ".part", "w") as file:
            file.write(text)
        os.replace(path + ".part", path)

    def execute(self, requests):
        values = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        what = int(values[0].flat[0])
        self._note("sum", str(sum(int(each.sum()) for each in values)))
        is_last = self.rank == int(os.environ["WORLD_SIZE"]) - 1
        if what == FAIL_ALL or (what == FAIL_LAST and is_last):
            raise ValueError(f"failed in rank {self.rank}")
        if what == EXIT_LAST and is_last:
            os._exit(7)
        if what == FAIL_FIRST and self.rank == 0:
            raise ValueError("failed in rank 0")
        while what in (FAIL_FIRST, HANG_LAST) and is_last:
            time.sleep(0.01)
        while what == SLEEP and not os.path.exists(os.path.join(HERE, "go")):
            time.sleep(0.01)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", each * 10 + self.rank)]) for each in values]

    def finalize(self):
        self._note("finalized", "yes")
"""
SLEEP, FAIL_ALL, FAIL_LAST, EXIT_LAST, FAIL_FIRST, HANG_LAST = 1, 2, 3, 4, 5, 6


class Group:
    """The model and its notes."""

    def __init__(self, server: ServerProcess, home: Path) -> None:
        self.server = server
        self.home = home

    def infer(self, *values: int) -> Answer:
        body = {"inputs": [{"name": "X", "datatype": "INT64", "shape": [1, len(values)], "data": list(values)}]}
        return self.server.post("/v2/models/ranks/infer", body)

    def result(self, *values: int) -> Any:
        answer = self.infer(*values)
        assert answer.status == 200, answer.body
        return answer.json["outputs"][0]["data"]

    def notes(self, kind: str) -> list[str]:
        return [(self.home / f"{kind}_{rank}").read_text() for rank in range(SIZE)]

    def pids(self) -> list[int]:
        return [int(each) for each in self.notes("pid")]


@pytest.fixture
def group(tmp_path: Path, start_server: StartServer) -> Iterator[Group]:
    root = tmp_path / "models"
    write_model(root, "ranks", _CONFIG, {"1/model.py": _MODEL.encode()})
    server = start_server(root)
    server.wait_ready()
    return Group(server, root / "ranks" / "1")


def test_every_rank_gets_every_batch(group: Group) -> None:
    assert group.result(25, 6, 7) == [250, 60, 70]
    assert group.notes("sum") == ["38"] * SIZE
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
    ("config", "reason"),
    [
        (_CONFIG.replace('"3"', '"0"'), "use a number of ranks from 1 to 64"),
        (_CONFIG + "model_transaction_policy { decoupled: true }", "needs a model that is not decoupled"),
        (_CONFIG + 'parameters { key: "torch_distributed" value { string_value: "mpi" } }', "use 'gloo' or 'nccl'"),
        (_CONFIG, "rank 1 failed to start: .*no weights for this rank"),
    ],
)
def test_group_that_cannot_start_says_why(
    tmp_path: Path, start_server: StartServer, config: str, reason: str
) -> None:
    write_model(tmp_path / "models", "ranks", config, {"1/model.py": _MODEL.encode(), "1/broken": b""})
    server = start_server(tmp_path / "models", "--exit-on-error=false")
    server.wait_started()
    server.wait_log(reason)
