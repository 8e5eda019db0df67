"""Writes the voice detector as a sequence model: Silero's network, with its state in the server.

Silero's own graph does not support batches of sequences: its state has the batch as the second dimension, and the
client has to send the last 64 samples of the previous chunk. A few nodes around it move the batch to the front
everywhere and turn those samples into a second state:

    chunk f32[N,512], context f32[N,64], state_in f32[N,2,128] -> prob f32[N,1], context_out, state_out
"""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from naiad.tools.demo.demo_repository import new_model
from naiad.tools.demo.packages import SILERO, fetch

RATE_HZ = 16_000
CHUNK_SAMPLES = 512
CONTEXT_SAMPLES = 64
STATE_DIMS = (2, 128)

_TENSORS = """
input [ { name: "chunk" data_type: TYPE_FP32 dims: [ 512 ] } ]
output [ { name: "prob" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""
_CPU = """
instance_group [ { count: 1 kind: KIND_CPU } ]
parameters { key: "intra_op_thread_count" value { string_value: "1" } }
"""
_STATES = """
  state [
    {
      input_name: "context" output_name: "context_out" data_type: TYPE_FP32 dims: [ 64 ]
      initial_state: { name: "silence" data_type: TYPE_FP32 dims: [ 64 ] zero_data: true }
    },
    {
      input_name: "state_in" output_name: "state_out" data_type: TYPE_FP32 dims: [ 2, 128 ]
      initial_state: { name: "nothing heard" data_type: TYPE_FP32 dims: [ 2, 128 ] zero_data: true }
    }
  ]
"""


def write_sequence_model(root: Path, name: str, strategy: str, max_batch_size: int = 32) -> Path:
    """Write the model with implicit state; `strategy` is the text of `direct` or `oldest`. Returns its directory."""
    config = f"""# Silero: is there speech in these 32 ms? The state of a sequence stays in the server.
backend: "onnxruntime"
max_batch_size: {max_batch_size}{_TENSORS}{_CPU}sequence_batching {{
  {strategy}
  max_sequence_idle_microseconds: 60000000{_STATES}}}
"""
    return _write(root, name, config)


def write_plain_model(root: Path, name: str, max_batch_size: int = 32) -> Path:
    """Write the same network without sequences: the client sends the states and receives them."""
    config = f"""# Silero without sequences: the client keeps the state.
backend: "onnxruntime"
max_batch_size: {max_batch_size}
dynamic_batching {{}}
input [
  {{ name: "chunk" data_type: TYPE_FP32 dims: [ 512 ] }},
  {{ name: "context" data_type: TYPE_FP32 dims: [ 64 ] }},
  {{ name: "state_in" data_type: TYPE_FP32 dims: [ 2, 128 ] }}
]
output [
  {{ name: "prob" data_type: TYPE_FP32 dims: [ 1 ] }},
  {{ name: "context_out" data_type: TYPE_FP32 dims: [ 64 ] }},
  {{ name: "state_out" data_type: TYPE_FP32 dims: [ 2, 128 ] }}
]
{_CPU}"""
    return _write(root, name, config)


def _write(root: Path, name: str, config: str) -> Path:
    (new_model(root, name, config) / "model.onnx").write_bytes(batch_first(network()))
    return root / name


def network() -> Path:
    """Return Silero's own file. Raises RuntimeError if it is not available."""
    (path,) = fetch(SILERO).values()
    return path


def batch_first(source: Path) -> bytes:
    """Return the graph described above around Silero's for 16 kHz, serialised."""
    model = onnx.load(source)
    inner = model.graph
    for node in inner.node:
        node.name = f"silero_{node.name}"
    before = [
        helper.make_node("Concat", ["context", "chunk"], ["input"], axis=1),
        helper.make_node("Transpose", ["state_in"], ["state"], perm=[1, 0, 2]),
    ]
    after = [
        helper.make_node("Identity", ["output"], ["prob"]),
        helper.make_node("Transpose", ["stateN"], ["state_out"], perm=[1, 0, 2]),
        helper.make_node("Slice", ["chunk", "context_begin", "context_end", "context_axis"], ["context_out"]),
    ]
    constants = {
        "sr": np.array(RATE_HZ, np.int64),
        "context_begin": np.array([CHUNK_SAMPLES - CONTEXT_SAMPLES], np.int64),
        "context_end": np.array([CHUNK_SAMPLES], np.int64),
        "context_axis": np.array([1], np.int64),
    }
    graph = helper.make_graph(
        [*before, *inner.node, *after],
        "silero_vad_batch_first",
        [_tensor("chunk", CHUNK_SAMPLES), _tensor("context", CONTEXT_SAMPLES), _tensor("state_in", *STATE_DIMS)],
        [_tensor("prob", 1), _tensor("context_out", CONTEXT_SAMPLES), _tensor("state_out", *STATE_DIMS)],
        [*inner.initializer, *(numpy_helper.from_array(value, name) for name, value in constants.items())],
    )
    wrapped = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    onnx.checker.check_model(wrapped)
    return bytes(wrapped.SerializeToString())


def _tensor(name: str, *dims: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", *dims])
