"""Frozen graphs of TensorFlow 1: `model.graphdef`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from naiad.backend.tensorflow.library import tensorflow
from naiad.backend.tensorflow.program import Program
from naiad.core.errors import invalid_argument


def load_graph_def(path: Path, inputs: Sequence[str], outputs: Sequence[str], init_ops: Path | None) -> Program:
    """Return the program between the configured tensors, which a graph does not name itself.

    `init_ops` is Triton's file `{"init_ops": ["name", ...]}` of operators to run first. Raises
    InferError(INVALID_ARG) for names that the graph does not have, otherwise what TensorFlow raises.
    """
    definition = tensorflow.compat.v1.GraphDef()
    definition.ParseFromString(path.read_bytes())
    wrapped = tensorflow.compat.v1.wrap_function(
        lambda: tensorflow.compat.v1.import_graph_def(definition, name=""), []
    )
    if init_ops is not None:
        for name in json.loads(init_ops.read_text())["init_ops"]:
            wrapped.prune([], wrapped.graph.get_operation_by_name(name))()
    feeds = {name: _find(path, wrapped.graph, name) for name in inputs}
    fetches = {name: _find(path, wrapped.graph, name) for name in outputs}
    function = wrapped.prune(feeds, fetches)
    order = sorted(feeds)

    def call(**tensors: Any) -> Any:
        return function(*(tensors[name] for name in order))

    return Program(call, feeds, fetches, wrapped)


def _find(path: Path, graph: Any, name: str) -> Any:
    try:
        return graph.get_tensor_by_name(name if ":" in name else f"{name}:0")
    except (KeyError, ValueError):
        placeholders = [operation.name for operation in graph.get_operations() if operation.type == "Placeholder"]
        raise invalid_argument(
            f"{path} has no tensor '{name}'; its placeholders are {', '.join(placeholders) or 'none'}, and outputs "
            "are names of operators"
        ) from None
