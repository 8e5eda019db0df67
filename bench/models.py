"""Builds the benchmarks' model repository.

| model | what it is |
|---|---|
| add_sub | ONNX, two FP32[16] in, sum and difference out, max_batch_size 32, dynamic batching |
| add_sub_py | the same as a `model.py` |
| count_py | decoupled `model.py`: COUNT responses with the numbers from 0 |
| chain | an ensemble of three add_sub steps |
| bls_py | a `model.py` that passes its inputs to add_sub_py, and answers what comes back |

The peers' own formats are made from the same functions, so that every server computes the same thing.
"""

from collections.abc import Callable, Sequence
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
name: "count_py" backend: "python" max_batch_size: 0
model_transaction_policy { decoupled: true }
input [ { name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "NUMBER" data_type: TYPE_INT32 dims: [ 1 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
"""
ADD_SUB_TENSORS = """
max_batch_size: 32
input { name: "INPUT0" data_type: TYPE_FP32 dims: 16 } input { name: "INPUT1" data_type: TYPE_FP32 dims: 16 }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 16 } output { name: "OUTPUT1" data_type: TYPE_FP32 dims: 16 }
"""


def add_sub_config(name: str, backend: str) -> str:
    """Return the configuration of an add/sub model with one instance and dynamic batching."""
    more = "dynamic_batching { } instance_group [ { count: 1 kind: KIND_CPU } ]"
    return f'name: "{name}" backend: "{backend}" {ADD_SUB_TENSORS} {more}\n'


def ensemble_config(name: str, steps: Sequence[str]) -> str:
    """Return the configuration of an ensemble of add/sub models, each of which takes what the one before returns."""
    parts = []
    for number, model in enumerate(steps):
        before = "INPUT" if number == 0 else f"t{number}_"
        after = "OUTPUT" if number == len(steps) - 1 else f"t{number + 1}_"
        given, made = (
            " ".join(f'{kind}_map {{ key: "{kind.upper()}{place}" value: "{names}{place}" }}' for place in (0, 1))
            for kind, names in (("input", before), ("output", after))
        )
        parts.append(f'{{ model_name: "{model}" model_version: -1 {given} {made} }}')
    scheduling = f"ensemble_scheduling {{ step [ {', '.join(parts)} ] }}"
    return f'name: "{name}" platform: "ensemble" {ADD_SUB_TENSORS} {scheduling}\n'


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


def _write(repository: Path, name: str, config: str, filename: str = "", content: bytes = b"") -> None:
    (repository / name / "1").mkdir(parents=True, exist_ok=True)
    (repository / name / "config.pbtxt").write_text(config)
    if filename:
        (repository / name / "1" / filename).write_bytes(content)


def write_add_sub(repository: Path) -> None:
    """Write the add/sub ONNX model."""
    config = add_sub_config("add_sub", "onnxruntime")
    _write(repository, "add_sub", config, "model.onnx", add_sub().SerializeToString())


def _python(name: str, source: str) -> Callable[[Path], None]:
    return lambda repository: _write(repository, name, add_sub_config(name, "python"), "model.py", source.encode())


WRITERS: dict[str, Callable[[Path], None]] = {
    "add_sub": write_add_sub,
    "add_sub_py": _python("add_sub_py", ADD_SUB_PY),
    "bls_py": _python("bls_py", BLS_PY.format(called="add_sub_py")),
    "chain": lambda repository: _write(repository, "chain", ensemble_config("chain", ["add_sub"] * 3)),
    "count_py": lambda repository: _write(repository, "count_py", COUNT_CONFIG, "model.py", COUNT_PY.encode()),
}


def write_repository(repository: Path, names: Sequence[str]) -> None:
    """Write the models called `names`; those that are there already are written again."""
    for name in names:
        WRITERS[name](repository)
