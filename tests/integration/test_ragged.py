"""Requests of different lengths in one ONNX batch, with stock tritonclient over HTTP and gRPC."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from support.model_repository import write_model
from support.onnx_models import BATCH_INPUTS, RAGGED_CONFIG, batch_inputs, ragged
from support.server_process import ServerProcess, serving
from support.transport import Transport

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.parametrize("transport", ["http1", "grpc"], indirect=True),  # a server for each test
]

COUNT = 6
PYTHON_CONFIG = """
backend: "python"
max_batch_size: 8
input [ { name: "DATA" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true } ]
output [ { name: "SUM" data_type: TYPE_FP32 dims: [ 1 ] }, { name: "TOGETHER" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""
STATED_CONFIG = "\n".join(
    [
        'backend: "onnxruntime"',
        "max_batch_size: 8",
        'input [ { name: "DATA" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true } ]',
        'output [ { name: "SAME" data_type: TYPE_FP32 dims: [ -1 ] } ]',
        'batch_output [ { kind: BATCH_SCATTER_WITH_INPUT_SHAPE target_name: "SAME" source_input: "DATA" } ]',
        *(f'output {{ name: "SEEN_{name}" data_type: TYPE_INT32 dims: [ 1 ] }}' for name in BATCH_INPUTS),
        *(
            f'batch_input {{ kind: {kind} target_name: "{name}" data_type: TYPE_INT32 source_input: "DATA" }}'
            for name, kind in BATCH_INPUTS.items()
        ),
    ]
)
PYTHON = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        together = pb_utils.Tensor("TOGETHER", np.array([[len(requests)]], np.int32))
        arrays = [pb_utils.get_input_tensor_by_name(request, "DATA").as_numpy() for request in requests]
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("SUM", array.sum(axis=1, keepdims=True)), together])
            for array in arrays
        ]
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    config = 'backend: "onnxruntime"\n' + RAGGED_CONFIG + "instance_group { count: 1 }\ndynamic_batching { }\n"
    write_model(tmp_path / "models", "ragged", config, {"1/model.onnx": ragged()})
    config = STATED_CONFIG + "\ninstance_group { count: 1 }\ndynamic_batching { }\n"
    write_model(tmp_path / "models", "batch_inputs", config, {"1/model.onnx": batch_inputs()})
    config = PYTHON_CONFIG + "instance_group { count: 1 }\ndynamic_batching { }\n"
    write_model(tmp_path / "models", "lengths", config, {"1/model.py": PYTHON})
    with serving(
        tmp_path / "log",
        f"--model-repository={tmp_path / 'models'}",
        environment={"TRITONSERVER_DELAY_SCHEDULER": str(COUNT)},
    ) as running:
        yield running


def ask_together(transport: Transport, model: str, outputs: tuple[str, ...]) -> list[tuple]:
    """Return two outputs for each of the lengths 1 to COUNT, whose requests wait together."""

    def ask(length: int) -> tuple:
        array = np.arange(length, dtype=np.float32).reshape(1, length)
        with transport.new_client() as client:
            result = transport.infer(model, {"DATA": array}, client=client)
            return tuple(result[name].tolist() for name in outputs)

    with ThreadPoolExecutor(COUNT) as pool:
        return list(pool.map(ask, range(1, COUNT + 1)))


def test_requests_of_any_length_share_one_execution(server: ServerProcess, transport: Transport):
    answers = ask_together(transport, "ragged", ("SUM", "DOUBLED"))
    for length, (total, doubled) in enumerate(answers, start=1):
        assert total == [[sum(range(length))]]
        assert doubled == [[2 * number for number in range(length)]]
    statistics = server.get("/v2/models/ragged/stats").json["model_stats"][0]
    assert (statistics["inference_count"], statistics["execution_count"]) == (COUNT, 1)


def test_every_kind_of_batch_input_describes_batch(server: ServerProcess, transport: Transport):
    names = ("SAME", *(f"SEEN_{name}" for name in BATCH_INPUTS))
    begins = []
    for length, (same, *seen) in enumerate(ask_together(transport, "batch_inputs", names), start=1):
        assert same == [[float(number) for number in range(length)]]
        count, ends, begin, longest, item, flat = (value for ((value,),) in seen)
        assert count == item == flat == length
        assert ends == begin + length
        assert longest == COUNT
        begins.append((begin, ends))
    # The requests came in any order; end to end they are the whole batch.
    ordered = sorted(begins)
    assert [begin for begin, _ in ordered] == [0, *(end for _, end in ordered[:-1])]
    assert ordered[-1][1] == sum(range(COUNT + 1))


def test_python_model_gets_requests_of_any_length_together(server: ServerProcess, transport: Transport):
    answers = ask_together(transport, "lengths", ("SUM", "TOGETHER"))
    assert answers == [([[sum(range(length))]], [[COUNT]]) for length in range(1, COUNT + 1)]
