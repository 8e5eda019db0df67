"""Complete the configuration of an ONNX model from the model itself, as Triton's backend does."""

from collections.abc import Iterable
from typing import Any

from naiad.backend.onnx_signature import OnnxSignature, OnnxTensor
from naiad.config.execution import batch_inputs, server_inputs, server_outputs
from naiad.config.model_config_pb2 import ModelConfig, ModelInput, ModelOutput
from naiad.core.errors import invalid_argument, unsupported

DEFAULT_MAX_BATCH_SIZE = 4
"""Triton: max_batch_size of a model that can batch, unless --backend-config=default-max-batch-size is given."""


def is_complete(config: ModelConfig) -> bool:
    """Whether there is nothing to complete. Triton: a model with inputs and outputs is left alone altogether."""
    return bool(config.input) and bool(config.output)


def complete(config: ModelConfig, signature: OnnxSignature, default_max_batch_size: int) -> ModelConfig:
    """Return a copy of `config` with batching, inputs and outputs filled in.

    A model batches when every input and output has a free first dimension, which 'dims' then leave out. What the
    configuration already says of a tensor stays. Raises InferError when max_batch_size contradicts the model.
    """
    completed = ModelConfig()
    completed.CopyFrom(config)
    _complete_batching(completed, signature, default_max_batch_size)
    batching = completed.max_batch_size > 0
    added, kept = server_inputs(config) | batch_inputs(config), server_outputs(config)
    inputs = [tensor for tensor in signature.inputs.values() if tensor.name not in added]
    _complete_tensors(completed.input, inputs, "input", batching=batching)
    if not completed.output:
        outputs = [tensor for tensor in signature.outputs.values() if tensor.name not in kept]
        _complete_tensors(completed.output, outputs, "output", batching=batching)
    return completed


def _complete_batching(config: ModelConfig, signature: OnnxSignature, default_max_batch_size: int) -> None:
    if signature.is_batching:
        if config.max_batch_size == 0:
            config.max_batch_size = default_max_batch_size
        if config.max_batch_size > 1 and config.WhichOneof("scheduling_choice") is None:
            config.dynamic_batching.SetInParent()
    elif config.max_batch_size > 1 or (config.max_batch_size == 1 and not _has_single_rows(signature)):
        fixed = next(t for t in [*signature.inputs.values(), *signature.outputs.values()] if t.shape[:1] != (-1,))
        shape = ",".join(map(str, fixed.shape))
        raise invalid_argument(
            f"autofill failed for model '{config.name}': model does not support batching while non-zero "
            f"max_batch_size is specified: tensor '{fixed.name}' has shape [{shape}] in the model and the "
            f"configuration has max_batch_size: {config.max_batch_size}. Set max_batch_size: 0, or export the model "
            "with a free first dimension"
        )


def _has_single_rows(signature: OnnxSignature) -> bool:
    """Whether the model takes batches of exactly one."""
    tensors = [*signature.inputs.values(), *signature.outputs.values()]
    return all(tensor.shape[:1] in ((1,), (-1,)) for tensor in tensors)


def _complete_tensors(field: Any, tensors: Iterable[OnnxTensor], kind: str, *, batching: bool) -> None:
    configured: dict[str, ModelInput | ModelOutput] = {tensor.name: tensor for tensor in field}
    for onnx in tensors:
        tensor = configured.get(onnx.name) or field.add(name=onnx.name)
        datatype = onnx.datatype
        if datatype is None:
            raise unsupported(
                f"{kind} '{onnx.name}' of the ONNX model is a {onnx.type_name}, which the protocol cannot carry; "
                "export the model with plain tensors"
            )
        if not tensor.data_type:
            tensor.data_type = datatype.config_number
        if not tensor.dims:
            is_ragged = isinstance(tensor, ModelInput) and tensor.allow_ragged_batch
            dims = onnx.shape[1:] if batching and not is_ragged else onnx.shape
            tensor.dims.extend(dims or (1,))
            if not dims and batching:
                # Triton: 'dims' must not be empty. A scalar without a batch dimension needs no reshape.
                tensor.reshape.SetInParent()
