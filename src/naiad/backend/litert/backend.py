"""The LiteRT backend: TFLite files, an interpreter with XNNPACK for each instance."""

import logging
from collections.abc import Sequence
from typing import ClassVar

from naiad.backend.api import Backend, Instance, InstanceSpec, Model, ModelContext
from naiad.backend.framework import (
    ModelFile,
    Parameters,
    Scalars,
    check_signature,
    find_model_file,
    threads_per_instance,
)
from naiad.backend.litert.graph import Graph, UnknownSignatureError, open_graph
from naiad.backend.litert.signature import LiteRtSignature, quantization, read_signature
from naiad.backend.signature import ModelSignature, completed
from naiad.backend.tensor_instance import TensorInstance
from naiad.backend.tensor_layout import shape_text
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import internal, invalid_argument
from naiad.core.tensor import Array

_log = logging.getLogger(__name__)
_FILENAMES = ("model.tflite",)
_IDENTIFIER = b"TFL3"


class LiteRtBackend(Backend):
    """Models that LiteRT executes."""

    name: ClassVar[str] = "litert"

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        """Fill in batching, inputs and outputs from the model file. Raises InferError."""

        def read() -> ModelSignature:
            file = LiteRtFile(context)
            return file.signature(file.open()).tensors

        return completed(context, read)

    def load(self, context: ModelContext) -> Model:
        """Run the model once and hold the configuration against it. Raises InferError."""
        return LiteRtModel(context)


class LiteRtFile(ModelFile):
    """The file of a model version, and how it is opened."""

    def __init__(self, context: ModelContext) -> None:
        """Read the file. It is not mapped: the server would die when the file is truncated."""
        super().__init__(context, find_model_file(context, _FILENAMES))
        config = context.config
        parameters = Parameters(config, context.backend_config)
        self._signature_name = parameters.text("signature")
        self._thread_count = threads_per_instance(context, parameters, "num_threads")
        self._names = {tensor.name for tensors in (config.input, config.output) for tensor in tensors}
        self._max_batch_size = config.max_batch_size
        self._content = self.path.read_bytes()
        if self._content[4:8] != _IDENTIFIER:
            raise self.error("is no TFLite file: it does not have 'TFL3' at byte 4", internal)

    def open(self) -> Graph:
        """Return the graph in a new interpreter. Raises InferError."""
        try:
            return open_graph(self._content, self._signature_name, self._thread_count)
        except UnknownSignatureError as error:
            raise invalid_argument(f"{self.opening} {self.path}: {error}") from error
        except (ValueError, RuntimeError) as error:
            reason = str(error).strip()
            remedy = (
                "the file is truncated or damaged, copy it again"
                if "Flatbuffer" in reason
                else "convert the model with the operators of TFLite itself only"
            )
            raise self.error(f"cannot be opened: {reason}; {remedy}", internal) from error

    def signature(self, graph: Graph) -> LiteRtSignature:
        """Return the signature of the graph. Raises InferError(INVALID_ARG) when it does not batch as configured."""
        signature = read_signature(graph, self._names)
        if signature.fixed_rows_reason and self._max_batch_size > 1:
            raise self.error(
                f"has its batch size built in, but the configuration has max_batch_size: {self._max_batch_size}: "
                f"{signature.fixed_rows_reason}; set max_batch_size: 0, or convert the model with a free first "
                "dimension"
            )
        return signature


class LiteRtModel(Model):
    """One loaded version."""

    def __init__(self, context: ModelContext) -> None:
        self._context = context
        self._file = LiteRtFile(context)
        graph = self._file.open()
        self._signature = self._file.signature(graph)
        self._scalars = check_signature(context, self._signature.tensors)
        for name, text in quantization({**graph.inputs, **graph.outputs}).items():
            _log.info("model '%s' version %d: '%s' is quantised: %s", context.name, context.version, name, text)

    def create_instance(self, spec: InstanceSpec) -> Instance:
        """Create an instance with an interpreter of its own. Raises InferError."""
        return LiteRtInstance(self._context, self._file.open(), self._signature, self._scalars)


class LiteRtInstance(TensorInstance):
    """Runs batches in an interpreter of its own."""

    runs_on_any_thread: ClassVar[bool] = True

    def __init__(self, context: ModelContext, graph: Graph, signature: LiteRtSignature, scalars: Scalars) -> None:
        super().__init__(context)
        self.executable = graph
        self._names = signature.graph_names
        self._scalars = scalars

    def run(self, inputs: dict[str, Array], output_names: Sequence[str]) -> Sequence[Array]:
        """Run the model; see `TensorInstance.run`."""
        self._scalars.to_model(inputs)
        try:
            outputs = self.executable.run({self._names[name]: array for name, array in inputs.items()})
        except (RuntimeError, ValueError) as error:
            shapes = ", ".join(f"'{name}' {shape_text(array.shape)}" for name, array in inputs.items())
            raise invalid_argument(
                f"LiteRT cannot execute model '{self._model_name}' on inputs of these shapes: {shapes}: {error}"
            ) from error
        return [self._scalars.to_client(name, outputs[self._names[name]]) for name in output_names]
