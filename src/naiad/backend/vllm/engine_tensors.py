"""The tensors of a vLLM model, with the names of Triton's backend; what an engine returns → responses."""

import json
import struct
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from naiad.backend.api import ModelContext
from naiad.backend.signature import ModelSignature, SignatureCheck, TensorSignature
from naiad.backend.vllm.engine_request import SWITCHES, EngineRequest
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import DataType
from naiad.core.errors import invalid_argument
from naiad.core.response import ResponseHeader
from naiad.core.tensor import Buffer, TensorSpec

_OPTIONAL: Mapping[str, DataType] = MappingProxyType(
    {
        "stream": DataType.BOOL,
        "sampling_parameters": DataType.BYTES,
        "exclude_input_in_output": DataType.BOOL,
        **dict.fromkeys(SWITCHES, DataType.BOOL),
    }
)
OUTPUTS: Mapping[str, DataType] = MappingProxyType(
    {
        "text_output": DataType.BYTES,
        "finish_reason": DataType.BYTES,
        "cumulative_logprob": DataType.FP32,
        "logprobs": DataType.BYTES,
        "num_input_tokens": DataType.UINT32,
        "num_output_tokens": DataType.UINT32,
    }
)
_MAX_HEADERS = 256
SIGNATURE = ModelSignature(
    "vLLM",
    {"text_input": TensorSignature("text_input", DataType.BYTES, (1,))},
    {name: TensorSignature(name, datatype, (None,)) for name, datatype in OUTPUTS.items()},
    {name: TensorSignature(name, datatype, (1,)) for name, datatype in _OPTIONAL.items()},
)


def completed_config(context: ModelContext) -> ModelConfig:
    """Return the configuration with the tensors that it lacks, and as decoupled: Triton's backend does the same."""
    config = ModelConfig()
    config.CopyFrom(context.config)
    known = {tensor.name for tensor in config.input} | {tensor.name for tensor in config.output}
    for signature in (*SIGNATURE.inputs.values(), *SIGNATURE.optional_inputs.values()):
        if signature.name not in known and signature.datatype is not None:
            is_optional = signature.name in SIGNATURE.optional_inputs
            number = signature.datatype.config_number
            config.input.add(name=signature.name, data_type=number, dims=[1], optional=is_optional)
    for name, datatype in OUTPUTS.items():
        if name not in known:
            config.output.add(name=name, data_type=datatype.config_number, dims=[-1])
    config.model_transaction_policy.decoupled = True
    return config


def check_config(config: ModelConfig) -> None:
    """Raise InferError(INVALID_ARG) if the configuration is not that of a vLLM model."""
    if not config.model_transaction_policy.decoupled or config.max_batch_size:
        raise invalid_argument(
            f"model '{config.name}': the vllm backend needs model_transaction_policy {{ decoupled: true }} and "
            f"max_batch_size: 0, not {config.max_batch_size}; vLLM batches by itself"
        )
    shown = ModelConfig()
    shown.CopyFrom(config)
    for output in shown.output:
        if list(output.dims) == [1]:  # Triton's has one element for each text, and many say it like this
            output.dims[0] = -1
    SignatureCheck(shown, SIGNATURE).check()


class EngineResponses:
    """Makes the outputs of responses; headers are shared by all with the same outputs and number of texts."""

    def __init__(self, model_name: str, version: int) -> None:
        self._model = (model_name, str(version))
        self._headers: dict[tuple[frozenset[str], int], ResponseHeader] = {}
        self.empty = ResponseHeader(model_name, str(version), ())
        """For errors, and for the end of a request that was cancelled."""

    def encode(
        self, asked: EngineRequest, found: Any, prompt: str, prompt_tokens: int
    ) -> tuple[ResponseHeader, Sequence[Buffer]]:
        """Return header and data for vLLM's `RequestOutput`, whose texts are new; `prompt` stands before them."""
        texts = sorted(found.outputs, key=lambda each: int(each.index))
        values: Mapping[str, Any] = {
            "text_output": lambda: _strings([prompt + each.text for each in texts]),
            # Triton: "None" while a text goes on.
            "finish_reason": lambda: _strings([str(each.finish_reason) for each in texts]),
            "cumulative_logprob": lambda: np.array([each.cumulative_logprob or 0 for each in texts], "<f4").tobytes(),
            "logprobs": lambda: _strings([_logprobs(each) for each in texts]),
            "num_input_tokens": lambda: struct.pack("<I", prompt_tokens),
            "num_output_tokens": lambda: np.array([len(each.token_ids) for each in texts], "<u4").tobytes(),
        }
        names = [name for name in OUTPUTS if name == "text_output" or name in asked.outputs]
        return self._header(asked.outputs, names, len(texts)), [values[name]() for name in names]

    def _header(self, outputs: frozenset[str], names: Sequence[str], count: int) -> ResponseHeader:
        header = self._headers.get((outputs, count))
        if header is None:
            shapes = {name: (1,) if name == "num_input_tokens" else (count,) for name in names}
            header = ResponseHeader(*self._model, [TensorSpec(name, OUTPUTS[name], shapes[name]) for name in names])
            if len(self._headers) < _MAX_HEADERS:
                self._headers[outputs, count] = header
        return header


def _strings(values: Sequence[str]) -> bytes:
    encoded = [value.encode("utf-8", "replace") for value in values]
    return b"".join(struct.pack("<I", len(each)) + each for each in encoded)


def _logprobs(text: Any) -> str:
    """Return the probabilities of new tokens as Triton's backend has them."""
    if text.logprobs is None:
        return "null"
    return json.dumps(
        [
            {
                number: {"logprob": each.logprob, "rank": each.rank, "decoded_token": each.decoded_token}
                for number, each in tokens.items()
            }
            for tokens in text.logprobs
        ]
    )
