"""Builds the benchmarks' model repository.

| model | what it is |
|---|---|
| add_sub | ONNX, two FP32[16] in, sum and difference out, max_batch_size 32, dynamic batching |
| add_sub_py | the same as a `model.py` |
| busy | ONNX, 60 products with a 256x256 matrix, about a millisecond |
| deep_1_0, deep_1_3000 | ONNX, 288 layers of 128 on one thread; a queue delay of 0 and 3000 us |
| count_py | decoupled `model.py`: COUNT responses with the numbers from 0 |
| chain | an ensemble of three add_sub steps |
| bls_py | a `model.py` that passes its inputs to add_sub_py, and answers what comes back |

The peers' own formats are made from the same functions, so that every server computes the same thing.
"""

import textwrap
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
ADD_SUB_ELEMENTS = 16

ADD_SUB_PY = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            a = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            b = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
            responses.append(
                pb_utils.InferenceResponse(
                    output_tensors=[pb_utils.Tensor("OUTPUT0", a + b), pb_utils.Tensor("OUTPUT1", a - b)]
                )
            )
        return responses
"""

BLS_PY = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self._pass_on(request) for request in requests]

    def _pass_on(self, request):
        call = pb_utils.InferenceRequest(
            model_name="{called}", inputs=request.inputs(), requested_output_names=["OUTPUT0", "OUTPUT1"]
        )
        response = call.exec()
        if response.has_error():
            return pb_utils.InferenceResponse(output_tensors=[], error=response.error())
        return pb_utils.InferenceResponse(output_tensors=response.output_tensors())
"""

COUNT_PY = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            count = int(pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy()[0])
            for number in range(count):
                tensor = pb_utils.Tensor("NUMBER", np.array([number], np.int32))
                sender.send(pb_utils.InferenceResponse(output_tensors=[tensor]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None
"""

COUNT_CONFIG = """
name: "count_py"
backend: "python"
max_batch_size: 0
model_transaction_policy { decoupled: true }
input [ { name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "NUMBER" data_type: TYPE_INT32 dims: [ 1 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
"""

ADD_SUB_CONFIG = """
name: "{name}"
backend: "{backend}"
max_batch_size: 32
input [
  {{ name: "INPUT0" data_type: TYPE_FP32 dims: [ 16 ] }},
  {{ name: "INPUT1" data_type: TYPE_FP32 dims: [ 16 ] }}
]
output [
  {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 16 ] }},
  {{ name: "OUTPUT1" data_type: TYPE_FP32 dims: [ 16 ] }}
]
dynamic_batching {{ }}
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
"""


CHAIN_CONFIG = """
name: "chain"
platform: "ensemble"
max_batch_size: 32
input [
  { name: "INPUT0" data_type: TYPE_FP32 dims: [ 16 ] },
  { name: "INPUT1" data_type: TYPE_FP32 dims: [ 16 ] }
]
output [
  { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 16 ] },
  { name: "OUTPUT1" data_type: TYPE_FP32 dims: [ 16 ] }
]
ensemble_scheduling { step [
  { model_name: "add_sub" model_version: -1
    input_map [ { key: "INPUT0" value: "INPUT0" }, { key: "INPUT1" value: "INPUT1" } ]
    output_map [ { key: "OUTPUT0" value: "a0" }, { key: "OUTPUT1" value: "a1" } ] },
  { model_name: "add_sub" model_version: -1
    input_map [ { key: "INPUT0" value: "a0" }, { key: "INPUT1" value: "a1" } ]
    output_map [ { key: "OUTPUT0" value: "b0" }, { key: "OUTPUT1" value: "b1" } ] },
  { model_name: "add_sub" model_version: -1
    input_map [ { key: "INPUT0" value: "b0" }, { key: "INPUT1" value: "b1" } ]
    output_map [ { key: "OUTPUT0" value: "OUTPUT0" }, { key: "OUTPUT1" value: "OUTPUT1" } ] }
] }
"""

BUSY_CONFIG = """
name: "busy"
backend: "onnxruntime"
max_batch_size: 0
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 256 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 256 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
parameters { key: "intra_op_thread_count" value { string_value: "1" } }
"""
DEEP_CONFIG = """
name: "deep_1_{delay_us}"
backend: "onnxruntime"
max_batch_size: 32
input [ {{ name: "x" data_type: TYPE_FP32 dims: [ 128 ] }} ]
output [ {{ name: "y" data_type: TYPE_FP32 dims: [ 128 ] }} ]
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
parameters {{ key: "intra_op_thread_count" value {{ string_value: "1" }} }}
dynamic_batching {{ max_queue_delay_microseconds: {delay_us} }}
"""
DEEP_WIDTH, DEEP_LAYERS, DEEP_WEIGHTS = 128, 288, 48
"""What a layer costs beside its arithmetic makes a batch of 32 about 6 times as fast as its rows one by one. Layers
share weights, which fit a cache."""
BUSY_LAYERS = 60
"""About a millisecond on one core."""


def _tensor(name: str, dims: Sequence[int | str]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)


def _model(graph: onnx.GraphProto) -> onnx.ModelProto:
    # Old enough for every ONNX Runtime that the peers bring.
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)


def add_sub() -> onnx.ModelProto:
    """Return the add/sub model."""
    dims = ("batch", ADD_SUB_ELEMENTS)
    return _model(
        helper.make_graph(
            [
                helper.make_node("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"]),
                helper.make_node("Sub", ["INPUT0", "INPUT1"], ["OUTPUT1"]),
            ],
            "add_sub",
            [_tensor("INPUT0", dims), _tensor("INPUT1", dims)],
            [_tensor("OUTPUT0", dims), _tensor("OUTPUT1", dims)],
        )
    )


def heavy_add_sub(mebibytes: int, seed: int = 0) -> onnx.ModelProto:
    """Return the add/sub model with one more output, and a number of random weights behind it, in pieces of 1 MiB."""
    model, random = add_sub(), np.random.default_rng(seed)
    graph = model.graph
    for number in range(mebibytes):
        weights = random.random((ADD_SUB_ELEMENTS, 2**18 // ADD_SUB_ELEMENTS), np.float32)
        graph.initializer.append(numpy_helper.from_array(weights, f"w{number}"))
        graph.node.append(helper.make_node("MatMul", ["INPUT0", f"w{number}"], [f"h{number}"]))
        graph.node.append(helper.make_node("ReduceSum", [f"h{number}", "last"], [f"s{number}"]))
    graph.initializer.append(numpy_helper.from_array(np.array([1]), "last"))
    graph.node.append(helper.make_node("Sum", [f"s{number}" for number in range(mebibytes)], ["OUTPUT2"]))
    graph.output.append(_tensor("OUTPUT2", ["batch", 1]))
    return model


def busy(layers: int = BUSY_LAYERS) -> onnx.ModelProto:
    """Return a model that multiplies a vector of 256 with the same matrix again and again."""
    # A permutation: what goes in comes out, however often.
    matrix = np.roll(np.eye(256, dtype=np.float32), 1, axis=1)
    names = ["INPUT0", *(f"t{number}" for number in range(layers - 1)), "OUTPUT0"]
    nodes = [helper.make_node("MatMul", [a, "matrix"], [b]) for a, b in pairwise(names)]
    weights = [numpy_helper.from_array(matrix, "matrix")]
    return _model(helper.make_graph(nodes, "busy", [_tensor("INPUT0", [256])], [_tensor("OUTPUT0", [256])], weights))


def deep() -> onnx.ModelProto:
    """Return a narrow network of many layers with random weights."""
    random, shape = np.random.default_rng(0), (DEEP_WIDTH, DEEP_WIDTH)
    weights = [random.normal(0.0, (2.0 / DEEP_WIDTH) ** 0.5, shape).astype(np.float32) for _ in range(DEEP_WEIGHTS)]
    nodes = []
    for layer in range(DEEP_LAYERS):
        source, out = f"r{layer - 1}" if layer else "x", "y" if layer == DEEP_LAYERS - 1 else f"r{layer}"
        nodes.append(helper.make_node("MatMul", [source, f"w{layer % DEEP_WEIGHTS}"], [f"m{layer}"]))
        nodes.append(helper.make_node("Relu", [f"m{layer}"], [out]))
    tensors = [numpy_helper.from_array(values, f"w{number}") for number, values in enumerate(weights)]
    dims = ("batch", DEEP_WIDTH)
    return _model(helper.make_graph(nodes, "deep", [_tensor("x", dims)], [_tensor("y", dims)], tensors))


def _write(repository: Path, name: str, config: str, filename: str, content: bytes) -> None:
    version = repository / name / "1"
    version.mkdir(parents=True, exist_ok=True)
    (version / filename).write_bytes(content)
    (repository / name / "config.pbtxt").write_text(textwrap.dedent(config).lstrip())


def write_add_sub(repository: Path) -> None:
    """Write the add/sub ONNX model."""
    config = ADD_SUB_CONFIG.format(name="add_sub", backend="onnxruntime")
    _write(repository, "add_sub", config, "model.onnx", add_sub().SerializeToString())


def write_add_sub_py(repository: Path) -> None:
    """Write the add/sub Python model."""
    config = ADD_SUB_CONFIG.format(name="add_sub_py", backend="python")
    _write(repository, "add_sub_py", config, "model.py", ADD_SUB_PY.lstrip().encode())


def write_bls(repository: Path) -> None:
    """Write a Python model that calls the Python add/sub."""
    config = ADD_SUB_CONFIG.format(name="bls_py", backend="python")
    _write(repository, "bls_py", config, "model.py", BLS_PY.format(called="add_sub_py").lstrip().encode())


def write_count_py(repository: Path) -> None:
    """Write the decoupled Python model."""
    _write(repository, "count_py", COUNT_CONFIG, "model.py", COUNT_PY.lstrip().encode())


def write_chain(repository: Path) -> None:
    """Write an ensemble of three add/sub steps."""
    (repository / "chain" / "1").mkdir(parents=True, exist_ok=True)
    (repository / "chain" / "config.pbtxt").write_text(CHAIN_CONFIG.lstrip())


def write_busy(repository: Path) -> None:
    """Write a model of about a millisecond."""
    _write(repository, "busy", BUSY_CONFIG, "model.onnx", busy().SerializeToString())


def write_deep(repository: Path) -> None:
    """Write the deep network without and with a queue delay."""
    for delay_us in (0, 3000):
        config = DEEP_CONFIG.format(delay_us=delay_us)
        _write(repository, f"deep_1_{delay_us}", config, "model.onnx", deep().SerializeToString())


WRITERS: dict[str, Callable[[Path], None]] = {
    "add_sub": write_add_sub,
    "add_sub_py": write_add_sub_py,
    "bls_py": write_bls,
    "busy": write_busy,
    "chain": write_chain,
    "count_py": write_count_py,
    "deep": write_deep,
}


def write_repository(repository: Path, names: Sequence[str]) -> None:
    """Write the models called `names`; those that are there already are written again."""
    for name in names:
        WRITERS[name](repository)
