"""Models of sequences for tests."""

from pathlib import Path

from support import onnx_models
from support.model_repository import write_model

_CONTROLS = """
  control_input [
    { name: "START" control [ { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } ] },
    { name: "END" control [ { kind: CONTROL_SEQUENCE_END fp32_false_true: [ 0, 1 ] } ] },
    { name: "READY" control [ { kind: CONTROL_SEQUENCE_READY fp32_false_true: [ 0, 1 ] } ] },
    { name: "CORRID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_INT64 } ] }
  ]
"""
_TENSORS = """
input [ { name: "INPUT" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [
  { name: "OUTPUT" data_type: TYPE_FP32 dims: [ 1 ] },
  { name: "SEEN_ID" data_type: TYPE_INT64 dims: [ 1 ] },
  { name: "SEEN_START" data_type: TYPE_FP32 dims: [ 1 ] },
  { name: "SEEN_READY" data_type: TYPE_FP32 dims: [ 1 ] },
  { name: "SEEN_END" data_type: TYPE_FP32 dims: [ 1 ] }
]
"""


def write_running_sum(
    repository: Path,
    name: str,
    strategy: str,
    *,
    max_batch_size: int = 4,
    idle_us: int = 5_000_000,
    instances: int = 1,
    initial_state: str = "",
) -> Path:
    """Write a model whose OUTPUT is the sum of the INPUTs of its sequence; its state is kept by the server."""
    config = f"""
      backend: "onnxruntime" max_batch_size: {max_batch_size} {_TENSORS}
      instance_group [ {{ count: {instances} kind: KIND_CPU }} ]
      sequence_batching {{
        max_sequence_idle_microseconds: {idle_us} {strategy} {_CONTROLS}
        state [ {{
          input_name: "STATE_IN" output_name: "STATE_OUT" data_type: TYPE_FP32 dims: [ 1 ] {initial_state}
        }} ]
      }}
    """
    return write_model(repository, name, config, {"1/model.onnx": onnx_models.running_sum()})
