"""Iterative sequences with stock tritonclient: a request goes through many batches until its answer is complete."""

import queue
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from support.model_repository import write_model
from support.server_process import ServerProcess, serving
from support.transport import Transport, new_transport
from support.waiting import wait_until

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

_TENSORS = """
backend: "python"
max_batch_size: 8
input [ { name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "LEFT" data_type: TYPE_INT32 dims: [ 1 ] }, { name: "COMPANY" data_type: TYPE_INT32 dims: [ 1 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
"""
_BATCHING = """
sequence_batching {
  iterative_sequence: true
  %s
  control_input [
    { name: "START" control [ { kind: CONTROL_SEQUENCE_START bool_false_true: [ false, true ] } ] },
    { name: "ID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } ] }
  ]
}
"""
_PREAMBLE = """
import time
import numpy as np
import triton_python_backend_utils as pb_utils

AGAIN = pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL

def value(request, name):
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy().ravel()[0]

class Counting:
    def initialize(self, args):
        self.left = {}
        self.company = {}

    def step(self, request, company):
        "Return how many steps are left, counted down from COUNT, and the largest batch that the request was in."
        time.sleep(0.005)
        key = value(request, "ID")
        if not key:
            return 0, 0  # no request has this row of the batch
        assert request.correlation_id() == key
        if value(request, "START"):
            assert len(request.inputs()) == 3, request.inputs()
            self.left[key] = int(value(request, "COUNT"))
            self.company[key] = 0
        self.left[key] -= 1
        self.company[key] = max(self.company[key], company)
        return self.left[key], self.company[key]

    def response(self, left, company):
        return pb_utils.InferenceResponse([
            pb_utils.Tensor("LEFT", np.array([[left]], np.int32)),
            pb_utils.Tensor("COMPANY", np.array([[company]], np.int32)),
        ])
"""
_PLAIN = (
    _PREAMBLE
    + """
class TritonPythonModel(Counting):
    def execute(self, requests):
        responses = []
        for request in requests:
            left, company = self.step(request, len(requests))
            if left > 0:
                request.set_release_flags(AGAIN)
            responses.append(None if left > 0 else self.response(left, company))
        return responses
"""
)
_DECOUPLED = (
    _PREAMBLE
    + """
class TritonPythonModel(Counting):
    def execute(self, requests):
        for request in requests:
            left, company = self.step(request, len(requests))
            request.get_response_sender().send(self.response(left, company), flags=0 if left > 0 else FINAL)
            if left > 0:
                request.set_release_flags(AGAIN)
"""
)
_COROUTINES = _DECOUPLED.replace("    def execute", "    async def execute")
_WRONG = _PLAIN.replace("None if left > 0 else ", "")
_DYING = (
    _PREAMBLE
    + """
import os

class TritonPythonModel:
    def initialize(self, args):
        self.count = 0

    def execute(self, requests):
        self.count += 1
        if self.count == 3:
            os._exit(3)
        for request in requests:
            request.set_release_flags(AGAIN)
        return [None] * len(requests)
"""
)
_DECOUPLE = "model_transaction_policy { decoupled: true }\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("models")
    oldest = _TENSORS + _BATCHING % "oldest { max_candidate_sequences: 8 }"
    write_model(root, "oldest", oldest, {"1/model.py": _PLAIN})
    write_model(root, "direct", _TENSORS + _BATCHING % "direct { }", {"1/model.py": _PLAIN})
    write_model(
        root, "one_slot", _TENSORS + _BATCHING % "oldest { max_candidate_sequences: 1 }", {"1/model.py": _PLAIN}
    )
    write_model(root, "stream", oldest + _DECOUPLE, {"1/model.py": _DECOUPLED})
    write_model(root, "stream_direct", _TENSORS + _BATCHING % "direct { }" + _DECOUPLE, {"1/model.py": _DECOUPLED})
    write_model(root, "coroutines", oldest + _DECOUPLE, {"1/model.py": _COROUTINES})
    write_model(root, "wrong", oldest, {"1/model.py": _WRONG})
    write_model(root, "dying", oldest, {"1/model.py": _DYING})
    plain = _PLAIN.replace('key = value(request, "ID")', "key = 1").replace("request.correlation_id() == key", "True")
    plain = plain.replace('if value(request, "START"):', "if True:").replace("== 3, request", "== 1, request")
    write_model(root, "dynamic", _TENSORS + "dynamic_batching { }\n", {"1/model.py": plain})
    with serving(tmp_path_factory.mktemp("log") / "log", f"--model-repository={root}") as running:
        yield running


def count_input(count: int):
    tensor = grpcclient.InferInput("COUNT", [1, 1], "INT32")
    tensor.set_data_from_numpy(np.array([[count]], np.int32))
    return tensor


def ask(transport: Transport, model: str, count: int, **more) -> tuple[int, int]:
    with transport.new_client() as client:
        found = transport.infer(model, {"COUNT": np.array([[count]], np.int32)}, client=client, **more)
        return int(found["LEFT"][0, 0]), int(found["COMPANY"][0, 0])


def stats(server: ServerProcess, model: str) -> dict:
    return server.get(f"/v2/models/{model}/stats").json["model_stats"][0]


def streamed(server: ServerProcess, model: str, counts: list[int]) -> dict[str, list[int]]:
    """Return what a stream gets for requests that are sent at once: id to the values of LEFT."""
    answers: queue.Queue = queue.Queue()
    seen: dict[str, list[int]] = {str(number): [] for number in range(len(counts))}
    left = len(counts)
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for number, count in enumerate(counts):
            client.async_stream_infer(
                model, [count_input(count)], request_id=str(number), enable_empty_final_response=True
            )
        while left:
            result, error = answers.get(timeout=60)
            assert error is None
            response = result.get_response()
            if response.outputs:
                seen[response.id].append(int(result.as_numpy("LEFT")[0, 0]))
            left -= response.parameters["triton_final_response"].bool_param
    return seen


@pytest.mark.parametrize("model", ["oldest", "direct"])
def test_requests_share_batches_until_they_are_done(server, transport, model):
    before = stats(server, model)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda count: ask(transport, model, count), [60, 61, 62, 63]))
    assert [left for left, _ in found] == [0, 0, 0, 0]
    assert max(company for _, company in found) >= 2
    after = stats(server, model)
    assert after["inference_stats"]["success"]["count"] - before["inference_stats"]["success"]["count"] == 4
    assert 63 <= after["execution_count"] - before["execution_count"] < 60 + 61 + 62 + 63


def test_backlog_gets_slot_when_request_is_done(server, transport):
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda count: ask(transport, "one_slot", count), [5, 5, 5]))
    assert found == [(0, 1)] * 3


def test_id_of_the_client_is_kept(server, transport):
    assert ask(transport, "oldest", 3, sequence_id=77)[0] == 0
    assert ask(transport, "oldest", 3, sequence_id=77, sequence_start=True, sequence_end=True)[0] == 0


@pytest.mark.parametrize("model", ["stream", "stream_direct", "coroutines"])
def test_each_step_of_decoupled_model_sends_response(server, model):
    seen = streamed(server, model, [4, 6, 1])
    assert seen == {"0": [3, 2, 1, 0], "1": [5, 4, 3, 2, 1, 0], "2": [0]}
    response_stats = stats(server, "stream")["response_stats"] if model == "stream" else None
    if response_stats is not None:
        assert response_stats["0"]["success"]["count"] == 3
        assert response_stats["5"]["success"]["count"] == 1


def test_cancelled_stream_frees_its_slots(server):
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        first = threading.Event()
        client.start_stream(lambda result, error: first.set())
        client.async_stream_infer("stream", [count_input(1_000_000)])
        assert first.wait(60)
        client.stop_stream(cancel_requests=True)
    deadline = time.monotonic() + 60
    row = 'naiad_inference_executing_request_count{model="stream",version="1"} 0'
    while row not in server.get("/metrics", url=server.metrics_url).body.decode():
        assert time.monotonic() < deadline
    assert streamed(server, "stream", [2]) == {"0": [1, 0]}


def test_response_for_a_rescheduled_request_is_refused(server, transport):
    with pytest.raises(InferenceServerException, match=r"Expected a None object .* reschduled request"):
        ask(transport, "wrong", 3)
    assert ask(transport, "wrong", 1)[0] == 0


def test_only_iterative_models_may_reschedule(server, transport):
    with pytest.raises(InferenceServerException, match="iterative_sequence: true"):
        ask(transport, "dynamic", 3)


def test_worker_that_dies_fails_the_requests_that_iterate(server, transport):
    with pytest.raises(InferenceServerException, match="exited with code 3"):
        ask(transport, "dying", 3)
    deadline = time.monotonic() + 60
    while server.get("/v2/models/dying/ready").status != 200:
        assert time.monotonic() < deadline


def test_server_that_stops_lets_requests_finish(tmp_path: Path):
    config = _TENSORS + _BATCHING % "oldest { }"
    write_model(tmp_path / "models", "oldest", config, {"1/model.py": _PLAIN})
    with serving(tmp_path / "log", f"--model-repository={tmp_path / 'models'}") as server:
        with ThreadPoolExecutor(1) as pool, closing(new_transport("grpc", server)) as transport:
            found = pool.submit(ask, transport, "oldest", 300)
            wait_until(lambda: stats(server, "oldest")["execution_count"])
            server.signal()
            assert found.result(60)[0] == 0
        assert server.wait_exit() == 0
