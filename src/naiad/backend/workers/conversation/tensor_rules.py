"""Checks a Python model's responses against the tensors of its configuration.

Triton: its Python backend passes on any datatype and shape of a response. So does this one, with a warning in the log
the first time. In strict mode such a response is an error.
"""

import logging
import math
import threading
from collections.abc import Iterator, Sequence

from naiad.backend.tensor_layout import TensorConfig, shape_text
from naiad.config.execution_tensors import execution_config
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import InferError, internal
from naiad.core.request import InferRequest
from naiad.core.tensor import Shape, TensorSpec

_log = logging.getLogger(__name__)
STRICT_PARAMETER = "strict_outputs"
ANY_ROWS = -2
"""The number of rows of outputs that have none to compare."""


class TensorRules:
    """The inputs and outputs of one model version, shared by its instances.

    Datatypes and shapes are checked once per distinct response header; other responses cost two comparisons a
    request.
    """

    def __init__(self, config: ModelConfig, *, version: str = "1", is_strict: bool = False) -> None:
        self._model_name = config.name
        self._version = version
        self._is_batching = config.max_batch_size > 0
        self._is_strict = is_strict
        executed = execution_config(config)
        self._outputs = {output.name: TensorConfig(output) for output in executed.output}
        self._states = self._outputs.keys() - {output.name for output in config.output}
        """States, which the server keeps, with the datatype of the configuration."""
        self._reshaped = {tensor.name: TensorConfig(tensor) for tensor in config.input if tensor.HasField("reshape")}
        self._warned: set[str] = set()
        self._lock = threading.Lock()

    # --- inputs -----------------------------------------------------------------------------------------------------

    def model_shape(self, spec: TensorSpec) -> Shape:
        """Return the shape of an input for the model: the client's, after `reshape`."""
        config = self._reshaped.get(spec.name)
        if config is None:
            return spec.shape
        batch, tail = self._split(spec.shape)
        return batch + config.to_model(tail)

    # --- outputs ----------------------------------------------------------------------------------------------------

    def client_specs(self, specs: Sequence[TensorSpec]) -> Sequence[TensorSpec]:
        """Return outputs for clients: with `dims` in place of the shape of `reshape`."""
        return [self._client_spec(spec, self._outputs[spec.name]) for spec in specs]

    def problem_of(self, specs: Sequence[TensorSpec], *, is_decoupled: bool = False) -> str:
        """Return the error of these outputs, "" for none; other differences are logged once.

        The responses of a decoupled model may vary in shape.
        """
        for spec in specs:
            config = self._outputs[spec.name]
            differences = [f"{what}, but its configuration says {said}" for what, said in self._differences(spec)]
            if is_decoupled and spec.datatype is config.datatype:
                differences = []
            where = f"model '{self._model_name}' answered output '{spec.name}' with "
            if differences and (self._is_strict or spec.name in self._states):
                return where + differences[0]
            if math.prod(self._dims(spec, config)) != spec.element_count and config.dims != config.model_dims:
                return (
                    f"output tensor shape does not match size of output for '{spec.name}': {where}"
                    f"shape {shape_text(spec.shape)}, which its 'reshape' does not fit"
                )
            if differences:
                self._warn(spec.name, where + "; with ".join(differences))
        return ""

    def is_complete(self, specs: Sequence[TensorSpec]) -> bool:
        """Return whether every configured output is present."""
        return len({spec.name for spec in specs}) == len(self._outputs)

    def rows_of(self, specs: Sequence[TensorSpec]) -> int:
        """Return the common number of rows of the outputs; -1 if they differ, ANY_ROWS if none are to be compared."""
        if not self._is_batching or not specs:
            return ANY_ROWS
        rows = {spec.shape[0] if spec.shape else -1 for spec in specs}
        return rows.pop() if len(rows) == 1 else -1

    def missing(self, request: InferRequest, specs: Sequence[TensorSpec]) -> InferError | None:
        """Return the error for a requested output that a response lacks.

        Triton: a model may omit outputs; a request that names none gets the present ones, even none. That is a
        mistake of the model, or of a name in it, and an error here.
        """
        outputs = request.header.outputs
        if outputs and all(output.may_be_missing for output in outputs):
            return None
        present = {spec.name for spec in specs}
        if not present:
            whose = "the outputs that the request asks for" if outputs else "its outputs"
            names = ", ".join(f"'{name}'" for name in ([output.name for output in outputs] or self._outputs))
            return internal(f"model '{self._model_name}' returned none of {whose}: {names}")
        for output in outputs:
            if output.name not in present:
                return internal(
                    f"model '{self._model_name}' answered without output '{output.name}', which the request asks for"
                )
        return None

    def wrong_rows(self, request: InferRequest, specs: Sequence[TensorSpec]) -> InferError | None:
        """Return the error for outputs with other rows than the request; None if they are passed on."""
        shapes = ", ".join(f"'{spec.name}' {shape_text(spec.shape)}" for spec in specs)
        text = (
            f"model '{self._model_name}' answered a request of batch size {request.batch_size} with outputs of other "
            f"batch sizes: {shapes}"
        )
        if self._is_strict:
            return internal(text)
        self._warn("", text)
        return None

    def _client_spec(self, spec: TensorSpec, config: TensorConfig) -> TensorSpec:
        if config.dims == config.model_dims:
            return spec
        return TensorSpec(spec.name, spec.datatype, self._dims(spec, config))

    # --- comparison -------------------------------------------------------------------------------------------------

    def _split(self, shape: Shape) -> tuple[Shape, Shape]:
        """Return the batch dimension, if any, and the rest."""
        return (shape[:1], shape[1:]) if self._is_batching else ((), shape)

    def _dims(self, spec: TensorSpec, config: TensorConfig) -> Shape:
        """Return the shape for clients. Triton: free dimensions replace the dimensions of 'reshape'."""
        batch, tail = self._split(spec.shape)
        free = iter([size for size, dim in zip(tail, config.model_dims, strict=False) if dim < 0])
        return batch + tuple(next(free, 1) if dim < 0 else dim for dim in config.dims)

    def _differences(self, spec: TensorSpec) -> Iterator[tuple[str, str]]:
        """Yield the differences between an output and its configuration."""
        config = self._outputs[spec.name]
        if spec.datatype is not config.datatype:
            yield f"datatype {spec.datatype.value}", config.datatype.value
        batch, tail = self._split(spec.shape)
        lacks_batch = self._is_batching and not batch
        dims = config.model_dims
        fits = len(tail) == len(dims) and all(dim in (-1, size) for dim, size in zip(dims, tail, strict=True))
        if lacks_batch or not fits:
            full = (-1, *dims) if self._is_batching else dims
            yield f"shape {shape_text(spec.shape)}", shape_text(full)

    def _warn(self, output: str, text: str) -> None:
        """Log that a response differs from the configuration and is passed on; once for each output."""
        with self._lock:
            is_known = output in self._warned
            self._warned.add(output)
        if not is_known:
            _log.warning(
                "%s (version %s). It is passed on, as in Triton, and not logged again. Correct the model or its "
                "config.pbtxt; parameter '%s' makes such answers errors",
                text,
                self._version,
                STRICT_PARAMETER,
            )
