"""Runs of a model and of its stages in ONNX Runtime: sizes of values, times of nodes, and the comparison."""

import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any
from zipfile import BadZipFile

import numpy as np
import onnx
from onnx import ModelProto, ValueInfoProto

from naiad.backend.onnx.library import onnxruntime
from naiad.backend.onnx.signature import DATATYPES
from naiad.core.errors import InferError, invalid_argument
from naiad.split.graph import SplitGraph

Array = np.ndarray[Any, Any]
Feeds = Mapping[str, Array]

_EXTERNAL_BYTES = 1 << 30
"""A model with more parameters is written with external data: protobuf messages end at 2 GiB."""
_FREE_SIZES = (1, 32)
"""Size of a free first dimension and of all others in random inputs."""
_RUNS, _LEAST_RUNS, _RUNS_S = 30, 3, 3.0
_NUMPY = {"float": "float32", "double": "float64", "float16": "float16", "bool": "bool"}


class Session:
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


def fastest_ms(sessions: Sequence[Session], feeds: Feeds) -> list[float]:
    """Return the time of the fastest run of each session: other load of the machine only adds to it.

    The sessions take turns, so that other load meets all of them. With one thread the time is that on the core.
    """
    clock = time.process_time if sessions[0].threads == 1 else time.perf_counter
    times_s: list[list[float]] = [[] for _ in sessions]
    end_s = time.monotonic() + _RUNS_S
    while len(times_s[0]) < _LEAST_RUNS or (len(times_s[0]) < _RUNS and time.monotonic() < end_s):
        for session, own in zip(sessions, times_s, strict=True):
            start_s = clock()
            session.run(feeds)
            own.append(clock() - start_s)
    return [min(own) * 1e3 for own in times_s]


def make_feeds(session: Session, data: Path | None) -> dict[str, Array]:
    """Return the inputs from a `.npz` file, or random ones. Raises InferError(INVALID_ARG) if they do not fit."""
    given = {} if data is None else _read(data)
    unknown = given.keys() - {*session.inputs}
    if unknown:
        raise invalid_argument(f"{data}: the model has no input '{min(unknown)}', only {', '.join(session.inputs)}")
    random = np.random.default_rng(0)
    feeds = {}
    for each in session.ort.get_inputs():
        kind = each.type.removeprefix("tensor(").removesuffix(")")
        if data is None:
            feeds[each.name] = _random(random, each.name, kind, each.shape)
            continue
        if each.name not in given:
            raise invalid_argument(f"{data} has no input '{each.name}'; the model needs {', '.join(session.inputs)}")
        feeds[each.name] = array = given[each.name]
        fits = len(array.shape) == len(each.shape) and all(
            not isinstance(size, int) or size == own for size, own in zip(each.shape, array.shape, strict=True)
        )
        is_text = kind == "string" and array.dtype.kind in "UO"
        if not fits or not (is_text or array.dtype == _NUMPY.get(kind, kind)):
            raise invalid_argument(
                f"{data}: input '{each.name}' is {array.dtype} {list(array.shape)}, "
                f"the model expects {kind} {each.shape}"
            )
    return feeds


def _read(path: Path) -> dict[str, Array]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, TypeError, EOFError, BadZipFile) as error:
        raise invalid_argument(f"{path} is not a .npz file with the inputs by name (numpy.savez): {error}") from error


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


class Observation:
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
            session = Session(path, threads, optimized=False)
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
    session = Session(path, threads, profile=str(path.with_name("profile")), optimized=False)
    fastest_ms([session], feeds)
    events = json.loads(Path(session.ort.end_profiling()).read_text(encoding="utf-8"))
    times: list[list[float]] = [[] for _ in range(count)]
    for event in events:
        number, found, _ = event["name"].removeprefix("n").partition(":")
        if found and number.isdecimal() and event["name"].endswith("_kernel_time"):
            times[int(number)].append(event["dur"] / 1e3)
    return [median(each) if each else 0.0 for each in times]


def rows_are_independent(stages: Sequence[Session], feeds: Feeds, crossing: Sequence[str]) -> bool:
    """Return whether all values between stages have twice the rows if the inputs have: then stages can batch."""
    if any(not array.shape for array in feeds.values()):
        return False
    doubled = {name: np.concatenate([array, array]) for name, array in feeds.items()}
    try:
        single, double = run_stages(stages, feeds), run_stages(stages, doubled)
    except InferError:
        return False
    rows = {array.shape[0] for array in feeds.values()}
    for name in crossing:
        shape = single[name].shape
        if {*shape[:1]} != rows or double[name].shape != (2 * shape[0], *shape[1:]):
            return False
    return True


def run_stages(stages: Sequence[Session], feeds: Feeds) -> dict[str, Any]:
    """Return all values between and after the stages. Raises InferError."""
    values: dict[str, Any] = dict(feeds)
    for stage in stages:
        values.update(stage.run(values))
    return values


def difference(whole: Array, staged: Array) -> tuple[float, float, bool]:
    """Return the largest absolute and relative difference of two outputs, and whether they count as equal.

    A cut changes which nodes are merged, and so the rounding: floats may differ by 1e-4 of the largest value (float16
    and bfloat16: 1e-2, float64: 1e-9). All other datatypes must be equal.
    """
    if whole.shape != staged.shape or whole.dtype != staged.dtype:
        return np.inf, np.inf, False
    if whole.dtype.kind not in "fV" or not whole.size:
        return 0.0, 0.0, bool(np.array_equal(whole, staged))
    if not np.array_equal(np.isfinite(whole), np.isfinite(staged)):
        return np.inf, np.inf, False
    finite = np.isfinite(whole)
    a, b = whole[finite].astype(np.float64), staged[finite].astype(np.float64)
    if not a.size:
        return 0.0, 0.0, True
    apart = float(np.abs(a - b).max())
    ratio = apart / max(float(np.abs(a).max()), 1e-30)
    return apart, ratio, ratio <= {2: 1e-2, 4: 1e-4, 8: 1e-9}[whole.dtype.itemsize]
