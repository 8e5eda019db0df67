"""Ordinary Python models that answer after `execute` has returned: the next batch comes meanwhile."""

import os
import re
import signal
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest
import tritonclient.grpc as grpcclient

from support.model_repository import write_model
from support.server_process import Answer, ServerProcess
from support.waiting import wait_until

StartServer = Callable[..., ServerProcess]

CONFIG = """
backend: "python"
max_batch_size: 4
input [ { name: "IN" data_type: TYPE_INT64 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT64 dims: [ -1 ] } ]
"""
MODEL = """
import asyncio
import os
import threading
import time
import numpy as np
import triton_python_backend_utils as pb_utils


def first(request):
    return int(request.inputs()[0].as_numpy().flat[0])


def answer(request):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy() + 1)])


class TritonPythonModel:
    kept = []

"""
KEEPS = """
    def execute(self, requests):
        returned = []
        for request in requests:
            what = first(request)
            if what == 0:
                self.kept.append((request, request.get_response_sender()))
                returned.append(None)
                continue
            if what == 2:
                self.kept.clear()
            elif what == 3:
                time.sleep(1000)
            elif what == 4:
                os._exit(1)
            elif what == 7:
                pass
            elif what == 5:
                assert all(kept.is_cancelled() and sender.is_cancelled() for kept, sender in self.kept)
            elif what == 6:
                self.kept[0][1].send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros((3, 1), np.int64))]))
                self.kept.clear()
            else:
                for kept, sender in self.kept:
                    sender.send(answer(kept), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                self.kept.clear()
            returned.append(answer(request))
        return returned
"""
WAITS_IN_TASKS = """
    async def later(self, request):
        while not self.kept:
            await asyncio.sleep(0.001)
        request.get_response_sender().send(answer(request), flags=1)

    async def execute(self, requests):
        if first(requests[0]) != 0:
            self.kept.append(True)
            return [answer(request) for request in requests]
        for request in requests:
            asyncio.create_task(self.later(request))
"""
KEEP, RELEASE, LOSE, HANG, DIE, CANCELLED, WRONG_ROWS, PLAIN = range(8)


def infer(server: ServerProcess, what: int, length: int = 1) -> Answer:
    values = [what, *[7] * (length - 1)]
    tensor = {"name": "IN", "datatype": "INT64", "shape": [1, length], "data": values}
    return server.post("/v2/models/late/infer", {"inputs": [tensor]})


def infer_grpc(server: ServerProcess, what: int) -> list[int]:
    tensor = grpcclient.InferInput("IN", [1, 1], "INT64")
    tensor.set_data_from_numpy(np.full((1, 1), what, np.int64))
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        result = client.infer("late", [tensor]).as_numpy("OUT")
    assert result is not None
    return result.flatten().tolist()


def values(response: Answer) -> list[int]:
    assert response.status == 200, response.body
    return response.json["outputs"][0]["data"]


@pytest.fixture
def start_late(start_server: StartServer, tmp_path: Path) -> Callable[..., ServerProcess]:
    def start(body: str = KEEPS, *flags: str, config: str = "") -> ServerProcess:
        write_model(tmp_path, "late", CONFIG + config, {"1/model.py": MODEL + body})
        server = start_server(tmp_path, "--model-control-mode=explicit", "--load-model=late", *flags)
        server.wait_ready()
        return server

    return start


def executions(server: ServerProcess) -> int:
    return server.get("/v2/models/late/stats").json["model_stats"][0]["execution_count"]


def keep(pool: ThreadPoolExecutor, server: ServerProcess, count: int, length: int = 1) -> list[Future[Answer]]:
    """Send requests whose batches are over before they are answered."""
    before = executions(server)
    kept = []
    for index in range(count):
        kept.append(pool.submit(infer, server, KEEP, length))
        wait_until(lambda index=index: executions(server) == before + index + 1)
    return kept


@pytest.mark.parametrize("body", [KEEPS, WAITS_IN_TASKS], ids=["senders", "tasks"])
def test_a_later_batch_answers_earlier_ones(start_late, body):
    server = start_late(body)
    with ThreadPoolExecutor() as pool:
        first = keep(pool, server, 2)
        third = pool.submit(infer_grpc, server, KEEP)
        wait_until(lambda: executions(server) == 3)
        assert not any(each.done() for each in (*first, third))
        assert values(infer(server, RELEASE)) == [2]
        assert [values(each.result()) for each in first] == [[1], [1]]
        assert third.result() == [1]
    (stats,) = server.get("/v2/models/late/stats").json["model_stats"]
    assert (stats["inference_count"], stats["execution_count"]) == (4, 4)
    assert stats["inference_stats"]["success"]["count"] == 4
    assert stats["inference_stats"]["fail"]["count"] == 0
    assert not stats.get("response_stats")


def test_large_responses_may_be_late(start_late):
    server = start_late()
    with ThreadPoolExecutor() as pool:
        kept = keep(pool, server, 2, length=200_000)
        assert values(infer(server, RELEASE)) == [2]
        for each in kept:
            assert values(each.result()) == [1, *[8] * 199_999]


def test_a_batch_may_be_answered_in_part(start_late):
    server = start_late(config="dynamic_batching { max_queue_delay_microseconds: 600000000 }")
    with ThreadPoolExecutor() as pool:
        kept, plain, *others = [pool.submit(infer, server, what) for what in (KEEP, PLAIN, KEEP, PLAIN)]
        assert values(plain.result()) == [8]
        assert values(others[1].result()) == [8]
        assert not kept.done()
        assert not others[0].done()
        releasing = [pool.submit(infer, server, what) for what in (PLAIN, PLAIN, PLAIN, RELEASE)]
        assert [values(each.result()) for each in (kept, others[0])] == [[1], [1]]
        assert [values(each.result()) for each in releasing] == [[8], [8], [8], [2]]


def test_lost_senders_become_errors(start_late):
    server = start_late()
    with ThreadPoolExecutor() as pool:
        (kept,) = keep(pool, server, 1)
        assert values(infer(server, LOSE)) == [3]
        assert kept.result().status == 500
        assert "the model released the response sender of this request" in kept.result().json["error"]
    assert values(infer(server, RELEASE)) == [2]


def test_late_responses_are_held_against_the_configuration(start_late):
    server = start_late(config='parameters { key: "strict_outputs" value { string_value: "true" } }')
    with ThreadPoolExecutor() as pool:
        (kept,) = keep(pool, server, 1)
        assert values(infer(server, WRONG_ROWS)) == [7]
        assert kept.result().status == 500
        assert "with outputs of other batch sizes: 'OUT' [3,1]" in kept.result().json["error"]


def test_cancellation_reaches_open_requests(start_late):
    server = start_late()
    tensor = grpcclient.InferInput("IN", [1, 1], "INT64")
    tensor.set_data_from_numpy(np.zeros((1, 1), np.int64))
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        call = client.async_infer("late", [tensor], lambda result, error: None)
        wait_until(lambda: executions(server) == 1)
        call.cancel()
        wait_until(lambda: infer(server, CANCELLED).status == 200)
    assert values(infer(server, RELEASE)) == [2]


def test_a_death_fails_open_requests(start_late):
    server = start_late()
    with ThreadPoolExecutor() as pool:
        kept = keep(pool, server, 2)
        died = infer(server, DIE)
        for each in (died, *(one.result() for one in kept)):
            assert each.status == 503
            assert "exited with code 1" in each.json["error"]
    assert values(infer(server, RELEASE)) == [2]


def test_a_death_between_batches_fails_open_requests(start_late):
    server = start_late()
    with ThreadPoolExecutor() as pool:
        (kept,) = keep(pool, server, 1)
        os.kill(worker_pid(server), signal.SIGKILL)
        assert kept.result().status == 503
    assert values(infer(server, RELEASE)) == [2]


def worker_pid(server: ServerProcess) -> int:
    (worker,) = psutil.Process(server.process.pid).children(recursive=True)
    return worker.pid


def test_a_hung_batch_beside_open_requests_ends(start_late):
    server = start_late(KEEPS, "--execute-timeout-secs=1")
    with ThreadPoolExecutor() as pool:
        (kept,) = keep(pool, server, 1)
        assert infer(server, HANG).status == 503
        assert kept.result().status == 503
    assert values(infer(server, RELEASE)) == [2]


def test_an_unload_waits_for_open_requests(start_late):
    server = start_late(WAITS_IN_TASKS.replace("not self.kept", "not os.path.exists(__file__ + '.go')"))
    with ThreadPoolExecutor() as pool:
        (kept,) = keep(pool, server, 1)
        unloaded = pool.submit(server.post, "/v2/repository/models/late/unload", {})
        wait_until(lambda: server.get("/v2/models/late/ready").status != 200)
        assert not kept.done()
        (model_file,) = list(server.log.parent.glob("**/late/1/model.py"))
        model_file.with_name("model.py.go").touch()
        assert values(kept.result()) == [1]
        assert unloaded.result().status == 200


def test_an_exit_answers_open_requests(start_late):
    server = start_late(KEEPS, "--exit-timeout-secs=1")
    with ThreadPoolExecutor() as pool:
        (kept,) = keep(pool, server, 1)
        server.signal()
        assert kept.result().status == 503
        assert re.search("stopp|exit|shut", kept.result().json["error"])
        server.wait_exit()
