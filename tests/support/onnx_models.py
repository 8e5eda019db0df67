"""Small ONNX models for tests, built with the `onnx` package."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from naiad.core.datatype import DataType

OPSET = 17

ELEMENT_TYPES = {
    DataType.BOOL: TensorProto.BOOL,
    DataType.UINT8: TensorProto.UINT8,
    DataType.UINT16: TensorProto.UINT16,
    DataType.UINT32: TensorProto.UINT32,
    DataType.UINT64: TensorProto.UINT64,
    DataType.INT8: TensorProto.INT8,
    DataType.INT16: TensorProto.INT16,
    DataType.INT32: TensorProto.INT32,
    DataType.INT64: TensorProto.INT64,
    DataType.FP16: TensorProto.FLOAT16,
    DataType.FP32: TensorProto.FLOAT,
    DataType.FP64: TensorProto.DOUBLE,
    DataType.BYTES: TensorProto.STRING,
    DataType.BF16: TensorProto.BFLOAT16,
}

Dims = Sequence[int | str | None] | None


def value(name: str, dims: Dims, datatype: DataType = DataType.FP32) -> onnx.ValueInfoProto:
    """Return a graph input or output; None as a dimension is free without a name, None as dims is an unknown rank."""
    return helper.make_tensor_value_info(name, ELEMENT_TYPES[datatype], dims)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    initializers: Sequence[onnx.TensorProto] = (),
) -> bytes:
    """Return a serialized model."""
    graph = helper.make_graph(list(nodes), "graph", list(inputs), list(outputs), list(initializers))
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
    return made.SerializeToString()


def add_sub(dims: Dims = ("N", 16), datatype: DataType = DataType.FP32) -> bytes:
    """OUTPUT0 = INPUT0 + INPUT1, OUTPUT1 = INPUT0 - INPUT1."""
    return model(
        [
            helper.make_node("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"]),
            helper.make_node("Sub", ["INPUT0", "INPUT1"], ["OUTPUT1"]),
        ],
        [value("INPUT0", dims, datatype), value("INPUT1", dims, datatype)],
        [value("OUTPUT0", dims, datatype), value("OUTPUT1", dims, datatype)],
    )


def identity(datatype: DataType = DataType.FP32, dims: Dims = ("N", 4), output_dims: Dims = ()) -> bytes:
    """OUTPUT0 = INPUT0; `output_dims` if the model is to declare another shape than it returns."""
    declared = dims if output_dims == () else output_dims
    return model(
        [helper.make_node("Identity", ["INPUT0"], ["OUTPUT0"])],
        [value("INPUT0", dims, datatype)],
        [value("OUTPUT0", declared, datatype)],
    )


def reshape(target: Sequence[int], dims: Dims, output_dims: Dims) -> bytes:
    """OUTPUT0 is INPUT0 in the shape `target`, which may have a batch size built in."""
    shape = helper.make_tensor("shape", TensorProto.INT64, [len(target)], list(target))
    return model(
        [helper.make_node("Reshape", ["INPUT0", "shape"], ["OUTPUT0"])],
        [value("INPUT0", dims)],
        [value("OUTPUT0", output_dims)],
        [shape],
    )


def add_default(default: float = 1.0) -> bytes:
    """OUTPUT0 = INPUT0 + BIAS, where BIAS is an input with a default (an initializer)."""
    bias = helper.make_tensor("BIAS", TensorProto.FLOAT, [1], [default])
    return model(
        [helper.make_node("Add", ["INPUT0", "BIAS"], ["OUTPUT0"])],
        [value("INPUT0", ["N", 4]), value("BIAS", [1])],
        [value("OUTPUT0", ["N", 4])],
        [bias],
    )


def scaled() -> bytes:
    """OUTPUT0 = the rows INPUT0 times the scalar FACTOR."""
    return model(
        [helper.make_node("Mul", ["INPUT0", "FACTOR"], ["OUTPUT0"])],
        [value("INPUT0", ["N", 4]), value("FACTOR", [])],
        [value("OUTPUT0", ["N", 4])],
    )


def gather() -> bytes:
    """OUTPUT0 = a table of four rows at the indices INPUT0; an index out of range fails at run time."""
    table = helper.make_tensor("table", TensorProto.FLOAT, [4, 2], [float(i) for i in range(8)])
    return model(
        [helper.make_node("Gather", ["table", "INPUT0"], ["OUTPUT0"])],
        [value("INPUT0", ["N", 1], DataType.INT64)],
        [value("OUTPUT0", ["N", 1, 2])],
        [table],
    )


def non_zero() -> bytes:
    """OUTPUT0 = the indices of the elements of INPUT0 that are not zero: a shape that depends on the data."""
    return model(
        [helper.make_node("NonZero", ["INPUT0"], ["OUTPUT0"])],
        [value("INPUT0", [4])],
        [value("OUTPUT0", [1, "count"], DataType.INT64)],
    )


def row_sums(*, keep_dims: bool = False) -> bytes:
    """OUTPUT0 = the sum of every row of INPUT0: one number a row."""
    return model(
        [helper.make_node("ReduceSum", ["INPUT0", "axes"], ["OUTPUT0"], keepdims=int(keep_dims))],
        [value("INPUT0", ["N", 4])],
        [value("OUTPUT0", ["N", 1] if keep_dims else ["N"])],
        [helper.make_tensor("axes", TensorProto.INT64, [1], [1])],
    )


def squeeze() -> bytes:
    """OUTPUT0 is INPUT0 without its dimensions of 1: a graph without the rank of its output."""
    return model(
        [helper.make_node("Squeeze", ["INPUT0"], ["OUTPUT0"])], [value("INPUT0", ["N", 4])], [value("OUTPUT0", None)]
    )


def total() -> bytes:
    """OUTPUT0 = the sum of all of INPUT0: a scalar, so that the model cannot batch."""
    return model(
        [helper.make_node("ReduceSum", ["INPUT0"], ["OUTPUT0"], keepdims=0)],
        [value("INPUT0", ["N", 4])],
        [value("OUTPUT0", [])],
    )


def classifier(labels: Sequence[str | int] = ("cat", "dog", "eel"), *, opset: int | None = OPSET) -> bytes:
    """A linear classifier of rows of 3 numbers, in the form of a scikit-learn export: the highest wins.

    `output_label` is a tensor, `output_probability` a sequence of dictionaries. Without `opset` there is no default
    domain.
    """
    texts = isinstance(labels[0], str)
    key = TensorProto.STRING if texts else TensorProto.INT64
    classes = {"classlabels_strings" if texts else "classlabels_ints": list(labels)}
    linear = helper.make_node(
        "LinearClassifier",
        ["X"],
        ["output_label", "probabilities"],
        domain="ai.onnx.ml",
        coefficients=np.eye(3).reshape(-1).tolist(),
        intercepts=[0.0] * 3,
        **classes,
    )
    keys = {"classlabels_strings" if texts else "classlabels_int64s": list(labels)}
    zip_map = helper.make_node("ZipMap", ["probabilities"], ["output_probability"], domain="ai.onnx.ml", **keys)
    value_type = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    dictionaries = helper.make_sequence_type_proto(helper.make_map_type_proto(key, value_type))
    outputs = [
        helper.make_tensor_value_info("output_label", key, [None]),
        helper.make_value_info("output_probability", dictionaries),
    ]
    graph = helper.make_graph([linear, zip_map], "graph", [value("X", [None, 3])], outputs)
    domains = [helper.make_opsetid("ai.onnx.ml", 1)]
    if opset is not None:
        domains.append(helper.make_opsetid("", opset))
    return helper.make_model(graph, opset_imports=domains, ir_version=8).SerializeToString()


def sequence_output() -> bytes:
    """An output that is a sequence of tensors."""
    output = helper.make_tensor_sequence_value_info("OUTPUT0", TensorProto.FLOAT, None)
    return model(
        [helper.make_node("SequenceConstruct", ["INPUT0", "INPUT0"], ["OUTPUT0"])],
        [value("INPUT0", ["N", 4])],
        [output],
    )


def external_data(directory: Path) -> Path:
    """Write a model whose weights are in a file beside it into `directory`; return the model file."""
    directory.mkdir(parents=True, exist_ok=True)
    weights = np.arange(4096, dtype=np.float32)
    tensor = onnx.numpy_helper.from_array(weights, "weights")
    graph = helper.make_graph(
        [helper.make_node("Add", ["INPUT0", "weights"], ["OUTPUT0"])],
        "graph",
        [value("INPUT0", ["N", 4096])],
        [value("OUTPUT0", ["N", 4096])],
        [tensor],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
    path = directory / "model.onnx"
    onnx.save_model(made, path, save_as_external_data=True, location="model.onnx.data", size_threshold=0)
    return path


def ragged() -> bytes:
    """For requests whose elements follow each other in DATA, FP32 of [-1]; ENDS is BATCH_ACCUMULATED_..._WITH_ZERO.

    SUM, FP32 of [N, 1], is the sum of each request's elements, DOUBLED, of [-1], twice every element.
    """

    def bounds(name: str, start: int, end: int) -> list[onnx.TensorProto]:
        values = {"starts": [start], "ends": [end], "axes": [0]}
        return [helper.make_tensor(f"{name}_{k}", TensorProto.INT64, [1], v) for k, v in values.items()]

    last = 2**31
    nodes = [
        helper.make_node("CumSum", ["DATA", "axis"], ["running"]),
        helper.make_node("Concat", ["zero", "running"], ["before"], axis=0),
        helper.make_node("Gather", ["before", "ENDS"], ["at_ends"]),
        helper.make_node("Slice", ["at_ends", "to_starts", "to_ends", "to_axes"], ["left"]),
        helper.make_node("Slice", ["at_ends", "from_starts", "from_ends", "from_axes"], ["right"]),
        helper.make_node("Sub", ["right", "left"], ["sums"]),
        helper.make_node("Unsqueeze", ["sums", "column"], ["SUM"]),
        helper.make_node("Add", ["DATA", "DATA"], ["DOUBLED"]),
    ]
    constants = [
        helper.make_tensor("axis", TensorProto.INT64, [], [0]),
        helper.make_tensor("zero", TensorProto.FLOAT, [1], [0.0]),
        helper.make_tensor("column", TensorProto.INT64, [1], [1]),
        *bounds("to", 0, -1),
        *bounds("from", 1, last),
    ]
    return model(
        nodes,
        [value("DATA", ["elements"]), value("ENDS", ["ends"], DataType.INT32)],
        [value("SUM", ["N", 1]), value("DOUBLED", ["elements"])],
        constants,
    )


RAGGED_CONFIG = """
max_batch_size: 8
input [ { name: "DATA" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true } ]
output [ { name: "SUM" data_type: TYPE_FP32 dims: [ 1 ] }, { name: "DOUBLED" data_type: TYPE_FP32 dims: [ -1 ] } ]
batch_input [
  {
    kind: BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO
    target_name: "ENDS"
    data_type: TYPE_INT32
    source_input: "DATA"
  }
]
batch_output [ { kind: BATCH_SCATTER_WITH_INPUT_SHAPE target_name: "DOUBLED" source_input: "DATA" } ]
"""
"""The configuration of `ragged`, without name and backend."""


BATCH_INPUTS = {
    "COUNT": "BATCH_ELEMENT_COUNT",
    "ENDS": "BATCH_ACCUMULATED_ELEMENT_COUNT",
    "BEGINS": "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO",
    "LONGEST": "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE",
    "ITEM": "BATCH_ITEM_SHAPE",
    "FLAT": "BATCH_ITEM_SHAPE_FLATTEN",
}
"""Inputs of `batch_inputs`, and the kind of each."""


def batch_inputs() -> bytes:
    """Ragged FP32 DATA of [E] comes back as SAME, and each batch input as INT32 [N, 1] under SEEN_ and its name.

    The last of BEGINS is left out, and of LONGEST it is the length. For requests of one row.
    """
    nodes = [
        helper.make_node("Identity", ["DATA"], ["SAME"]),
        helper.make_node("Identity", ["ITEM"], ["SEEN_ITEM"]),
        *(helper.make_node("Unsqueeze", [name, "one"], [f"SEEN_{name}"]) for name in ("COUNT", "ENDS", "FLAT")),
        helper.make_node("Slice", ["BEGINS", "zero", "minus_one"], ["begins"]),
        helper.make_node("Unsqueeze", ["begins", "one"], ["SEEN_BEGINS"]),
        helper.make_node("Shape", ["LONGEST"], ["length"]),
        helper.make_node("Cast", ["length"], ["longest"], to=TensorProto.INT32),
        helper.make_node("Shape", ["ITEM"], ["like"]),
        helper.make_node("Expand", ["longest", "like"], ["SEEN_LONGEST"]),
    ]
    shapes = {name: ("N", "rank") if name == "ITEM" else (name.lower(),) for name in BATCH_INPUTS}
    seen = {name: ("N", "rank") if name in ("ITEM", "LONGEST") else ("N", 1) for name in BATCH_INPUTS}
    return model(
        nodes,
        [value("DATA", ("E",)), *(value(name, shape, DataType.INT32) for name, shape in shapes.items())],
        [value("SAME", ("E",)), *(value(f"SEEN_{name}", shape, DataType.INT32) for name, shape in seen.items())],
        [
            helper.make_tensor(name, TensorProto.INT64, [1], [number])
            for name, number in {"zero": 0, "one": 1, "minus_one": -1}.items()
        ],
    )


def running_sum() -> bytes:
    """OUTPUT = STATE_OUT = INPUT + STATE_IN, all FP32 of [N, 1].

    The controls come out as they went in: CORRID (INT64) as SEEN_ID, START, READY and END as SEEN_START and so on.
    """
    return model(
        [
            helper.make_node("Add", ["INPUT", "STATE_IN"], ["STATE_OUT"]),
            helper.make_node("Identity", ["STATE_OUT"], ["OUTPUT"]),
            helper.make_node("Identity", ["CORRID"], ["SEEN_ID"]),
            helper.make_node("Identity", ["START"], ["SEEN_START"]),
            helper.make_node("Identity", ["READY"], ["SEEN_READY"]),
            helper.make_node("Identity", ["END"], ["SEEN_END"]),
        ],
        [
            *(value(name, ("N", 1)) for name in ("INPUT", "START", "READY", "END", "STATE_IN")),
            value("CORRID", ("N", 1), DataType.INT64),
        ],
        [
            *(value(name, ("N", 1)) for name in ("OUTPUT", "STATE_OUT", "SEEN_START", "SEEN_READY", "SEEN_END")),
            value("SEEN_ID", ("N", 1), DataType.INT64),
        ],
    )
