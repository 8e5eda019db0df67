"""The signature of a TFLite model, and whether it takes batches.

A TFLite file seldom says that it batches: most have one row built in, and can be resized. Some then compute wrong
shapes, for example of a reshape to a constant shape, and may report no error: only a run with two rows shows it.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from naiad.backend.litert.graph import Details, Graph
from naiad.backend.signature import ModelSignature, TensorSignature
from naiad.backend.tensor_layout import shape_text
from naiad.core.datatype import DataType, from_numpy
from naiad.core.tensor import Shape

_DECLARED = -1
"""The first dimensions are what the file declares."""


@dataclass(frozen=True, slots=True)
class LiteRtSignature:
    """What is known of a graph after it was run on zeros."""

    tensors: ModelSignature
    fixed_rows_reason: str
    """Why the model cannot have more than one row; empty if it can."""
    graph_names: Mapping[str, str]
    """Name of a tensor in `tensors` to its name in the `Graph`."""


def read_signature(graph: Graph, configured: Collection[str]) -> LiteRtSignature:
    """Run a graph on zeros, and return its signature.

    A tensor is known by its name in the TFLite signature, or by that in the graph if this one is `configured`.
    """
    setting = next(filter(None, map(_single_row_reason, graph.inputs.values())), "")
    reason, shapes = (setting, _shapes_of_own_rows(graph)) if setting else _try_two_rows(graph)
    # A model that has failed with two rows has one row, also when it declares free ones.
    rows = _DECLARED if setting else 1 if reason else None
    inputs = {_name(name, details, configured): name for name, details in graph.inputs.items()}
    outputs = {_name(name, details, configured): name for name, details in graph.outputs.items()}
    signature = ModelSignature(
        "TFLite",
        inputs={own: _tensor(own, graph.inputs[name], (), rows) for own, name in inputs.items()},
        outputs={own: _tensor(own, graph.outputs[name], shapes.get(name, ()), rows) for own, name in outputs.items()},
    )
    return LiteRtSignature(signature, reason, inputs | outputs)


def quantization(details: Details) -> dict[str, str]:
    """Return the quantised tensors, with the formula of their values for people."""
    texts = {}
    for name, each in details.items():
        found = each["quantization_parameters"]
        if len(found["scales"]) == 1:
            texts[name] = f"{found['scales'][0]:g} * (q - {found['zero_points'][0]})"
    return texts


def _try_two_rows(graph: Graph) -> tuple[str, Mapping[str, Shape]]:
    """Return why the graph cannot have two rows, empty if it can, and shapes of its outputs."""
    try:
        shapes = _run_on_zeros(graph, 2)
    except (RuntimeError, ValueError) as error:
        return f"it fails with 2 rows: {str(error).strip()}", _shapes_of_own_rows(graph)
    for name, shape in shapes.items():
        if shape[:1] != (2,):
            reason = f"with 2 rows in its inputs output '{name}' has the shape {shape_text(shape)}"
            return reason, _shapes_of_own_rows(graph)
    return "", shapes


def _shapes_of_own_rows(graph: Graph) -> Mapping[str, Shape]:
    """Return the shapes of the outputs for inputs of the shapes in the file, empty if the model fails on zeros."""
    try:
        return _run_on_zeros(graph, 0)
    except (RuntimeError, ValueError):
        return {}


def _single_row_reason(details: Mapping[str, Any]) -> str:
    """Return why an input cannot have rows; an input of shape [1] is rather a setting than a row."""
    declared = tuple(details["shape_signature"])
    if declared[:1] == (-1,) or (declared[:1] == (1,) and len(declared) > 1):
        return ""
    return f"input '{details['name']}' has the shape {shape_text(declared)}"


def _run_on_zeros(graph: Graph, rows: int) -> dict[str, Shape]:
    """Run the graph with `rows` rows, 0 for its own, and return the shapes of the outputs."""
    arrays = {}
    for name, details in graph.inputs.items():
        own = tuple(int(size) for size in details["shape"])
        shape = (rows, *own[1:]) if rows else own
        is_text = details["dtype"] is np.bytes_
        arrays[name] = np.full(shape, b"", object) if is_text else np.zeros(shape, details["dtype"])
    return {name: array.shape for name, array in graph.run(arrays).items()}


def _tensor(name: str, details: Mapping[str, Any], seen: Shape, rows: int | None) -> TensorSignature:
    """`seen` is the shape after a run; `rows` the first dimension, None if it is free."""
    declared = tuple(int(size) for size in details["shape_signature"])
    # A shape that is computed at run time is declared as that of a scalar.
    dims: tuple[int | None, ...] = tuple(size if size >= 0 else None for size in declared) or (None,) * len(seen)
    if dims and rows != _DECLARED:
        dims = (rows, *dims[1:])
    dtype = np.dtype(details["dtype"])
    datatype = DataType.BYTES if details["dtype"] is np.bytes_ else from_numpy(dtype)
    return TensorSignature(name, datatype, dims, dtype.name)


def _name(name: str, details: Mapping[str, Any], configured: Collection[str]) -> str:
    return str(details["name"]) if details["name"] in configured else name
