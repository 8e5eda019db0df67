"""Instances of TFLite models: an interpreter each."""

from collections.abc import Sequence
from typing import Any, ClassVar

from naiad.backend.api import ModelContext
from naiad.backend.framework.scalars import Scalars
from naiad.backend.litert.graph import Graph
from naiad.backend.litert.signature import LiteRtSignature
from naiad.backend.tensor_instance import TensorInstance
from naiad.core.errors import invalid_argument
from naiad.core.tensor import Array


class LiteRtInstance(TensorInstance):
    """Runs batches in an interpreter of its own."""

    runs_on_any_thread: ClassVar[bool] = True

    def __init__(self, context: ModelContext, graph: Graph, signature: LiteRtSignature, scalars: Scalars) -> None:
        super().__init__(context)
        self._graph: Any = graph
        self._names = signature.graph_names
        self._scalars = scalars

    def close(self) -> None:
        """Release the interpreter."""
        super().close()
        self._graph = None

    def run(self, inputs: dict[str, Array], output_names: Sequence[str]) -> Sequence[Array]:
        """Run the model; see `TensorInstance.run`."""
        self._scalars.to_model(inputs)
        try:
            outputs = self._graph.run({self._names[name]: array for name, array in inputs.items()})
        except (RuntimeError, ValueError) as error:
            shapes = ", ".join(f"'{name}' [{','.join(map(str, array.shape))}]" for name, array in inputs.items())
            raise invalid_argument(
                f"LiteRT cannot execute model '{self._model_name}' on inputs of these shapes: {shapes}: {error}"
            ) from error
        return [self._scalars.to_client(name, outputs[self._names[name]]) for name in output_names]
