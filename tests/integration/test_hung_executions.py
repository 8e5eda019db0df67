"""An execution that hangs is noticed, its requests are answered, and the model goes on."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from support.model_repository import write_identity, write_model
from support.server_process import Answer, ServerProcess
from support.waiting import wait_until

StartServer = Callable[..., ServerProcess]

CONFIG = """
backend: "python"
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""
MODEL = """
import time
import triton_python_backend_utils as pb_utils


def sleeps_forever():
    time.sleep(1000)


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            if request.inputs()[0].as_numpy()[0] < 0:
                sleeps_forever()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", q.inputs()[0].as_numpy())]) for q in requests]
"""
STREAMS = """
import time
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for n in range(4):
                time.sleep(0.75)
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([n], np.float32))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
HANG, GOOD = -1.0, 1.0


def infer(server: ServerProcess, model: str, value: float) -> Answer:
    tensor = {"name": "IN", "datatype": "FP32", "shape": [1], "data": [value]}
    return server.post(f"/v2/models/{model}/infer", {"inputs": [tensor]})


def test_a_hung_worker_is_replaced_by_default(start_server: StartServer, tmp_path: Path) -> None:
    """Without a parameter of the model: the limit of the server holds, here a short one."""
    write_model(tmp_path, "hangs", CONFIG, {"1/model.py": MODEL})
    server = start_server(tmp_path, "--execute-timeout-secs=1")
    server.wait_ready()
    assert infer(server, "hangs", GOOD).status == 200
    hung = infer(server, "hangs", HANG)
    assert hung.status == 503
    assert "made no progress for 1 s (--execute-timeout-secs)" in hung.json["error"]
    assert infer(server, "hangs", GOOD).status == 200
    server.wait_log(r"model\.py.{0,4}, line 7 in sleeps_forever")


def test_a_parameter_wins_over_the_flag(start_server: StartServer, tmp_path: Path) -> None:
    limit = 'parameters { key: "execute_timeout_s" value { string_value: "1" } }'
    write_model(tmp_path, "hangs", CONFIG + limit, {"1/model.py": MODEL})
    server = start_server(tmp_path)
    server.wait_ready()
    assert "execute_timeout_s, 1 s" in infer(server, "hangs", HANG).json["error"]


def test_responses_count_as_progress(start_server: StartServer, tmp_path: Path) -> None:
    decoupled = "model_transaction_policy { decoupled: true }"
    write_model(tmp_path, "streams", CONFIG + decoupled, {"1/model.py": STREAMS})
    server = start_server(tmp_path, "--execute-timeout-secs=2")
    server.wait_ready()
    answer = server.post("/v2/models/streams/generate_stream", {"IN": 1})
    events = answer.body.split(b"\n\n")[:-1]
    assert [json.loads(event.removeprefix(b"data: ")).get("OUT") for event in events] == [0, 1, 2, 3]


def test_a_hung_thread_is_left_alone(start_server: StartServer, tmp_path: Path) -> None:
    """A thread cannot be killed: the requests are answered, and the instance gets no more until it returns."""
    write_identity(tmp_path, "slow", parameters={"execute_delay_ms": "4000", "execute_timeout_s": "1"})
    server = start_server(tmp_path)
    server.wait_ready()
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
    with ThreadPoolExecutor(3) as callers:
        asked = [callers.submit(server.post, "/v2/models/slow/infer", {"inputs": [tensor]}) for _ in range(3)]
        answers = [each.result(60) for each in asked]
    assert {answer.status for answer in answers} == {503}
    assert all("made no progress for 1 s" in answer.json["error"] for answer in answers)
    assert server.get("/v2/models/slow/ready").status != 200
    wait_until(lambda: server.get("/v2/models/slow/ready").status == 200)
    server.wait_log("it has returned after 4.0 s, and the instance continues")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_hung_executions_are_answered_at_exit(start_server: StartServer, tmp_path: Path) -> None:
    write_model(tmp_path, "hangs", CONFIG, {"1/model.py": MODEL})
    server = start_server(tmp_path, "--exit-timeout-secs=1")
    server.wait_ready()
    given = grpcclient.InferInput("IN", [1], "FP32")
    given.set_data_from_numpy(np.array([HANG], np.float32))
    with ThreadPoolExecutor(3) as callers, grpcclient.InferenceServerClient(server.grpc_url) as client:
        over_http = callers.submit(infer, server, "hangs", HANG)
        over_grpc = callers.submit(client.infer, "hangs", [given])
        server.wait_requests("hangs", waiting=1, executing=1)
        server.signal()
        answer = over_http.result(60)
        assert answer.status == 503
        assert "the server exits" in answer.json["error"]
        with pytest.raises(InferenceServerException, match="the server exits"):
            over_grpc.result(60)
    assert server.wait_exit() == 1
