"""An ONNX file as the source of a split: its runs in ONNX Runtime, sizes of values and times of nodes."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, ValueInfoProto

from naiad.backend.onnx.library import onnxruntime
from naiad.backend.onnx.sessions import DATATYPES
from naiad.core.errors import invalid_argument
from naiad.tools.split.node_sequence import SplitGraph, load_graph
from naiad.tools.split.split_source import Array, Feeds, Stage, check_feed, fastest_ms, read_feeds

_EXTERNAL_BYTES = 1 << 30
"""A model with more parameters is written with external data: protobuf messages end at 2 GiB."""
_FREE_SIZES = (1, 32)
"""Size of a free first dimension and of all others in random inputs."""
_NUMPY = {"float": "float32", "double": "float64", "float16": "float16", "bool": "bool"}


class OnnxSource:
    """An ONNX model to split."""

    backend = "onnxruntime"
    threads_parameter = "intra_op_thread_count"

    def __init__(self, path: Path, threads: int, data: Path | None) -> None:
        """Read the model and execute it once. Raises InferError."""
        self._graph = load_graph(path)
        self._threads = threads
        self.whole = OnnxSplitSession(path, threads)
        _check_outputs(self.whole)
        self.feeds: Feeds = _make_feeds(self.whole, data)
        self._observation = ExecutionObservation(self._graph, self.feeds, threads)
        self.inputs, self.outputs = self._graph.inputs, self._graph.outputs
        self.node_ms: Sequence[float] = self._observation.node_ms
        self.parameter_bytes: Sequence[int] = self._graph.parameter_bytes()
        self.crossing: Sequence[Sequence[str]] = self._graph.crossing()
        self.sizes: Mapping[str, int] = {
            name: size for name, (_, _, size) in self._observation.arrays.items() if self._observation.can_cross(name)
        }

    def write(self, cuts: Sequence[int], directory: Path, name: str) -> list[Stage]:
        """Write the stages between the cuts as models. Raises InferError."""
        values = {value for cut in cuts for value in self.crossing[cut]}
        types = {value: self._observation.type_of(value, self._graph.types.get(value)) for value in values}
        stages = []
        for made in self._graph.stages(cuts, types, name):
            path = directory / made.model.graph.name / "1" / "model.onnx"
            path.parent.mkdir(parents=True)
            save(made.model, path, made.parameter_bytes)
            onnx.checker.check_model(str(path))
            session = OnnxSplitSession(path, self._threads)
            stages.append(Stage(made.node_count, made.parameter_bytes, made.inputs, made.outputs, session))
        return stages


class OnnxSplitSession:
    """One model file in ONNX Runtime, on the CPU."""

    def __init__(self, path: Path, threads: int, *, profile: str = "", optimized: bool = True) -> None:
        """`profile` is the beginning of a file name for the times of nodes. Raises InferError."""
        self.threads = threads
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 4
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if profile:
            options.enable_profiling, options.profile_file_prefix = True, profile
        if not optimized:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            self.ort = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise invalid_argument(f"ONNX Runtime cannot open {path.name}: {error}") from error
        self.inputs = [each.name for each in self.ort.get_inputs()]
        self.outputs = [each.name for each in self.ort.get_outputs()]

    def run(self, feeds: Feeds) -> dict[str, Any]:
        """Return all outputs by name. Raises InferError(INVALID_ARG)."""
        try:
            values = self.ort.run(self.outputs, {name: feeds[name] for name in self.inputs})
        except Exception as error:
            raise invalid_argument(
                f"the model does not execute: {error}; give inputs that fit with --data"
            ) from error
        return dict(zip(self.outputs, values, strict=True))


def _check_outputs(session: OnnxSplitSession) -> None:
    """Raise InferError(INVALID_ARG) for an output that is no tensor."""
    for each in session.ort.get_outputs():
        if not each.type.startswith("tensor("):
            raise invalid_argument(
                f"output '{each.name}' is of type {each.type}, and stages have tensors only; export the model "
                "without it, for example with skl2onnx and options={'zipmap': False}"
            )


def _make_feeds(session: OnnxSplitSession, data: Path | None) -> dict[str, Array]:
    """Return the inputs from a `.npz` file, or random ones. Raises InferError(INVALID_ARG) if they do not fit."""
    random = np.random.default_rng(0)
    feeds = {} if data is None else read_feeds(data, session.inputs)
    for each in session.ort.get_inputs():
        kind = each.type.removeprefix("tensor(").removesuffix(")")
        if data is None:
            feeds[each.name] = _random(random, each.name, kind, each.shape)
            continue
        array = feeds[each.name]
        is_text = kind == "string" and array.dtype.kind in "UO"
        has_datatype = is_text or array.dtype == _NUMPY.get(kind, kind)
        check_feed(data, each.name, array, kind, each.shape, has_datatype=has_datatype)
    return feeds


def _random(random: np.random.Generator, name: str, kind: str, dims: Sequence[Any]) -> Array:
    shape = [size if isinstance(size, int) else _FREE_SIZES[index > 0] for index, size in enumerate(dims)]
    if kind in ("float", "double", "float16"):
        return random.standard_normal(shape).astype(_NUMPY[kind])
    if kind == "bool" or "int" in kind:
        # Small numbers are valid as ids of tokens, as masks and as indexes.
        return random.integers(0, 2, shape).astype(_NUMPY.get(kind, kind))
    raise invalid_argument(f"input '{name}' is of type {kind}, there are no random values for it; use --data")


def save(model: ModelProto, path: Path, parameter_bytes: int) -> None:
    """Write a model, with its parameters in a second file if it is large. `model` loses them then."""
    is_large = parameter_bytes > _EXTERNAL_BYTES
    onnx.save_model(
        model, str(path), save_as_external_data=is_large, location=f"{path.name}.data" if is_large else None
    )


class ExecutionObservation:
    """The values of a model during one execution, and the times of its nodes."""

    def __init__(self, graph: SplitGraph, feeds: Feeds, threads: int) -> None:
        """Execute the model with all its values as outputs, then for the times. Raises InferError."""
        self.arrays: dict[str, tuple[str, tuple[int, ...], int]] = {}
        """ONNX Runtime's type, shape and bytes of each value that is a tensor."""
        model = ModelProto()
        model.CopyFrom(graph.model)
        positions = {id(node.proto): index for index, node in enumerate(graph.nodes)}
        for index, (copy, own) in enumerate(zip(model.graph.node, graph.model.graph.node, strict=True)):
            copy.name = f"n{positions[id(own)]}:" if id(own) in positions else f"constant{index}"
        size_bytes = sum(graph.parameter_bytes())
        with tempfile.TemporaryDirectory(prefix="naiad-split-") as directory:
            path = Path(directory) / "model.onnx"
            save(model, path, size_bytes)
            self.node_ms = _node_times(path, feeds, threads, len(graph.nodes))
            # The second time without the parameters: they are in the file, if it is large.
            known = {value.name for value in model.graph.output}
            names = dict.fromkeys(output for node in graph.nodes for output in node.outputs if output not in known)
            model.graph.output.extend(ValueInfoProto(name=name) for name in names)
            onnx.save_model(model, str(path))
            session = OnnxSplitSession(path, threads, optimized=False)
            types = {each.name: each.type for each in session.ort.get_outputs()}
            for name, value in session.run(feeds).items():
                if isinstance(value, np.ndarray):
                    size = sum(map(len, map(str, value.flat))) if value.dtype == object else value.nbytes
                    self.arrays[name] = (types[name], value.shape, size)

    def type_of(self, name: str, inferred: onnx.TypeProto | None) -> onnx.TypeProto:
        """Return the type of a crossing value: inferred sizes where they are known, free ones elsewhere."""
        made = onnx.TypeProto()
        kind, shape, _ = self.arrays[name]
        made.tensor_type.elem_type = _element_type(kind)
        dims = inferred.tensor_type.shape.dim if inferred and inferred.tensor_type.HasField("shape") else ()
        made.tensor_type.shape.SetInParent()
        for index in range(len(shape)):
            dim = made.tensor_type.shape.dim.add()
            if index < len(dims) and dims[index].WhichOneof("value"):
                dim.CopyFrom(dims[index])
            else:
                dim.dim_param = f"{name}_{index}"
        return made

    def can_cross(self, name: str) -> bool:
        """Return whether an ensemble can pass the value: a tensor of a datatype that requests have."""
        return name in self.arrays and self.arrays[name][0] in DATATYPES


def _element_type(kind: str) -> int:
    name = kind.removeprefix("tensor(").removesuffix(")").upper()
    return int(onnx.TensorProto.DataType.Value(name))


def _node_times(path: Path, feeds: Feeds, threads: int, count: int) -> list[float]:
    """Return the median milliseconds of each node without optimizations, which would merge nodes."""
    session = OnnxSplitSession(path, threads, profile=str(path.with_name("profile")), optimized=False)
    fastest_ms([session], feeds)
    events = json.loads(Path(session.ort.end_profiling()).read_text(encoding="utf-8"))
    times: list[list[float]] = [[] for _ in range(count)]
    for event in events:
        number, found, _ = event["name"].removeprefix("n").partition(":")
        if found and number.isdecimal() and event["name"].endswith("_kernel_time"):
            times[int(number)].append(event["dur"] / 1e3)
    return [median(each) if each else 0.0 for each in times]
