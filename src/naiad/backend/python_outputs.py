"""Holds what a Python model answers against the outputs of its configuration."""

from collections.abc import Sequence

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import BY_CONFIG_NUMBER, DataType
from naiad.core.errors import InferError, internal
from naiad.core.request import InferRequest
from naiad.core.tensor import Shape, TensorSpec


class OutputRules:
    """The outputs of one configuration.

    Triton: its Python backend passes on whatever a model answers, and the client finds out. Datatypes and shapes are
    checked once per distinct answer, the rest costs two comparisons a request.
    """

    def __init__(self, config: ModelConfig) -> None:
        self._model_name = config.name
        self._is_batching = config.max_batch_size > 0
        self._expected: dict[str, tuple[DataType, Shape]] = {
            output.name: (
                BY_CONFIG_NUMBER[output.data_type],
                tuple(output.reshape.shape if output.HasField("reshape") else output.dims),
            )
            for output in config.output
        }

    def problem_of(self, specs: Sequence[TensorSpec]) -> str:
        """Return what is wrong with datatype or shape of these outputs, "" for nothing."""
        problem = self.datatype_problem_of(specs)
        if problem:
            return problem
        for spec in specs:
            _, dims = self._expected[spec.name]
            where = f"model '{self._model_name}' answered output '{spec.name}'"
            shape = spec.shape[1:] if self._is_batching else spec.shape
            lacks_batch = self._is_batching and not spec.shape
            if lacks_batch or not _fits(shape, dims):
                full = (-1, *dims) if self._is_batching else dims
                return f"{where} with shape {_text(spec.shape)}, but its configuration says {_text(full)}"
        return ""

    def datatype_problem_of(self, specs: Sequence[TensorSpec]) -> str:
        """Return which of these outputs has the wrong datatype, "" for none."""
        for spec in specs:
            datatype, _ = self._expected[spec.name]
            if spec.datatype is not datatype:
                return (
                    f"model '{self._model_name}' answered output '{spec.name}' with datatype {spec.datatype.value}, "
                    f"but its configuration says {datatype.value}"
                )
        return ""

    def is_complete(self, specs: Sequence[TensorSpec]) -> bool:
        """Tell whether every configured output is there."""
        return len({spec.name for spec in specs}) == len(self._expected)

    def rows_of(self, specs: Sequence[TensorSpec]) -> int:
        """Return the rows that the outputs have in common; -1 when they differ, 0 when none are to be compared."""
        if not self._is_batching or not specs:
            return 0
        rows = {spec.shape[0] if spec.shape else -1 for spec in specs}
        return rows.pop() if len(rows) == 1 else -1

    def missing(self, request: InferRequest, specs: Sequence[TensorSpec]) -> InferError | None:
        """Return the error for an output that the request names and an incomplete answer lacks.

        Triton: a model may leave out outputs; a request that names none gets those that there are, even if there are
        none. That is a mistake of the model, or of a name in it, and an error here.
        """
        present = {spec.name for spec in specs}
        if not present:
            names = ", ".join(f"'{name}'" for name in self._expected)
            return internal(f"model '{self._model_name}' answered with none of its outputs: {names}")
        for output in request.header.outputs:
            if output.name not in present:
                return internal(
                    f"model '{self._model_name}' answered without output '{output.name}', which the request asks for"
                )
        return None

    def wrong_rows(self, request: InferRequest, specs: Sequence[TensorSpec]) -> InferError:
        """Return the error for outputs whose rows are not those of the request."""
        shapes = ", ".join(f"'{spec.name}' {_text(spec.shape)}" for spec in specs)
        return internal(
            f"model '{self._model_name}' answered a request of batch size {request.batch_size} with outputs of other "
            f"batch sizes: {shapes}"
        )


def _fits(shape: Shape, dims: Shape) -> bool:
    return len(shape) == len(dims) and all(dim in (-1, size) for dim, size in zip(dims, shape, strict=True))


def _text(shape: Shape) -> str:
    return "[" + ",".join(map(str, shape)) + "]"
