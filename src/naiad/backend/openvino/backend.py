"""The OpenVINO backend: IR, ONNX and TFLite files, one compiled model for all instances of a version."""

import logging
from typing import Any, ClassVar

import openvino

from naiad.backend.api import Backend, Instance, InstanceSpec, Model, ModelContext
from naiad.backend.framework import check_signature
from naiad.backend.openvino.graph import Graph, make_batching
from naiad.backend.openvino.instance import OpenVinoInstance
from naiad.backend.signature import complete, default_max_batch_size, is_complete
from naiad.config.model_config_pb2 import ModelConfig

_log = logging.getLogger(__name__)


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
