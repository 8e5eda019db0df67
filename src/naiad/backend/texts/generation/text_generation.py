"""The tensors of models that generate text: vLLM's, and what a chat needs besides; their responses."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from naiad.backend.api import ModelContext
from naiad.backend.signature import ModelSignature, TensorSignature, complete, is_complete
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import DataType
from naiad.core.request import InferRequest
from naiad.core.response import ResponseHeader
from naiad.core.tensor import Buffer, TensorSpec

SWITCHES: Mapping[str, DataType] = MappingProxyType(
    {
        "exclude_input_in_output": DataType.BOOL,
        "return_num_input_tokens": DataType.BOOL,
        "return_num_output_tokens": DataType.BOOL,
        "return_finish_reason": DataType.BOOL,
        "return_logprobs": DataType.BOOL,
    }
)
"""Inputs of vLLM that change nothing: the prompt is never repeated, and the outputs are always there."""
TOKEN_IDS = "token_ids"
"""Name of the output with the numbers of the new tokens."""
INPUT_IDS = "input_ids"
"""Name of the input with the numbers of the tokens of a prompt."""
_TEXT_INPUTS = ("text_input", "messages")
_DECODER_INPUTS: Mapping[str, DataType] = {
    "text_input": DataType.BYTES,
    "messages": DataType.BYTES,
    "stream": DataType.BOOL,
    "sampling_parameters": DataType.BYTES,
    INPUT_IDS: DataType.INT64,
    **SWITCHES,
}
DECODER_OUTPUTS: Mapping[str, DataType] = MappingProxyType(
    {
        "text_output": DataType.BYTES,
        "finish_reason": DataType.BYTES,
        "num_input_tokens": DataType.UINT32,
        "num_output_tokens": DataType.UINT32,
        TOKEN_IDS: DataType.INT64,
    }
)
"""Outputs of models whose tokens the server chooses."""
_MAX_COUNT = 8
"""The most tokens of a response whose header is kept: responses of streams have one or two."""
_VARIABLE = frozenset({TOKEN_IDS, INPUT_IDS})
OutputValues = Mapping[str, str | int | Sequence[int]]


def generation_signature(
    framework: str, inputs: Mapping[str, DataType], outputs: Mapping[str, DataType]
) -> ModelSignature:
    """Return the signature of a model that generates text. All inputs are optional."""
    return ModelSignature(
        framework,
        {},
        {name: TensorSignature(name, datatype, _dims(name)) for name, datatype in outputs.items()},
        {name: TensorSignature(name, datatype, _dims(name)) for name, datatype in inputs.items()},
    )


def decoder_signature(framework: str, *, has_text: bool) -> ModelSignature:
    """Return the signature of a model whose tokens the server chooses. Without a tokenizer there are no texts."""
    inputs = {name: datatype for name, datatype in _DECODER_INPUTS.items() if has_text or name not in _TEXT_INPUTS}
    outputs = {name: datatype for name, datatype in DECODER_OUTPUTS.items() if has_text or name != "text_output"}
    return generation_signature(framework, inputs, outputs)


def _dims(name: str) -> tuple[int | None]:
    return (None,) if name in _VARIABLE else (1,)


def completed_generation(context: ModelContext, signature: ModelSignature) -> ModelConfig:
    """Return the configuration with tensors and transaction policy filled in. Raises InferError."""
    config = ModelConfig()
    config.CopyFrom(context.config)
    if not is_complete(config) and not config.input:
        config = complete(config, replace(signature, inputs=signature.optional_inputs), 0)
        for tensor in config.input:
            tensor.optional = True
    if not config.HasField("model_transaction_policy"):
        config.model_transaction_policy.decoupled = True
    return config


class ResponseTensors:
    """Makes the outputs of responses; headers are shared by all responses with the same outputs."""

    def __init__(self, model_name: str, version: int, outputs: Mapping[str, DataType]) -> None:
        """`outputs` are all that the model has."""
        self._model = (model_name, str(version))
        self._outputs = outputs
        self._headers: dict[tuple[tuple[str, ...], int], ResponseHeader] = {}
        self.empty = ResponseHeader(model_name, str(version), ())
        """For errors, and for the end of a request that was cancelled."""

    def encode(self, request: InferRequest, values: OutputValues) -> tuple[ResponseHeader, Sequence[Buffer]]:
        """Return header and data of the outputs that a request wants, all without a choice of its own."""
        names = tuple(output.name for output in request.header.outputs) or tuple(self._outputs)
        ids = values.get(TOKEN_IDS, ())
        count = len(ids) if isinstance(ids, Sequence) and TOKEN_IDS in names else 1
        header = self._headers.get((names, count))
        if header is None:
            specs = [TensorSpec(name, self._outputs[name], (count if name in _VARIABLE else 1,)) for name in names]
            header = ResponseHeader(*self._model, specs)
            if count <= _MAX_COUNT and len(self._headers) < 1 << len(self._outputs):
                self._headers[names, count] = header
        return header, [_element(values[name]) for name in names]


def _element(value: str | int | Sequence[int]) -> bytes:
    if isinstance(value, int):
        return struct.pack("<I", value)
    if not isinstance(value, str):
        return np.asarray(value, "<i8").tobytes()
    data = value.encode("utf-8", "replace")
    return struct.pack("<I", len(data)) + data
