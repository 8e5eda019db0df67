"""Warm-up before a model is ready: every sample on every instance, and what a sample that fails does."""

import time
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from support import onnx_models
from support.model_repository import add_sub_config, write_model

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

_COUNTING = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.seen = []

    def execute(self, requests):
        values = [pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
        self.seen.append([value.ravel().tolist() for value in values])
        if any((value < 0).any() for value in values):
            raise ValueError("it is below zero")
        text = np.array([[repr(self.seen[:-1]).encode()]], np.object_)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("SEEN", text)]) for _ in requests]
"""


def counting_config(warmup: str, instances: int = 1) -> str:
    return f"""
      backend: "python" max_batch_size: 4
      input [ {{ name: "IN" data_type: TYPE_FP32 dims: [ 2 ] }} ]
      output [ {{ name: "SEEN" data_type: TYPE_STRING dims: [ 1 ] }} ]
      instance_group [ {{ count: {instances} kind: KIND_CPU }} ]
      model_warmup [ {warmup} ]
    """


def sample(name: str, data: str, *, batch_size: int = 1, count: int = 0, dims: str = "2") -> str:
    inputs = f'inputs {{ key: "IN" value {{ data_type: TYPE_FP32 dims: [ {dims} ] {data} }} }}'
    return f'{{ name: "{name}" batch_size: {batch_size} count: {count} {inputs} }}'


def test_samples_run_in_order_before_model_is_ready(tmp_path: Path, start_server) -> None:
    # W1
    samples = [
        sample("zeros", "zero_data: true", batch_size=2),
        sample("skipped", "zero_data: true", batch_size=0),
        sample("file", 'input_data_file: "numbers"', count=2),
        sample("random", "random_data: true"),
    ]
    write_model(tmp_path / "models", "counting", counting_config(", ".join(samples)), {"1/model.py": _COUNTING})
    (tmp_path / "models" / "counting" / "warmup").mkdir()
    (tmp_path / "models" / "counting" / "warmup" / "numbers").write_bytes(np.array([7, 8], np.float32).tobytes())
    server = start_server(tmp_path / "models")
    server.wait_ready()
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        given = grpcclient.InferInput("IN", [1, 2], "FP32")
        given.set_data_from_numpy(np.ones((1, 2), np.float32))
        (text,) = client.infer("counting", [given]).as_numpy("SEEN")[0]
        seen = eval(text)
        assert seen[:3] == [[[0, 0], [0, 0]], [[7, 8]], [[7, 8]]]
        assert len(seen) == 4
        assert 0 <= min(seen[3][0]) <= max(seen[3][0]) < 1
        # Triton: warm-up is not counted.
        assert client.get_inference_statistics("counting").model_stats[0].execution_count == 1


def test_every_instance_is_warmed_up(tmp_path: Path, start_server) -> None:
    # W1
    config = counting_config(sample("zeros", "zero_data: true"), instances=2)
    write_model(tmp_path / "models", "counting", config, {"1/model.py": _COUNTING})
    server = start_server(tmp_path / "models")
    server.wait_ready()
    for number in range(2):
        assert f"instance 'counting_0_{number}' executed warmup sample 'zeros'" in server.log_text()


@pytest.mark.parametrize(
    ("warmup", "reason"),
    [
        (
            sample("bad", 'input_data_file: "negative"'),
            "failed to run warmup sample 'bad': .*instance 'counting_0_0'",
        ),
        (sample("wide", "zero_data: true", dims="3"), "warmup sample 'wide': .*unexpected shape for input 'IN'"),
        (sample("lost", 'input_data_file: "absent"'), "warmup sample 'lost', input 'IN': .*absent cannot be read"),
    ],
)
def test_a_sample_that_fails_fails_the_load(tmp_path: Path, start_server, warmup, reason) -> None:
    # W2
    write_model(tmp_path / "models", "counting", counting_config(warmup), {"1/model.py": _COUNTING})
    (tmp_path / "models" / "counting" / "warmup").mkdir()
    (tmp_path / "models" / "counting" / "warmup" / "negative").write_bytes(np.array([-1, 8], np.float32).tobytes())
    server = start_server(tmp_path / "models", "--exit-on-error=false")
    server.wait_log(reason)


def test_an_onnx_model_is_warmed_up(tmp_path: Path, start_server) -> None:
    warmup = """model_warmup [ { name: "ones" batch_size: 8 inputs [
      { key: "INPUT0" value { data_type: TYPE_FP32 dims: [ 16 ] random_data: true } },
      { key: "INPUT1" value { data_type: TYPE_FP32 dims: [ 16 ] zero_data: true } } ] } ]"""
    config = add_sub_config("onnxruntime", extra=warmup)
    write_model(tmp_path / "models", "add_sub", config, {"1/model.onnx": onnx_models.add_sub()})
    server = start_server(tmp_path / "models")
    server.wait_ready()
    assert "executed warmup sample 'ones'" in server.log_text()


_MORTAL = _COUNTING.replace(
    "        if any((value < 0)",
    """        if any((value == 9).any() for value in values):
            os._exit(3)
        if os.path.exists(os.path.join(pb_utils.get_model_dir(), "sick")):
            raise ValueError("it is sick")
        if any((value < 0)""",
).replace("import numpy", "import os\nimport numpy")


@pytest.fixture
def mortal(tmp_path: Path, start_server):
    """A server with a model that dies of 9, and cannot execute while there is a file `sick`."""
    config = counting_config(sample("zeros", "zero_data: true", count=2))
    config += 'parameters { key: "restart_limit" value { string_value: "100" } }'
    config += 'parameters { key: "restart_wait_s" value { string_value: "3" } }'
    write_model(tmp_path / "models", "counting", config, {"1/model.py": _MORTAL})
    server = start_server(tmp_path / "models")
    server.wait_ready()
    return server


def ask(server, number: float) -> str:
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        given = grpcclient.InferInput("IN", [1, 2], "FP32")
        given.set_data_from_numpy(np.full((1, 2), number, np.float32))
        return client.infer("counting", [given]).as_numpy("SEEN")[0, 0].decode()


def ready(server) -> bool:
    return server.get("/v2/models/counting/ready").status == 200


def wait_for(condition, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_replacement_worker_warms_up_before_requests(mortal) -> None:
    # W3
    for _ in range(2):
        with pytest.raises(InferenceServerException):
            ask(mortal, 9)
        wait_for(lambda: ready(mortal))
        # Nothing came between the start and the warm-up, however many clients waited.
        assert eval(ask(mortal, 1))[:2] == [[[0, 0]], [[0, 0]]]


def test_worker_gets_no_requests_until_warm_up_succeeds(mortal, tmp_path: Path) -> None:
    sick = tmp_path / "models" / "counting" / "1" / "sick"
    sick.touch()
    with pytest.raises(InferenceServerException):
        ask(mortal, 9)
    mortal.wait_log("was killed because its warm-up failed: .*failed to run warmup sample 'zeros'.*it is sick")
    assert not ready(mortal)
    with pytest.raises(InferenceServerException, match=r"warm-up failed|restarted"):
        ask(mortal, 1)
    sick.unlink()
    wait_for(lambda: ready(mortal))
    assert eval(ask(mortal, 1))[:2] == [[[0, 0]], [[0, 0]]]


def test_server_stops_while_worker_is_warmed_up(mortal, tmp_path: Path) -> None:
    (tmp_path / "models" / "counting" / "1" / "sick").touch()
    with pytest.raises(InferenceServerException):
        ask(mortal, 9)
    mortal.wait_log("warm-up failed")
    mortal.signal()
    assert mortal.wait_exit() == 0


_LATER = """
import os
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.answered = 0

    def execute(self, requests):
        for request in requests:
            if (pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() == 9).any():
                os._exit(3)
            threading.Thread(target=self.answer, args=(request.get_response_sender(),), daemon=True).start()

    def answer(self, sender):
        time.sleep(0.05)
        self.answered += 1
        text = np.array([[str(self.answered).encode()]], np.object_)
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("SEEN", text)]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def test_decoupled_model_may_answer_samples_late(tmp_path: Path, start_server) -> None:
    config = counting_config(sample("zeros", "zero_data: true", batch_size=2, count=2))
    config += "model_transaction_policy { decoupled: true }"
    write_model(tmp_path / "models", "later", config, {"1/model.py": _LATER})
    server = start_server(tmp_path / "models")
    server.wait_ready()

    def generate(number: float):
        return server.post("/v2/models/later/generate", {"IN": [number, number]})

    assert generate(1).json["SEEN"] == "5"
    # Nor does the worker that takes its place wait without a limit.
    assert generate(9).status != 200
    wait_for(lambda: server.get("/v2/models/later/ready").status == 200)
    assert generate(1).json["SEEN"] == "5"
