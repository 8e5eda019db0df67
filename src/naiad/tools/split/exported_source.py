"""An archive of torch.export as the source of a split: its runs, sizes of values, times of nodes, and its stages."""

import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from naiad.backend.pytorch.library import pytree, torch
from naiad.backend.pytorch.tensors import DATATYPES, reason, to_array, to_tensor
from naiad.core.errors import InferError, invalid_argument
from naiad.tools.split.exported_graph import ExportedGraph
from naiad.tools.split.split_source import Array, Feeds, Stage, StageModel, check_feed, read_feeds

_NODE_RUNS = 5
_SIZES = (4, 7, 9, 11, 13, 17, 19, 23)
"""Of free dimensions in random inputs. They differ: torch.export takes equal sizes for the same dimension."""


class ExportedSession:
    """An exported program on the CPU."""

    def __init__(self, exported: Any, threads: int, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        self.threads = threads
        self._module = exported.module()
        self._spec = exported.call_spec.in_spec
        self._inputs, self._outputs = inputs, outputs

    def run(self, feeds: Feeds) -> dict[str, Any]:
        """Return all outputs by name. Raises InferError(INVALID_ARG)."""
        torch.set_num_threads(self.threads)
        values = [to_tensor(np.array(feeds[name])) for name in self._inputs]
        try:
            positional, named = pytree.tree_unflatten(values, self._spec)
            with torch.inference_mode():
                found = pytree.tree_leaves(self._module(*positional, **named))
        except Exception as error:  # PyTorch raises classes of several libraries
            raise invalid_argument(
                f"the model does not execute: {reason(error)}; give inputs that fit with --data"
            ) from error
        return {name: to_array(value) for name, value in zip(self._outputs, found, strict=True)}


class ExportedSource:
    """An exported program to split."""

    backend = "pytorch"
    threads_parameter = "INTRA_OP_THREAD_COUNT"

    def __init__(self, path: Path, threads: int, data: Path | None) -> None:
        """Read the program and execute it. Raises InferError."""
        exported = _load(path)
        try:
            # Functional: no node writes to the value of another one, which may be in another stage.
            with warnings.catch_warnings():
                # PyTorch copies its own specifications of leaves, whose class is deprecated.
                warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)`", FutureWarning)
                functional = exported.run_decompositions({})
            self._graph = ExportedGraph(functional)
        except InferError as error:
            raise error.with_message(f"{path} cannot be split: {error.message}") from error
        self._threads = threads
        self._ranges = exported.range_constraints
        self.inputs, self.outputs = tuple(self._graph.inputs), tuple(self._graph.outputs)
        self.whole = ExportedSession(exported, threads, self.inputs, self.outputs)
        self.feeds: Feeds = self._make_feeds(data)
        self.parameter_bytes: Sequence[int] = self._graph.parameter_bytes()
        self.crossing: Sequence[Sequence[str]] = self._graph.crossing()
        self.whole.run(self.feeds)
        observer = _Observer(self._graph.module)
        arguments = [
            to_tensor(np.array(self.feeds[node.name]))
            if node.name in self.feeds
            else self._graph.parameters[node.name]
            for node in self._graph.module.graph.nodes
            if node.op == "placeholder" and (node.name in self.feeds or node.name in self._graph.parameters)
        ]
        with torch.inference_mode():
            for _ in range(_NODE_RUNS):
                observer.run(*arguments)
        self.node_ms: Sequence[float] = [median(observer.times_ms[node.name]) for node in self._graph.nodes]
        self._values: Mapping[str, Any] = observer.values
        self.sizes: Mapping[str, int] = {
            name: value.nbytes for name, value in observer.values.items() if value.dtype in DATATYPES
        }

    def write(self, cuts: Sequence[int], directory: Path, name: str) -> list[Stage]:
        """Write the stages between the cuts as models. Raises InferError."""
        stages = []
        for index, made in enumerate(self._graph.stages(cuts)):
            path = directory / f"{name}_stage{index}" / "1" / "model.pt2"
            path.parent.mkdir(parents=True)
            torch.export.save(self._export(made), path)
            session = ExportedSession(torch.export.load(path), self._threads, made.inputs, made.outputs)
            stages.append(Stage(made.node_count, made.parameter_bytes, made.inputs, made.outputs, session))
        return stages

    def _export(self, made: StageModel) -> Any:
        nodes = {node.name: node for node in self._graph.module.graph.nodes}
        examples = tuple(self._values[name].clone() for name in made.inputs)
        shapes = tuple([self._dims(nodes[name]) for name in made.inputs])
        try:
            return torch.export.export(made.model, examples, dynamic_shapes=shapes)
        except Exception as error:  # PyTorch raises classes of several libraries
            raise invalid_argument(f"torch.export refuses a stage: {reason(error)}; use another --stages") from error

    def _dims(self, node: Any) -> dict[int, Any]:
        dims = {}
        for index, size in enumerate(node.meta["val"].shape):
            if isinstance(size, torch.SymInt):
                found = self._ranges.get(size.node.expr)
                has_end = found is not None and found.upper.is_Integer
                dims[index] = torch.export.Dim.AUTO(max=int(found.upper)) if has_end else torch.export.Dim.AUTO
        return dims

    def _make_feeds(self, data: Path | None) -> dict[str, Array]:
        random = np.random.default_rng(0)
        feeds = {} if data is None else read_feeds(data, self.inputs)
        sizes: dict[Any, int] = {}
        for name, node in self._graph.inputs.items():
            value = node.meta["val"]
            dims = [size if isinstance(size, int) else str(size) for size in value.shape]
            datatype = DATATYPES[value.dtype].numpy
            if data is not None:
                check_feed(data, name, feeds[name], str(datatype), dims, has_datatype=feeds[name].dtype == datatype)
                if any(
                    not isinstance(dim, int) and size == 1 for dim, size in zip(dims, feeds[name].shape, strict=True)
                ):
                    raise invalid_argument(
                        f"{data}: input '{name}' is {list(feeds[name].shape)}; give free sizes 2 or more, as "
                        "torch.export takes a 1 for a fixed size"
                    )
                continue
            shape = [size if isinstance(size, int) else self._size(size, sizes) for size in value.shape]
            is_float = value.dtype.is_floating_point
            # Small numbers are valid as ids of tokens, as masks and as indexes.
            made = random.standard_normal(shape) if is_float else random.integers(0, 2, shape)
            feeds[name] = made.astype(datatype)
        return feeds

    def _size(self, size: Any, sizes: dict[Any, int]) -> int:
        expression = size.node.expr
        if not expression.is_symbol:
            raise invalid_argument(f"an input has the size {expression}, for which there are no values; use --data")
        if expression not in sizes:
            found = self._ranges[expression]
            upper = int(found.upper) if found.upper.is_Integer else _SIZES[-1]
            fitting = [each for each in _SIZES if int(found.lower) <= each <= upper and each not in sizes.values()]
            sizes[expression] = fitting[0] if fitting else upper
        return sizes[expression]


class _Observer(torch.fx.Interpreter):  # type: ignore[misc]  # PyTorch has no stubs here
    """Runs the nodes of a program one by one; keeps their times and their tensors."""

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self.times_ms: dict[str, list[float]] = {}
        self.values: dict[str, Any] = {}

    def run_node(self, n: Any) -> Any:
        """Run one node."""
        start_s = time.perf_counter()
        value = super().run_node(n)
        self.times_ms.setdefault(n.name, []).append((time.perf_counter() - start_s) * 1e3)
        if isinstance(value, torch.Tensor):
            self.values[n.name] = value
        return value


def _load(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            return torch.export.load(file)
    except Exception as error:  # PyTorch raises classes of several libraries
        raise invalid_argument(f"{path} is not an archive of torch.export: {reason(error)}") from error
