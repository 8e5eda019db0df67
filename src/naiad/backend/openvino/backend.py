"""The OpenVINO backend: IR, ONNX and TFLite files, one compiled model for all instances of a version."""

import ctypes
import logging
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import openvino

from naiad.backend.api import Backend, Instance, InstanceSpec, Model, ModelContext
from naiad.backend.framework import Scalars, check_signature
from naiad.backend.openvino.compile_options import CompilePlan
from naiad.backend.openvino.graph import Graph, make_batching, ov_message
from naiad.backend.signature import ModelSignature, complete, default_max_batch_size, is_complete
from naiad.backend.tensor_instance import TensorInstance
from naiad.backend.tensor_layout import shape_text
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import DataType
from naiad.core.errors import internal, invalid_argument
from naiad.core.tensor import Array

_log = logging.getLogger(__name__)
_BF16 = DataType.BF16.numpy


class OpenVinoBackend(Backend):
    """Models that OpenVINO executes."""

    name: ClassVar[str] = "openvino"

    def __init__(self) -> None:
        self._core = openvino.Core()

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        """Fill in batching, inputs and outputs from the model file. Raises InferError."""
        config = context.config
        if is_complete(config):
            return config
        graph = Graph(self._core, context)
        batch_size = default_max_batch_size(context.backend_config)
        is_free = not (config.max_batch_size or config.input or config.output)
        if is_free and batch_size > 0:
            make_batching(graph.model)
        return complete(config, graph.signature(), batch_size)

    def load(self, context: ModelContext) -> Model:
        """Compile the model and hold the configuration against it. Raises InferError."""
        return OpenVinoModel(self._core, context)


class OpenVinoModel(Model):
    """One loaded version."""

    def __init__(self, core: Any, context: ModelContext) -> None:
        self._context = context
        graph = Graph(core, context)
        self._plan = graph.plan
        self._signature = graph.signature()
        self._scalars = check_signature(context, self._signature)
        self._compiled: Any = graph.compile()
        properties = self._plan.properties
        if "INFERENCE_NUM_THREADS" in properties:
            streams = properties.get("NUM_STREAMS", "several")
            _log.info(
                "model '%s' version %d: %s threads in %s streams, precision %s",
                context.name, context.version, properties["INFERENCE_NUM_THREADS"], streams,
                properties["INFERENCE_PRECISION_HINT"],
            )  # fmt: skip

    def create_instance(self, spec: InstanceSpec) -> Instance:
        """Create an instance with an infer request of its own."""
        return OpenVinoInstance(self._context, self._compiled, self._signature, self._plan, self._scalars)

    def close(self) -> None:
        """Release the compiled model."""
        self._compiled = None


class OpenVinoInstance(TensorInstance):
    """Runs batches with an infer request of its own."""

    runs_on_any_thread: ClassVar[bool] = True

    def __init__(
        self, context: ModelContext, compiled: Any, signature: ModelSignature, plan: CompilePlan, scalars: Scalars
    ) -> None:
        super().__init__(context)
        self.executable = compiled.create_infer_request()
        self._input_indexes = {name: index for index, name in enumerate(signature.inputs)}
        self._outputs = {
            name: (index, tensor.datatype) for index, (name, tensor) in enumerate(signature.outputs.items())
        }
        self._rows = context.config.max_batch_size if plan.has_fixed_rows else 0
        self._pads_rows = plan.pads_rows
        self._scalars = scalars
        is_stateful = bool(self.executable.query_state())
        # The next request may be another client's. The requests of a sequence follow each other.
        self._forgets = is_stateful and not context.config.HasField("sequence_batching")

    def run(self, inputs: dict[str, Array], output_names: Sequence[str]) -> Sequence[Array]:
        """Run the model; see `TensorInstance.run`."""
        self._scalars.to_model(inputs)
        count = self._fill_rows(inputs) if self._rows else 0
        self._set_inputs(inputs)
        try:
            if self._forgets:
                self.executable.reset_state()
            # `infer` makes a dictionary of all outputs first: 20 us more than this, of 40 for a tiny model.
            self.executable.start_async()
            self.executable.wait()
        except RuntimeError as error:
            raise internal(f"OpenVINO cannot execute model '{self._model_name}': {ov_message(error)}") from error
        outputs = [self._take(name) for name in output_names]
        return [array[:count] for array in outputs] if self._rows else outputs

    def _set_inputs(self, inputs: dict[str, Array]) -> None:
        for name, array in inputs.items():
            try:
                self.executable.set_input_tensor(self._input_indexes[name], _as_tensor(array))
            except (RuntimeError, ValueError) as error:
                raise invalid_argument(
                    f"model '{self._model_name}' does not accept input '{name}' of shape {shape_text(array.shape)}: "
                    f"{ov_message(error)}"
                ) from error

    def _take(self, name: str) -> Array:
        """Return a copy of an output, whose memory the next run overwrites, or which is that of an input."""
        index, datatype = self._outputs[name]
        tensor = self.executable.get_output_tensor(index)
        if datatype is DataType.BYTES:
            return self._scalars.to_client(name, tensor.bytes_data)
        # OpenVINO gives BF16 out as arrays of FP16.
        array = tensor.data.view(_BF16) if datatype is DataType.BF16 else tensor.data
        return self._scalars.to_client(name, array.copy())

    def _fill_rows(self, inputs: dict[str, Array]) -> int:
        """Fill the inputs up to the rows of the model with zeros, in place, and return the rows that they had."""
        count = int(next(iter(inputs.values())).shape[0])
        if count == self._rows:
            return count
        if not self._pads_rows:
            raise invalid_argument(
                f"model '{self._model_name}' executes exactly {self._rows} rows, because of its parameter "
                f"SKIP_OV_DYNAMIC_BATCHSIZE, but the batch has {count}; set ENABLE_BATCH_PADDING to YES to fill "
                "batches up"
            )
        for name, array in inputs.items():
            padded = np.zeros((self._rows, *array.shape[1:]), array.dtype)
            padded[:count] = array
            inputs[name] = padded
        return count


def _as_tensor(array: Array) -> Any:
    """Return an openvino.Tensor on the memory of `array`; strings are copied."""
    if array.dtype == object:
        return openvino.Tensor(array.astype(np.bytes_))
    if not array.size:
        return openvino.Tensor(array)
    shared = array if array.flags.writeable else _writable(array)
    if array.dtype == _BF16:
        return openvino.Tensor(shared.view(np.float16), array.shape, openvino.Type.bf16)
    return openvino.Tensor(shared, shared_memory=True)


def _writable(array: Array) -> Array:
    """Return the same memory as a writable array: OpenVINO takes no other, and does not write to its inputs.

    The caller keeps `array` alive.
    """
    memory = (ctypes.c_char * array.nbytes).from_address(array.__array_interface__["data"][0])
    return np.ndarray(array.shape, array.dtype, memoryview(memory).cast("B"))
