"""The tensors of a GGUF model: vLLM's, and what a chat needs besides; its responses."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace

from naiad.backend.api import ModelContext
from naiad.backend.signature import ModelSignature, TensorSignature, complete, is_complete
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import DataType
from naiad.core.request import InferRequest
from naiad.core.response import ResponseHeader
from naiad.core.tensor import Buffer, TensorSpec

_INPUTS = {
    "text_input": DataType.BYTES,
    "messages": DataType.BYTES,
    "stream": DataType.BOOL,
    "sampling_parameters": DataType.BYTES,
    "response_format": DataType.BYTES,
    "tools": DataType.BYTES,
    "tool_choice": DataType.BYTES,
    "exclude_input_in_output": DataType.BOOL,
    "return_num_input_tokens": DataType.BOOL,
    "return_num_output_tokens": DataType.BOOL,
    "return_finish_reason": DataType.BOOL,
    "return_logprobs": DataType.BOOL,
}
"""All are optional, and have one element. Those from `exclude_input_in_output` on are vLLM's and change nothing: the
prompt is never repeated, and the outputs are always there."""
_OUTPUTS = {
    "text_output": DataType.BYTES,
    "finish_reason": DataType.BYTES,
    "num_input_tokens": DataType.UINT32,
    "num_output_tokens": DataType.UINT32,
    "logprobs": DataType.BYTES,
    "tool_calls": DataType.BYTES,
}
OutputValues = Mapping[str, str | int]

SIGNATURE = ModelSignature(
    "GGUF",
    {},
    {name: TensorSignature(name, datatype, (1,)) for name, datatype in _OUTPUTS.items()},
    {name: TensorSignature(name, datatype, (1,)) for name, datatype in _INPUTS.items()},
)


def completed_generation(context: ModelContext) -> ModelConfig:
    """Return the configuration with tensors and transaction policy filled in. Raises InferError."""
    config = ModelConfig()
    config.CopyFrom(context.config)
    if not is_complete(config) and not config.input:
        config = complete(config, replace(SIGNATURE, inputs=SIGNATURE.optional_inputs), 0)
        for tensor in config.input:
            tensor.optional = True
    if not config.HasField("model_transaction_policy"):
        config.model_transaction_policy.decoupled = True
    return config


class ResponseTensors:
    """Makes the outputs of responses; headers are shared by all responses with the same outputs."""

    def __init__(self, model_name: str, version: int) -> None:
        self._model = (model_name, str(version))
        self._headers: dict[tuple[str, ...], ResponseHeader] = {}
        self.empty = ResponseHeader(model_name, str(version), ())
        """For errors, and for the end of a request that was cancelled."""

    def encode(self, request: InferRequest, values: OutputValues) -> tuple[ResponseHeader, Sequence[Buffer]]:
        """Return header and data of the outputs that a request wants, all without a choice of its own."""
        names = tuple(output.name for output in request.header.outputs) or tuple(_OUTPUTS)
        header = self._headers.get(names)
        if header is None:
            specs = [TensorSpec(name, _OUTPUTS[name], (1,)) for name in names]
            header = ResponseHeader(*self._model, specs)
            if len(self._headers) < 1 << len(_OUTPUTS):
                self._headers[names] = header
        return header, [_element(values[name]) for name in names]


def _element(value: str | int) -> bytes:
    if isinstance(value, int):
        return struct.pack("<I", value)
    data = value.encode("utf-8", "replace")
    return struct.pack("<I", len(data)) + data
