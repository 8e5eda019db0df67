"""Makes the models of the two-stage recommender, with the same numbers each time.

    python make_models.py DIRECTORY

| repository | models |
|---|---|
| DIRECTORY/one | `features`, `ranker`, and `recommend`, the ensemble of both: one server |
| DIRECTORY/front | `features`, `ranker` as a model of another server, `recommend` |
| DIRECTORY/back | `ranker` |

`features` looks up a user and 32 candidate items in tables of embeddings and makes a row for each candidate; `ranker`
is a neural network that scores the rows. The weights are random: what the models cost does not depend on them.
"""

import argparse
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SEED = 39
USERS, ITEMS = 10_000, 20_000
USER_SIZE, ITEM_SIZE = 16, 32
CANDIDATES = 32
ROW_SIZE = USER_SIZE + ITEM_SIZE + USER_SIZE
LAYERS = (ROW_SIZE, 64, 32, 1)
_OPSET = 17

FEATURES = f"""
backend: "onnxruntime"
max_batch_size: 64
input [
  {{ name: "USER" data_type: TYPE_INT64 dims: [ 1 ] }},
  {{ name: "ITEMS" data_type: TYPE_INT64 dims: [ {CANDIDATES} ] }}
]
output [ {{ name: "ROWS" data_type: TYPE_FP32 dims: [ {CANDIDATES}, {ROW_SIZE} ] }} ]
dynamic_batching {{ }}
"""
RANKER = f"""
backend: "onnxruntime"
max_batch_size: 64
input [ {{ name: "ROWS" data_type: TYPE_FP32 dims: [ {CANDIDATES}, {ROW_SIZE} ] }} ]
output [ {{ name: "SCORES" data_type: TYPE_FP32 dims: [ {CANDIDATES} ] }} ]
dynamic_batching {{ }}
"""
REMOTE = f"""
backend: "remote"
max_batch_size: 64
input [ {{ name: "ROWS" data_type: TYPE_FP32 dims: [ {CANDIDATES}, {ROW_SIZE} ] }} ]
output [ {{ name: "SCORES" data_type: TYPE_FP32 dims: [ {CANDIDATES} ] }} ]
parameters {{ key: "server" value {{ string_value: "ADDRESS" }} }}
"""
RECOMMEND = f"""
platform: "ensemble"
max_batch_size: 64
input [
  {{ name: "USER" data_type: TYPE_INT64 dims: [ 1 ] }},
  {{ name: "ITEMS" data_type: TYPE_INT64 dims: [ {CANDIDATES} ] }}
]
output [ {{ name: "SCORES" data_type: TYPE_FP32 dims: [ {CANDIDATES} ] }} ]
ensemble_scheduling {{
  step [
    {{ model_name: "features" model_version: -1
      input_map [ {{ key: "USER" value: "USER" }}, {{ key: "ITEMS" value: "ITEMS" }} ]
      output_map {{ key: "ROWS" value: "rows" }} }},
    {{ model_name: "ranker" model_version: -1
      input_map {{ key: "ROWS" value: "rows" }}
      output_map {{ key: "SCORES" value: "SCORES" }} }}
  ]
}}
"""


def features_model(random: np.random.Generator) -> bytes:
    """Return the model of the first stage. Ids beyond a table begin again at its first row, as hashed ids do."""
    users = random.normal(size=(USERS, USER_SIZE)).astype(np.float32)
    items = random.normal(size=(ITEMS, ITEM_SIZE)).astype(np.float32)
    constants = {
        "users": users,
        "items": items,
        "user_count": np.array(USERS, np.int64),
        "item_count": np.array(ITEMS, np.int64),
        "user_size": np.array([USER_SIZE], np.int64),
        "zero": np.array([0], np.int64),
        "last": np.array([2], np.int64),
    }
    node = helper.make_node
    nodes = [
        node("Mod", ["USER", "user_count"], ["user_index"]),
        node("Mod", ["ITEMS", "item_count"], ["item_index"]),
        node("Gather", ["users", "user_index"], ["user"]),  # [batch, 1, USER_SIZE]
        node("Gather", ["items", "item_index"], ["item"]),  # [batch, CANDIDATES, ITEM_SIZE]
        node("Shape", ["ITEMS"], ["rows_shape"]),
        node("Concat", ["rows_shape", "user_size"], ["user_shape"], axis=0),
        node("Expand", ["user", "user_shape"], ["user_rows"]),  # the same user beside each candidate
        node("Slice", ["item", "zero", "user_size", "last"], ["item_part"]),
        node("Mul", ["item_part", "user_rows"], ["product"]),
        node("Concat", ["user_rows", "item", "product"], ["ROWS"], axis=2),
    ]
    inputs = [
        helper.make_tensor_value_info("USER", TensorProto.INT64, ["batch", 1]),
        helper.make_tensor_value_info("ITEMS", TensorProto.INT64, ["batch", CANDIDATES]),
    ]
    outputs = [helper.make_tensor_value_info("ROWS", TensorProto.FLOAT, ["batch", CANDIDATES, ROW_SIZE])]
    return _model("features", nodes, inputs, outputs, constants)


def ranker_model(random: np.random.Generator) -> bytes:
    """Return the model of the second stage: three layers, a score from 0 to 1 for each row."""
    constants = {"last": np.array([2], np.int64)}
    nodes = []
    name = "ROWS"
    for number, (width, height) in enumerate(pairwise(LAYERS)):
        constants[f"weights_{number}"] = (random.normal(size=(width, height)) / np.sqrt(width)).astype(np.float32)
        constants[f"bias_{number}"] = random.normal(size=height).astype(np.float32)
        function = "Relu" if height > 1 else "Sigmoid"
        nodes += [
            helper.make_node("MatMul", [name, f"weights_{number}"], [f"product_{number}"]),
            helper.make_node("Add", [f"product_{number}", f"bias_{number}"], [f"sum_{number}"]),
            helper.make_node(function, [f"sum_{number}"], [f"layer_{number}"]),
        ]
        name = f"layer_{number}"
    nodes.append(helper.make_node("Squeeze", [name, "last"], ["SCORES"]))
    inputs = [helper.make_tensor_value_info("ROWS", TensorProto.FLOAT, ["batch", CANDIDATES, ROW_SIZE])]
    outputs = [helper.make_tensor_value_info("SCORES", TensorProto.FLOAT, ["batch", CANDIDATES])]
    return _model("ranker", nodes, inputs, outputs, constants)


def _model(name: str, nodes, inputs, outputs, constants) -> bytes:
    weights = [numpy_helper.from_array(value, key) for key, value in constants.items()]
    graph = helper.make_graph(nodes, name, inputs, outputs, weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=8)
    onnx.checker.check_model(made)
    return made.SerializeToString()


def write_repositories(directory: Path, back: str = "grpc://127.0.0.1:8011") -> None:
    """Write the three repositories; `back` is the address of the server with the ranker, for the one in front."""
    random = np.random.default_rng(SEED)
    features, ranker = features_model(random), ranker_model(random)
    for repository in ("one", "front"):
        _write(directory / repository / "features", FEATURES, features)
        _write(directory / repository / "recommend", RECOMMEND)
    _write(directory / "one" / "ranker", RANKER, ranker)
    _write(directory / "back" / "ranker", RANKER, ranker)
    _write(directory / "front" / "ranker", REMOTE.replace("ADDRESS", back))


def _write(directory: Path, config: str, model: bytes = b"") -> None:
    (directory / "1").mkdir(parents=True, exist_ok=True)
    (directory / "config.pbtxt").write_text(config.lstrip())
    if model:
        (directory / "1" / "model.onnx").write_bytes(model)


def main(argv: Sequence[str] | None = None) -> int:
    """Write the repositories."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--back", default="grpc://127.0.0.1:8011", help="address of the server with the ranker")
    flags = parser.parse_args(argv)
    write_repositories(flags.directory, flags.back)
    return 0


if __name__ == "__main__":
    sys.exit(main())
