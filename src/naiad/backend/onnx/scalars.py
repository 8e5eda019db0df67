"""Scalars of ONNX models: tensors without dimensions, which a configuration writes as `dims: [1]` or `[1,1]`.

Without batching a scalar is one element in both directions. With batching each row of a request has its own value,
but the model takes one value per run, so rows with different values run one after the other:

    X [3,4]  K [3,1] = 5 5 7   ->   run(X[0:1], 5)  run(X[1:2], 5)  run(X[2:3], 7)   ->   Y [3,4]
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from naiad.backend.api import ModelContext
from naiad.backend.onnx.gpu_instance import GpuOnnxInstance
from naiad.backend.onnx.instance import Bf16OnnxInstance, OnnxInstance
from naiad.backend.onnx.sessions import OnnxSession
from naiad.core.errors import invalid_argument
from naiad.core.tensor import Array


class ScalarOnnxInstance(OnnxInstance):
    """Runs a model with scalars on the CPU; bound buffers would have the shapes of the configuration."""

    binds: ClassVar[bool] = False

    def __init__(self, context: ModelContext, session: OnnxSession) -> None:
        super().__init__(context, session)
        signature = session.signature
        known = {**signature.optional_inputs, **signature.inputs}
        self._scalar_inputs = [t.name for t in self._table.inputs if t.name in known and not known[t.name].dims]
        self._output_ranks = {output.name: len(output.dims) for output in self._table.outputs}
        self._has_scalar_output = False
        """Whether a run has returned a scalar; the signature does not distinguish one from an unknown rank."""

    def run(self, inputs: dict[str, Array], output_names: Sequence[str]) -> Sequence[Array]:
        """Run the session once, or once per row; see `TensorInstance.run`."""
        row_count = next(iter(inputs.values())).shape[0] if inputs and self._is_batching else 1
        if row_count == 1 or (not self._has_scalar_output and self._has_equal_rows(inputs)):
            arrays = self._run_scalars(inputs, output_names)
            if row_count == 1 or not any(_is_scalar(array) for array in arrays):
                return self._shaped(arrays, output_names)
            self._has_scalar_output = True
        if self._table.is_ragged:
            # The server then executes the requests of the batch one by one.
            raise invalid_argument(
                f"model '{self._model_name}': rows of a ragged batch need equal values of the scalar inputs "
                f"{', '.join(self._scalar_inputs)}; send one row per request"
            )
        rows = []
        for row in range(row_count):
            own = {name: array[row : row + 1] for name, array in inputs.items()}
            rows.append(self._shaped(self._run_scalars(own, output_names), output_names))
        return [np.concatenate(parts) for parts in zip(*rows, strict=True)]

    def _has_equal_rows(self, inputs: Mapping[str, Array]) -> bool:
        """Return whether each scalar input has one value for all rows."""
        scalars = [inputs[name].reshape(-1) for name in self._scalar_inputs if name in inputs]
        return all(bool((values == values[:1]).all()) for values in scalars)

    def _run_scalars(self, inputs: Mapping[str, Array], output_names: Sequence[str]) -> Sequence[Array]:
        made = dict(inputs)
        for name in self._scalar_inputs:
            if name in made:
                made[name] = made[name].reshape(-1)[:1].reshape(())
        return super().run(made, output_names)

    def _shaped(self, arrays: Sequence[Array], output_names: Sequence[str]) -> list[Array]:
        """Give scalars the dimensions that the configuration has for them."""
        batch_rank = int(self._is_batching)
        return [
            np.asarray(array).reshape((1,) * (batch_rank + self._output_ranks[name])) if _is_scalar(array) else array
            for name, array in zip(output_names, arrays, strict=True)
        ]


class ScalarGpuOnnxInstance(ScalarOnnxInstance, GpuOnnxInstance):
    """Runs a model with scalars on a GPU."""


class ScalarBf16OnnxInstance(ScalarOnnxInstance, Bf16OnnxInstance):
    """Runs a model with scalars and BF16 tensors."""


def _is_scalar(array: Array) -> bool:
    # ONNX Runtime returns a scalar string as a plain str.
    return np.ndim(array) == 0
