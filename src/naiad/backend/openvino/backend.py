"""The OpenVINO backend: IR, ONNX and TFLite files, one compiled model for all instances of a version."""

import logging
from pathlib import Path
from typing import Any, ClassVar

import openvino

from naiad.backend.api import Backend, Instance, InstanceSpec, Model, ModelContext
from naiad.backend.framework.model_files import find_model_file
from naiad.backend.framework.scalars import Scalars
from naiad.backend.openvino.graph import compile_graph, make_batching, read_graph
from naiad.backend.openvino.instance import OpenVinoInstance
from naiad.backend.openvino.options import plan_compilation
from naiad.backend.openvino.signature import read_signature
from naiad.backend.signature import SignatureCheck, complete, default_max_batch_size, is_complete
from naiad.config.execution import execution_config
from naiad.config.model_config_pb2 import ModelConfig

_log = logging.getLogger(__name__)
_FILENAMES = ("model.xml", "model.onnx", "model.tflite")


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
        plan = plan_compilation(context)
        model = read_graph(self._core, context, find_model_file(context, _FILENAMES), plan)
        batch_size = default_max_batch_size(context.backend_config)
        is_free = not (config.max_batch_size or config.input or config.output)
        if is_free and batch_size > 0:
            make_batching(model)
        signature = read_signature(model, _names(config), has_fixed_rows=plan.has_fixed_rows)
        return complete(config, signature, batch_size)

    def load(self, context: ModelContext) -> Model:
        """Compile the model and hold the configuration against it. Raises InferError."""
        return OpenVinoModel(self._core, context, find_model_file(context, _FILENAMES))


class OpenVinoModel(Model):
    """One loaded version."""

    def __init__(self, core: Any, context: ModelContext, path: Path) -> None:
        self._context = context
        self._plan = plan_compilation(context)
        graph = read_graph(core, context, path, self._plan)
        config = execution_config(context.config)
        self._signature = read_signature(graph, _names(config), has_fixed_rows=self._plan.has_fixed_rows)
        SignatureCheck(config, self._signature).check()
        self._scalars = Scalars(config, self._signature)
        self._compiled: Any = compile_graph(core, context, path, graph, self._plan)
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


def _names(config: ModelConfig) -> set[str]:
    return {tensor.name for tensors in (config.input, config.output) for tensor in tensors}
