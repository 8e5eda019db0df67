"""Forward passes as CUDA graphs: one call of the driver instead of a kernel launch for each operator.

Python launches the kernels of a small network more slowly than a GPU executes them, and other threads of the server
take their turns of the interpreter meanwhile. A graph has the launches of one forward pass with fixed shapes. It is
recorded when a shape comes for the second time, and replayed from then on.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from naiad.backend.pytorch.library import pytree, torch
from naiad.backend.pytorch.tensors import reason

_log = logging.getLogger(__name__)

MAX_GRAPHS = 64
"""Recorded shapes of an instance. Each one has memory for the inputs, the outputs and what is between them."""
MAX_SEEN = 1024
"""Shapes that an instance remembers without a graph."""
_WARM_UPS = 3
"""Forward passes before a record: libraries choose their algorithms and take their workspace in the first ones."""

Call = Callable[[Sequence[Any]], Any]


@dataclass(frozen=True, slots=True)
class Graph:
    """A recorded forward pass: `replay` computes `returned` from the values that `given` has then."""

    given: Sequence[Any]
    returned: Any
    replay: Callable[[], object]


class GraphRecorder:
    """Records on one GPU, with memory that the graphs of an instance share, since they run one after the other."""

    def __init__(self, device: str) -> None:
        """`device` is that of all tensors, as PyTorch writes it."""
        self._device = device
        self._pool: Any = None
        self._stream: Any = None

    def record(self, call: Call, arguments: Sequence[Any]) -> Graph:
        """Record a call. Raises an exception of PyTorch if the model does more than to launch kernels."""
        with torch.cuda.device(self._device):
            if self._stream is None:
                # One for all: libraries take a workspace for each stream.
                self._stream, self._pool = torch.cuda.Stream(), torch.cuda.graph_pool_handle()
            given = _copied(list(arguments))
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                for _ in range(_WARM_UPS):
                    call(given)
                self._stream.synchronize()
                graph = torch.cuda.CUDAGraph()
                # Of this thread only: other instances may allocate memory meanwhile.
                graph.capture_begin(self._pool, capture_error_mode="thread_local")
                try:
                    returned = call(given)
                finally:
                    graph.capture_end()
            torch.cuda.current_stream().wait_stream(self._stream)
        if not all(leaf.is_cuda for leaf in _tensors(returned)):
            raise RuntimeError("an output is not on the GPU")
        return Graph(given, returned, graph.replay)


class GraphedCall:
    """Calls a program of an instance, through graphs where it has them. Used by one thread at a time."""

    def __init__(self, model: str, call: Call, recorder: GraphRecorder) -> None:
        self._model = model
        self._call = call
        self._recorder = recorder
        self._graphs: dict[object, Graph] = {}
        self._seen: set[object] = set()
        self._unfit: set[object] = set()
        """Shapes whose record failed."""

    def __call__(self, arguments: Sequence[Any]) -> Any:
        """Return what the program returns for these arguments, in memory that no later call changes."""
        key = _key(arguments)
        if key is None or key in self._unfit:
            return self._call(arguments)
        graph = self._graphs.get(key)
        if graph is None:
            if key in self._seen and len(self._graphs) < MAX_GRAPHS:
                graph = self._record(key, arguments)
            elif len(self._seen) < MAX_SEEN:
                self._seen.add(key)
            if graph is None:
                return self._call(arguments)
        for target, source in zip(_tensors(graph.given), _tensors(arguments), strict=True):
            target.copy_(source)
        graph.replay()
        return _copied(graph.returned)

    def clear(self) -> None:
        """Forget the graphs, and the program with them."""
        self._graphs.clear()
        self._call = _closed

    def _record(self, key: object, arguments: Sequence[Any]) -> Graph | None:
        try:
            graph = self._graphs[key] = self._recorder.record(self._call, arguments)
        except Exception as error:  # PyTorch raises classes of several libraries; without a graph the model runs
            if not self._unfit:
                _log.warning("model '%s' runs without CUDA graphs: %s", self._model, reason(error))
            self._unfit.add(key)
            return None
        return graph


def _closed(_: Sequence[Any]) -> Any:
    raise RuntimeError("the instance is closed")


def _key(arguments: Sequence[Any]) -> object:
    """Return what a graph depends on; None for arguments with texts, which are no tensors."""
    given: Any = arguments
    names: Sequence[str] = ()
    if len(arguments) == 1 and isinstance(arguments[0], Mapping):
        names, given = tuple(arguments[0]), arguments[0].values()
    if any(isinstance(each, list) for each in given):
        return None
    return names, tuple((each.shape, each.dtype) if isinstance(each, torch.Tensor) else None for each in given)


def _tensors(tree: Any) -> list[Any]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _copied(tree: Any) -> Any:
    return pytree.tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, tree)
