"""Builds the benchmark's model repository.

    python -m bench.models DIRECTORY

| model | what it is |
|---|---|
| add_sub | ONNX, two FP32[16] in, sum and difference out, max_batch_size 32, dynamic batching |
| add_sub_py | the same as a `model.py` |
| resnet50 | ONNX, a ResNet-50 with random weights: 25.5 M parameters, 3x224x224 to 1000 classes |
| image_mean | ONNX, the mean of a 3x224x224 image: what an image costs beside the model |
| identity_64m | ONNX, one FP32 tensor of any length in and out |
| count_py | decoupled `model.py`: COUNT responses with the numbers from 0 |
| repeat | the repeat backend |
| running_sum | ONNX, sequences: FP32[1] in, the sum of the sequence out, kept as implicit state |
| chain | an ensemble of three add_sub steps |
| bls_onnx, bls_py | a `model.py` that passes its inputs to add_sub, or to add_sub_py, and answers what comes back |
| deep_N_DELAY, deep_N_adaptive | ONNX, 288 layers of 128, N instances of a thread; a fixed delay in us or adaptive |
| busy, busy_cached | ONNX, 60 products with a 256x256 matrix, about a millisecond; the second with a response cache |

The peers' own formats are made from the same functions, so that every server computes the same thing.
"""

import functools
import sys
import textwrap
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
ADD_SUB_ELEMENTS = 16
RESNET50_STAGES = ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2))
"""Blocks, inner channels and stride of each stage."""

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

RESNET50_CONFIG = """
name: "resnet50"
backend: "onnxruntime"
max_batch_size: 8
input [ {{ name: "image" data_type: TYPE_FP32 dims: [ 3, 224, 224 ] }} ]
output [ {{ name: "logits" data_type: TYPE_FP32 dims: [ 1000 ] }} ]
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
parameters {{ key: "intra_op_thread_count" value {{ string_value: "{threads}" }} }}
"""

IMAGE_MEAN_CONFIG = """
name: "image_mean"
backend: "onnxruntime"
max_batch_size: 8
input [ { name: "image" data_type: TYPE_FP32 dims: [ 3, 224, 224 ] } ]
output [ { name: "mean" data_type: TYPE_FP32 dims: [ 1 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
"""

IDENTITY_64M_CONFIG = """
name: "identity_64m"
backend: "onnxruntime"
max_batch_size: 0
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
"""


RUNNING_SUM_CONFIG = """
name: "running_sum"
backend: "onnxruntime"
max_batch_size: 8
input [ { name: "INPUT" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_FP32 dims: [ 1 ] } ]
sequence_batching {
  max_sequence_idle_microseconds: 10000000
  oldest { max_candidate_sequences: 64 }
  state [ { input_name: "STATE_IN" output_name: "STATE_OUT" data_type: TYPE_FP32 dims: [ 1 ] } ]
}
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
name: "{name}"
backend: "onnxruntime"
max_batch_size: 0
input [ {{ name: "INPUT0" data_type: TYPE_FP32 dims: [ 256 ] }} ]
output [ {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 256 ] }} ]
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
response_cache {{ enable: {cached} }}
parameters {{ key: "intra_op_thread_count" value {{ string_value: "1" }} }}
"""
BUSY_LAYERS = 60
"""About a millisecond on one core."""


DEEP_CONFIG = """
name: "{name}"
backend: "onnxruntime"
max_batch_size: 32
input [ {{ name: "x" data_type: TYPE_FP32 dims: [ 128 ] }} ]
output [ {{ name: "y" data_type: TYPE_FP32 dims: [ 128 ] }} ]
instance_group [ {{ count: {instances} kind: KIND_CPU }} ]
parameters {{ key: "intra_op_thread_count" value {{ string_value: "1" }} }}
dynamic_batching {{ {delay} }}
{parameters}
"""
DEEP_WIDTH, DEEP_LAYERS, DEEP_WEIGHTS = 128, 288, 48
"""What a layer costs beside its arithmetic makes a batch of 32 about 6 times as fast as its rows one by one. Layers
share weights, which fit a cache. A row takes 1 to 2 ms: of a model of 0.3 ms the p99 was that of the machine's
pauses, and differed by 60 % between two turns of the same server."""
DEEP_DELAYS_US = (0, 200, 500, 1000, 3000)
DEEP_INSTANCES = (1, 2)
ADAPTIVE = "adaptive"
_ADAPTIVE_PARAMETER = 'parameters { key: "adaptive_batching" value { string_value: "true" } }'


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


def image_mean() -> onnx.ModelProto:
    """Return a model that averages images of any number."""
    nodes = [
        helper.make_node("Reshape", ["image", "flat"], ["rows"]),
        helper.make_node("ReduceMean", ["rows"], ["mean"], axes=[1], keepdims=1),
    ]
    flat = numpy_helper.from_array(np.array([0, -1], np.int64), "flat")
    image, mean = _tensor("image", ["batch", 3, 224, 224]), _tensor("mean", ["batch", 1])
    return _model(helper.make_graph(nodes, "image_mean", [image], [mean], [flat]))


def identity_64m() -> onnx.ModelProto:
    """Return a model that copies a vector of any length."""
    node = helper.make_node("Identity", ["INPUT0"], ["OUTPUT0"])
    return _model(
        helper.make_graph([node], "identity", [_tensor("INPUT0", ["length"])], [_tensor("OUTPUT0", ["length"])])
    )


def running_sum() -> onnx.ModelProto:
    """Return a model that adds its input to its state."""
    nodes = [
        helper.make_node("Add", ["INPUT", "STATE_IN"], ["OUTPUT"]),
        helper.make_node("Identity", ["OUTPUT"], ["STATE_OUT"]),
    ]
    inputs = [_tensor(name, ["batch", 1]) for name in ("INPUT", "STATE_IN")]
    outputs = [_tensor(name, ["batch", 1]) for name in ("OUTPUT", "STATE_OUT")]
    return _model(helper.make_graph(nodes, "running_sum", inputs, outputs))


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
    random = np.random.default_rng(0)
    scale = (2.0 / DEEP_WIDTH) ** 0.5
    nodes, weights, last = [], [], "x"
    for number in range(DEEP_WEIGHTS):
        values = random.normal(0.0, scale, (DEEP_WIDTH, DEEP_WIDTH)).astype(np.float32)
        weights.append(numpy_helper.from_array(values, f"w{number}"))
    for layer in range(DEEP_LAYERS):
        out = "y" if layer == DEEP_LAYERS - 1 else f"r{layer}"
        nodes.append(helper.make_node("MatMul", [last, f"w{layer % DEEP_WEIGHTS}"], [f"m{layer}"]))
        nodes.append(helper.make_node("Relu", [f"m{layer}"], [out]))
        last = out
    dims = ("batch", DEEP_WIDTH)
    return _model(helper.make_graph(nodes, "deep", [_tensor("x", dims)], [_tensor("y", dims)], weights))


class _ResNet:
    """Collects the nodes and random weights of a residual network; batch normalisation is folded into the convs."""

    def __init__(self, seed: int = 0) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._random = np.random.default_rng(seed)

    def _weight(self, name: str, shape: Sequence[int]) -> str:
        # He's initialisation keeps activations from growing or vanishing over fifty layers.
        fan_in = int(np.prod(shape[1:])) if len(shape) > 1 else 1
        values = self._random.normal(0.0, (2.0 / fan_in) ** 0.5 if len(shape) > 1 else 0.0, shape)
        self.weights.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    def conv(self, source: str, name: str, channels: tuple[int, int], kernel: int, stride: int = 1) -> str:
        """Add a convolution with bias; `channels` are in and out."""
        inputs = [
            source,
            self._weight(f"{name}.weight", (channels[1], channels[0], kernel, kernel)),
            self._weight(f"{name}.bias", (channels[1],)),
        ]
        pad = kernel // 2
        self.nodes.append(
            helper.make_node(
                "Conv", inputs, [name], kernel_shape=[kernel, kernel], strides=[stride, stride], pads=[pad] * 4
            )
        )
        return name

    def relu(self, source: str) -> str:
        """Add an activation."""
        self.nodes.append(helper.make_node("Relu", [source], [f"{source}.relu"]))
        return f"{source}.relu"

    def bottleneck(
        self, source: str, name: str, channels: tuple[int, int, int], stride: int, *, project: bool
    ) -> str:
        """Add a residual block of a 1x1, a 3x3 and a 1x1 convolution; `channels` are in, inner and out."""
        outer, inner, out = channels
        path = self.relu(self.conv(source, f"{name}.conv1", (outer, inner), 1))
        path = self.relu(self.conv(path, f"{name}.conv2", (inner, inner), 3, stride))
        path = self.conv(path, f"{name}.conv3", (inner, out), 1)
        skip = self.conv(source, f"{name}.skip", (outer, out), 1, stride) if project else source
        self.nodes.append(helper.make_node("Add", [path, skip], [f"{name}.sum"]))
        return self.relu(f"{name}.sum")

    def classify(self, source: str, channels: int, classes: int) -> None:
        """Add pooling and the last layer, whose output is `logits`."""
        self.nodes.append(helper.make_node("GlobalAveragePool", [source], ["pooled"]))
        self.nodes.append(helper.make_node("Flatten", ["pooled"], ["features"]))
        weights = [self._weight("fc.weight", (classes, channels)), self._weight("fc.bias", (classes,))]
        self.nodes.append(helper.make_node("Gemm", ["features", *weights], ["logits"], transB=1))


def resnet50() -> onnx.ModelProto:
    """Return a ResNet-50 with random weights."""
    net = _ResNet()
    last = net.relu(net.conv("image", "stem", (3, 64), 7, 2))
    net.nodes.append(
        helper.make_node("MaxPool", [last], ["stem.pool"], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    )
    last, channels = "stem.pool", 64
    for number, (blocks, inner, stride) in enumerate(RESNET50_STAGES):
        for block in range(blocks):
            shape = (channels, inner, inner * 4)
            step = stride if block == 0 else 1
            last = net.bottleneck(last, f"stage{number}.{block}", shape, step, project=block == 0)
            channels = inner * 4
    net.classify(last, channels, 1000)
    inputs, outputs = [_tensor("image", ["batch", 3, 224, 224])], [_tensor("logits", ["batch", 1000])]
    return _model(helper.make_graph(net.nodes, "resnet50", inputs, outputs, net.weights))


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


def write_bls(repository: Path, name: str, called: str) -> None:
    """Write a Python model that calls another model."""
    config = ADD_SUB_CONFIG.format(name=name, backend="python")
    _write(repository, name, config, "model.py", BLS_PY.format(called=called).lstrip().encode())


def write_resnet50(repository: Path, threads: int = 0) -> None:
    """Write the ResNet-50, to be run with a number of threads; 0 lets the server decide."""
    _write(repository, "resnet50", RESNET50_CONFIG.format(threads=threads), "model.onnx", _resnet50_bytes())


@functools.cache
def _resnet50_bytes() -> bytes:
    return resnet50().SerializeToString()


def write_image_mean(repository: Path) -> None:
    """Write the model that averages images."""
    _write(repository, "image_mean", IMAGE_MEAN_CONFIG, "model.onnx", image_mean().SerializeToString())


def write_identity_64m(repository: Path) -> None:
    """Write the model for large tensors."""
    _write(repository, "identity_64m", IDENTITY_64M_CONFIG, "model.onnx", identity_64m().SerializeToString())


def write_count_py(repository: Path) -> None:
    """Write the decoupled Python model."""
    _write(repository, "count_py", COUNT_CONFIG, "model.py", COUNT_PY.lstrip().encode())


def write_repeat(repository: Path) -> None:
    """Write the decoupled model that needs no file."""
    (repository / "repeat" / "1").mkdir(parents=True, exist_ok=True)
    (repository / "repeat" / "config.pbtxt").write_text('name: "repeat"\nbackend: "repeat"\n')


def write_chain(repository: Path) -> None:
    """Write an ensemble of three add/sub steps."""
    (repository / "chain" / "1").mkdir(parents=True, exist_ok=True)
    (repository / "chain" / "config.pbtxt").write_text(CHAIN_CONFIG.lstrip())


def write_busy(repository: Path) -> None:
    """Write a model of about a millisecond, once with and once without a response cache."""
    for name, cached in (("busy", "false"), ("busy_cached", "true")):
        config = BUSY_CONFIG.format(name=name, cached=cached)
        _write(repository, name, config, "model.onnx", busy().SerializeToString())


def write_deep(repository: Path) -> None:
    """Write the deep network with every delay and adaptive, on one and on two instances."""
    content = deep().SerializeToString()
    for instances in DEEP_INSTANCES:
        for delay_us in DEEP_DELAYS_US:
            name, delay = f"deep_{instances}_{delay_us}", f"max_queue_delay_microseconds: {delay_us}"
            config = DEEP_CONFIG.format(name=name, instances=instances, delay=delay, parameters="")
            _write(repository, name, config, "model.onnx", content)
        name = f"deep_{instances}_{ADAPTIVE}"
        config = DEEP_CONFIG.format(name=name, instances=instances, delay="", parameters=_ADAPTIVE_PARAMETER)
        _write(repository, name, config, "model.onnx", content)


WRITERS: dict[str, Callable[[Path], None]] = {
    "add_sub": write_add_sub,
    "add_sub_py": write_add_sub_py,
    "resnet50": write_resnet50,
    "image_mean": write_image_mean,
    "identity_64m": write_identity_64m,
    "count_py": write_count_py,
    "repeat": write_repeat,
    "running_sum": lambda repository: _write(
        repository, "running_sum", RUNNING_SUM_CONFIG, "model.onnx", running_sum().SerializeToString()
    ),
    "chain": write_chain,
    "busy": write_busy,
    "bls_onnx": lambda repository: write_bls(repository, "bls_onnx", "add_sub"),
    "bls_py": lambda repository: write_bls(repository, "bls_py", "add_sub_py"),
    "deep": write_deep,
}


def write_repository(repository: Path, names: Sequence[str] = tuple(WRITERS)) -> None:
    """Write the models called `names`; those that are there already are written again."""
    for name in names:
        WRITERS[name](repository)


if __name__ == "__main__":
    write_repository(Path(sys.argv[1]))
