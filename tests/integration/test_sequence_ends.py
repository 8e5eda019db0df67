"""Python models are notified of sequences that end without END."""

import json
import threading
import time
import urllib.request
from collections.abc import Iterator

import numpy as np
import pytest
import tritonclient.grpc as grpcclient

from support.model_repository import write_model
from support.server_process import ServerProcess, serving

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

_CONFIG = """
backend: "python"
max_batch_size: 4
input [ { name: "X" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "LIVE" data_type: TYPE_INT32 dims: [ 1 ] } ]
sequence_batching { max_sequence_idle_microseconds: 300000 %s }
%s
"""
_MODEL = """
import time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.states = {}

    def sequence_ended(self, correlation_id, reason):
        if correlation_id == 13:
            raise ValueError("thirteen")
        del self.states[correlation_id]
        pb_utils.Logger.log_info(f"ended {correlation_id!r} {reason} {len(self.states)} left")

    def live(self, request):
        value = float(pb_utils.get_input_tensor_by_name(request, "X").as_numpy().ravel()[0])
        time.sleep(value)
        self.states[request.correlation_id()] = value
        return pb_utils.InferenceResponse([pb_utils.Tensor("LIVE", np.array([[len(self.states)]], np.int32))])
"""
_PLAIN = (
    _MODEL
    + """
    def execute(self, requests):
        return [self.live(request) for request in requests]
"""
)
_DECOUPLED = (
    _MODEL
    + """
    def execute(self, requests):
        for request in requests:
            request.get_response_sender().send(self.live(request), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("models")
    write_model(root, "direct", _CONFIG % ("direct { }", ""), {"1/model.py": _PLAIN})
    write_model(root, "oldest", _CONFIG % ("oldest { max_candidate_sequences: 4 }", ""), {"1/model.py": _PLAIN})
    decoupled = _CONFIG % ("direct { }", "model_transaction_policy { decoupled: true }")
    write_model(root, "decoupled", decoupled, {"1/model.py": _DECOUPLED})
    with serving(tmp_path_factory.mktemp("server") / "log", f"--model-repository={root}") as running:
        yield running


def given(seconds: float = 0.0) -> list[grpcclient.InferInput]:
    made = grpcclient.InferInput("X", [1, 1], "FP32")
    made.set_data_from_numpy(np.array([[seconds]], np.float32))
    return [made]


def wait_for(server: ServerProcess, count: str, value: int) -> None:
    """Wait until a number of requests of the model are `waiting` or `executing`."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with urllib.request.urlopen(f"http://{server.http_url}/v2/models/direct/explain", timeout=60) as answer:
            if json.load(answer)[count] == value:
                return
        time.sleep(0.01)
    raise AssertionError(f"never {value} {count}")


@pytest.mark.parametrize(("model", "sequence"), [("direct", 21), ("oldest", 22), ("direct", "a name")])
def test_model_is_notified_of_expiry_without_traffic(server, model, sequence) -> None:
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        client.infer(model, given(), sequence_id=sequence, sequence_start=True)
        server.wait_log(f"ended {sequence!r} expired 0 left")


def test_decoupled_model_is_notified_too(server) -> None:
    answered = threading.Event()
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        client.start_stream(lambda result, error: answered.set())
        client.async_stream_infer("decoupled", given(), sequence_id=23, sequence_start=True)
        assert answered.wait(60)
        server.wait_log("ended 23 expired 0 left")


def test_model_is_notified_of_cancelled_sequence(server) -> None:
    done = threading.Event()
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        # A channel that is still connecting sends what waits in any order.
        client.async_infer("direct", given(5.0), lambda result, error: None, sequence_id=24, sequence_start=True)
        wait_for(server, "executing", 1)
        waiting = client.async_infer("direct", given(), lambda result, error: done.set(), sequence_id=24)
        wait_for(server, "waiting", 1)
        waiting.cancel()
        assert done.wait(60)
        server.wait_log("ended 24 cancelled 0 left")


def test_exception_in_sequence_ended_is_only_logged(server) -> None:
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        client.infer("direct", given(), sequence_id=13, sequence_start=True)
        server.wait_log("ValueError: thirteen")
        result = client.infer("direct", given(), sequence_id=13, sequence_start=True, sequence_end=True)
        assert result.as_numpy("LIVE").item() >= 1
