"""Decoders in ONNX with a cache, made in place: the names of Hugging Face Optimum, random but fixed weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper


@dataclass(frozen=True)
class DecoderShape:
    """The size of a decoder."""

    layers: int = 2
    heads: int = 2
    head_size: int = 8
    vocabulary: int = 260
    positions: int = 128
    takes_positions: bool = True
    """Without an input for them, positions follow from the length of the cache: rows cannot be padded."""

    @property
    def width(self) -> int:
        """The numbers of a token between the layers."""
        return self.heads * self.head_size


class _Graph:
    """Collects nodes and constants."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}
        self._random = np.random.default_rng(7)

    def add(self, operator: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(operator, list(inputs), [output], **attributes))
        return output

    def constant(self, name: str, value: object) -> str:
        self.constants[name] = np.asarray(value)
        return name

    def weight(self, name: str, *shape: int, scale: Any = 1.0) -> str:
        values = self._random.standard_normal(shape) * scale / np.sqrt(shape[0])
        return self.constant(name, values.astype(np.float32))

    def norm(self, source: str, width: int) -> str:
        ones = self.constant(f"{source}_scale", np.ones(width, np.float32))
        return self.add("LayerNormalization", [source, ones], f"{source}_normal", axis=-1)


def decoder_graph(shape: DecoderShape) -> Any:
    """Return a decoder: token and position embeddings, layers of attention and a feed-forward part, logits."""
    graph = _Graph()
    width = shape.width
    table = graph.weight("table", shape.vocabulary, width, scale=np.sqrt(shape.vocabulary))
    places = graph.weight("places", shape.positions, width, scale=np.sqrt(shape.positions))
    _add_mask(graph)
    positions = "position_ids" if shape.takes_positions else graph.add("Unsqueeze", ["queries", "axis0"], "counted")
    graph.add("Gather", [table, "input_ids"], "words")
    graph.add("Gather", [places, positions], "where")
    hidden = graph.add("Add", ["words", "where"], "hidden")
    for layer in range(shape.layers):
        hidden = _add_layer(graph, shape, layer, hidden)
    head = graph.weight("head", width, shape.vocabulary, scale=4.0)
    graph.add("MatMul", [graph.norm(hidden, width), head], "logits")
    names = ["input_ids", "attention_mask", *(["position_ids"] if shape.takes_positions else [])]
    inputs = [_info(name, TensorProto.INT64, "batch", "total" if "mask" in name else "sequence") for name in names]
    outputs = [_info("logits", TensorProto.FLOAT, "batch", "sequence", shape.vocabulary)]
    for name in [f"{layer}.{part}" for layer in range(shape.layers) for part in ("key", "value")]:
        sizes = ("batch", shape.heads, "past", shape.head_size)
        inputs.append(_info(f"past_key_values.{name}", TensorProto.FLOAT, *sizes))
        outputs.append(_info(f"present.{name}", TensorProto.FLOAT, "batch", shape.heads, "total", shape.head_size))
    constants = [numpy_helper.from_array(value, name) for name, value in graph.constants.items()]
    made = helper.make_graph(graph.nodes, "decoder", inputs, outputs, constants)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _info(name: str, kind: int, *sizes: str | int) -> Any:
    return helper.make_tensor_value_info(name, kind, sizes)


def _add_mask(graph: _Graph) -> None:
    """Add `bias`: 0 where a query may see a key, otherwise a large negative number."""
    for name, value in (("axis0", [0]), ("axis1", [1]), ("axes12", [1, 2])):
        graph.constant(name, np.array(value, np.int64))
    zero, one = graph.constant("zero", np.int64(0)), graph.constant("one", np.int64(1))
    for source, output in (("attention_mask", "total"), ("input_ids", "count")):
        graph.add("Shape", [source], f"{output}_shape")
        graph.add("Gather", [f"{output}_shape", "one"], output)
    graph.add("Sub", ["total", "count"], "past")
    graph.add("Range", [zero, "total", one], "keys")
    graph.add("Range", ["past", "total", one], "queries")
    graph.add("Unsqueeze", ["keys", "axis0"], "key_row")
    graph.add("Unsqueeze", ["queries", "axis1"], "query_column")
    graph.add("LessOrEqual", ["key_row", "query_column"], "causal")
    graph.add("Unsqueeze", ["attention_mask", "axes12"], "mask")
    graph.add("Equal", ["mask", one], "counts")
    graph.add("And", ["causal", "counts"], "visible")
    graph.add(
        "Where",
        ["visible", graph.constant("nothing", np.float32(0)), graph.constant("low", np.float32(-1e9))],
        "bias",
    )


def _add_layer(graph: _Graph, shape: DecoderShape, layer: int, hidden: str) -> str:
    width = shape.width
    normal = graph.norm(hidden, width)
    split = graph.constant("split", np.array([0, 0, shape.heads, shape.head_size], np.int64))
    join = graph.constant("join", np.array([0, 0, width], np.int64))
    parts = {}
    for part in ("query", "key", "value"):
        weight = graph.weight(f"{part}_{layer}", width, width)
        flat = graph.add("MatMul", [normal, weight], f"flat_{part}_{layer}")
        rows = graph.add("Reshape", [flat, split], f"rows_{part}_{layer}")
        parts[part] = graph.add("Transpose", [rows], f"new_{part}_{layer}", perm=[0, 2, 1, 3])
    for part in ("key", "value"):
        name = f"{layer}.{part}"
        parts[part] = graph.add("Concat", [f"past_key_values.{name}", parts[part]], f"present.{name}", axis=2)
    turned = graph.add("Transpose", [parts["key"]], f"turned_{layer}", perm=[0, 1, 3, 2])
    graph.add("MatMul", [parts["query"], turned], f"products_{layer}")
    scale = graph.constant("scale", np.float32(1 / np.sqrt(shape.head_size)))
    graph.add("Mul", [f"products_{layer}", scale], f"scaled_{layer}")
    graph.add("Add", [f"scaled_{layer}", "bias"], f"biased_{layer}")
    graph.add("Softmax", [f"biased_{layer}"], f"shares_{layer}", axis=-1)
    graph.add("MatMul", [f"shares_{layer}", parts["value"]], f"seen_{layer}")
    graph.add("Transpose", [f"seen_{layer}"], f"ordered_{layer}", perm=[0, 2, 1, 3])
    graph.add("Reshape", [f"ordered_{layer}", join], f"joined_{layer}")
    middle = graph.add("Add", [hidden, f"joined_{layer}"], f"middle_{layer}")
    wide = graph.add(
        "MatMul", [graph.norm(middle, width), graph.weight(f"up_{layer}", width, 4 * width)], f"up_{layer}_out"
    )
    graph.add("Relu", [wide], f"active_{layer}")
    down = graph.weight(f"down_{layer}", 4 * width, width)
    graph.add("MatMul", [f"active_{layer}", down], f"down_{layer}_out")
    return graph.add("Add", [middle, f"down_{layer}_out"], f"hidden_{layer}")
