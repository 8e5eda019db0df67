"""Ensembles in a test's own process: a chain of steps of one model, whose requests go to what the test gives."""

import itertools

from google.protobuf import text_format

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import DataType
from naiad.core.tensor import TensorSpec
from naiad.engine.ensemble.ensemble_model import EnsembleModel
from naiad.engine.serving.served import ModelRouter
from naiad.telemetry.statistics.model_statistics import ModelStatistics
from support.engine_parts import StepLoop

IN, OUT = TensorSpec("IN", DataType.FP32, (1,)), TensorSpec("OUT", DataType.FP32, (1,))
_MEMBER = """
  name: "member" max_batch_size: 0
  input [ { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] } ]
  output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""
_STEP = """step [ { model_name: "member" model_version: -1
  input_map { key: "IN" value: "%s" } output_map { key: "OUT" value: "%s" } } ]"""


def chain(
    router: ModelRouter, steps: int, *, most_inflight: int = 0, statistics: ModelStatistics | None = None
) -> EnsembleModel:
    """Return ensemble e, which passes FP32[1] IN through `steps` steps of the model `member` to OUT."""
    tensors = ["IN", *[f"t{i}" for i in range(1, steps)], "OUT"]
    written = "".join(_STEP % pair for pair in itertools.pairwise(tensors))
    text = _MEMBER.replace("member", "e")
    text += f"ensemble_scheduling {{ max_inflight_requests: {most_inflight} {written} }}"
    return EnsembleModel(
        name="e",
        version=1,
        config=text_format.Parse(text, ModelConfig()),
        members={"member": text_format.Parse(_MEMBER, ModelConfig())},
        router=router,
        statistics=statistics or ModelStatistics("e", "1"),
        loop=StepLoop(),
    )
