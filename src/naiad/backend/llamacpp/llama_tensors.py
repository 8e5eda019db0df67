"""The tensors of a GGUF model: vLLM's, and what a chat needs besides."""

from naiad.backend.texts.generation.text_generation import SWITCHES, generation_signature
from naiad.core.datatype import DataType

_INPUTS = {
    "text_input": DataType.BYTES,
    "messages": DataType.BYTES,
    "stream": DataType.BOOL,
    "sampling_parameters": DataType.BYTES,
    "response_format": DataType.BYTES,
    "tools": DataType.BYTES,
    "tool_choice": DataType.BYTES,
    **SWITCHES,
}
"""All are optional, and have one element."""
OUTPUTS = {
    "text_output": DataType.BYTES,
    "finish_reason": DataType.BYTES,
    "num_input_tokens": DataType.UINT32,
    "num_output_tokens": DataType.UINT32,
    "logprobs": DataType.BYTES,
    "tool_calls": DataType.BYTES,
}
SIGNATURE = generation_signature("GGUF", _INPUTS, OUTPUTS)
