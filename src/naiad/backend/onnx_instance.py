"""Instances of ONNX models: how one batch runs on a session."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from naiad.backend.api import ModelContext
from naiad.backend.onnx_binding import run_bound, run_into
from naiad.backend.onnx_sessions import OnnxSession, ort_message, refuse_to_run
from naiad.backend.onnx_staging import OnnxStagedRun, are_small, plan_outputs
from naiad.backend.tensor_instance import StagedRun, TensorInstance
from naiad.core.datatype import DataType, from_numpy
from naiad.core.errors import internal, invalid_argument
from naiad.core.tensor import Array, TensorSpec

MAX_STAGED_RUNS = 64
"""Buffer sets that an instance keeps, one per shape of batch."""

LARGE_BYTES = 1 << 20
"""With an input of this size, memory for the outputs is worth giving back."""


class OnnxInstance(TensorInstance):
    """Runs batches on a session that it shares with the other instances."""

    runs_on_any_thread: ClassVar[bool] = True

    def __init__(self, context: ModelContext, session: OnnxSession) -> None:
        super().__init__(context)
        self._session = session
        self._run = session.run
        self._run_options = session.run_options
        self._string_inputs = [
            tensor.name for tensor in session.signature.inputs.values() if tensor.datatype is DataType.BYTES
        ]
        # The rows of a ragged batch are not those of its first input.
        self._may_preallocate = session.run_options is None and not self._table.is_ragged
        self._staged: dict[object, OnnxStagedRun] = {}

    def close(self) -> None:
        """Let go of the session, which may stay with other instances."""
        super().close()
        self._run = refuse_to_run
        self._staged.clear()

    def run(self, inputs: dict[str, Array], output_names: Sequence[str]) -> Sequence[Array]:
        """Run the session; see `TensorInstance.run`."""
        if self._string_inputs:
            self._decode_strings(inputs)
        is_large = self._may_preallocate and any(array.nbytes >= LARGE_BYTES for array in inputs.values())
        if is_large and (arrays := self._run_large(inputs, output_names)) is not None:
            return arrays
        try:
            outputs: Sequence[Array] = self._run(output_names, inputs, self._run_options)
        except Exception as error:  # ONNX Runtime raises a different class for each status
            raise internal(ort_message(error)) from error
        if is_large:
            # It works, only not with outputs of the shapes that were expected.
            self._may_preallocate = False
        return outputs

    def _run_large(self, inputs: dict[str, Array], output_names: Sequence[str]) -> Sequence[Array] | None:
        """Run with outputs in memory that does not stay in ONNX Runtime's arena; None when that cannot be done."""
        outputs = self._plan_outputs(inputs, output_names)
        if outputs is None:
            self._may_preallocate = False
            return None
        try:
            return run_into(self._session.ort, inputs, outputs)
        except Exception:  # the same inputs are run in the plain way at once, which tells the reason
            return None

    def run_into(
        self, inputs: dict[str, Array], output_names: Sequence[str], destinations: Mapping[str, memoryview]
    ) -> Sequence[Array] | None:
        """Run with outputs bound to the client's memory; see `TensorInstance.run_into`."""
        if self._string_inputs or self._run_options is not None:
            return None
        outputs = self._plan_outputs(inputs, output_names)
        if outputs is None:
            return None
        try:
            return run_into(self._session.ort, inputs, outputs, destinations)
        except Exception:  # the same inputs are run in the plain way at once, which tells the reason
            return None

    def _plan_outputs(self, inputs: dict[str, Array], output_names: Sequence[str]) -> Sequence[TensorSpec] | None:
        """Return the outputs for inputs of these shapes; None when they cannot be told or have nothing to bind."""
        specs = [
            TensorSpec(name, datatype, array.shape)
            for name, array in inputs.items()
            if (datatype := from_numpy(array.dtype)) is not None
        ]
        outputs = plan_outputs(self._session.signature, specs, output_names, is_batching=self._is_batching)
        return outputs if outputs is not None and all(spec.byte_size for spec in outputs) else None

    def stage(self, inputs: Sequence[TensorSpec], output_names: Sequence[str]) -> StagedRun | None:
        """Bind small inputs and outputs of known shapes to buffers; see `TensorInstance.stage`."""
        if self._run_options is not None:
            return None
        key = (tuple(inputs), tuple(output_names))
        staged = self._staged.get(key)
        if staged is None:
            outputs = plan_outputs(self._session.signature, inputs, output_names, is_batching=self._is_batching)
            if outputs is None or not are_small([*inputs, *outputs]):
                return None
            if len(self._staged) >= MAX_STAGED_RUNS:
                self._staged.clear()
            staged = self._staged[key] = OnnxStagedRun(self._session.ort, inputs, outputs)
        return staged

    def _decode_strings(self, inputs: dict[str, Array]) -> None:
        """Replace arrays of bytes with arrays of str, which is all that ONNX Runtime takes."""
        for name in self._string_inputs:
            array = inputs.get(name)
            if array is None:
                continue
            try:
                texts = [element.decode() for element in array.ravel().tolist()]
            except UnicodeDecodeError as error:
                raise invalid_argument(
                    f"input '{name}' of model '{self._model_name}' has an element that is not UTF-8 ({error}); "
                    "strings of ONNX models are text"
                ) from error
            decoded = np.empty(len(texts), dtype=np.object_)
            decoded[:] = texts
            inputs[name] = decoded.reshape(array.shape)


class GpuOnnxInstance(OnnxInstance):
    """Runs on a GPU: inputs are copied there and outputs back by ONNX Runtime."""

    runs_on_any_thread: ClassVar[bool] = False

    def __init__(self, context: ModelContext, session: OnnxSession) -> None:
        super().__init__(context, session)
        self._may_preallocate = False

    def stage(self, inputs: Sequence[TensorSpec], output_names: Sequence[str]) -> StagedRun | None:
        """Return None: what is bound lies in the host's memory."""
        return None

    def run_into(
        self, inputs: dict[str, Array], output_names: Sequence[str], destinations: Mapping[str, memoryview]
    ) -> Sequence[Array] | None:
        """Return None: outputs come from the GPU."""
        return None


class Bf16OnnxInstance(OnnxInstance):
    """Runs a model with BF16 tensors, for which ONNX Runtime has no arrays: all of them are bound by address."""

    def run(self, inputs: dict[str, Array], output_names: Sequence[str]) -> Sequence[Array]:
        """Run the session; see `TensorInstance.run`."""
        if self._string_inputs:
            self._decode_strings(inputs)
        try:
            return run_bound(self._session.ort, inputs, [self._session.signature.outputs[n] for n in output_names])
        except Exception as error:  # ONNX Runtime raises a different class for each status
            raise internal(ort_message(error)) from error
