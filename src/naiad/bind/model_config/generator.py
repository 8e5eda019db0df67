"""A bound model's configuration as the message behind `config.pbtxt`, and back."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from naiad.bind.exceptions import PyTritonBadParameterError
from naiad.bind.model_config.common import (
    DeviceKind,
    DynamicBatcher,
    ModelWarmup,
    QueuePolicy,
    TimeoutAction,
    WarmupInput,
)
from naiad.bind.model_config.tensor import datatype_of, numpy_type_of
from naiad.bind.model_config.triton_model_config import ResponseCache, TensorSpec, TritonModelConfig
from naiad.config import model_config_pb2 as pb
from naiad.core.datatype import BY_CONFIG_NUMBER
from naiad.core.tensor import Array, to_buffer

WARMUP_DIRECTORY = "warmup"
"""Triton: the directory of a model's warm-up data."""


def to_message(config: TritonModelConfig) -> pb.ModelConfig:
    """Return the message of a configuration. Raises PyTritonBadParameterError."""
    message = pb.ModelConfig(name=config.model_name, backend=config.backend)
    if config.batching:
        if config.max_batch_size < 1:
            raise PyTritonBadParameterError(
                f"model '{config.model_name}': max_batch_size is {config.max_batch_size}, expected at least 1; set "
                "batching=False for a model without batches"
            )
        message.max_batch_size = config.max_batch_size
        if config.batcher is not None:
            _set_batcher(message.dynamic_batching, config.batcher, config.model_name)
    _set_tensors(message, config)
    for kind, count in config.instance_group.items():
        message.instance_group.add(count=count or 1, kind=pb.ModelInstanceGroup.Kind.Value(kind.value))
    for key, value in config.backend_parameters.items():
        message.parameters[key].string_value = value
    if config.decoupled:
        message.model_transaction_policy.decoupled = True
    if config.response_cache is not None:
        message.response_cache.enable = config.response_cache.enable
    for sample in config.model_warmup or ():
        _add_warmup(message, sample)
    return message


def _set_tensors(message: pb.ModelConfig, config: TritonModelConfig) -> None:
    for spec in config.inputs:
        tensor = message.input.add(name=spec.name, dims=spec.shape, optional=bool(spec.optional))
        tensor.data_type = _number(spec.dtype, f"input '{spec.name}'")
    for spec in config.outputs:
        output = message.output.add(name=spec.name, dims=spec.shape)
        output.data_type = _number(spec.dtype, f"output '{spec.name}'")


def _number(dtype: Any, where: str) -> Any:
    return datatype_of(dtype, where).config_number


def _set_batcher(message: pb.ModelDynamicBatching, batcher: DynamicBatcher, model: str) -> None:
    message.SetInParent()
    message.max_queue_delay_microseconds = int(batcher.max_queue_delay_microseconds)
    message.preferred_batch_size.extend(int(size) for size in batcher.preferred_batch_size or ())
    message.preserve_ordering = batcher.preserve_ordering
    message.priority_levels = batcher.priority_levels
    message.default_priority_level = batcher.default_priority_level
    if batcher.default_priority_level > batcher.priority_levels:
        raise PyTritonBadParameterError(
            f"model '{model}': default_priority_level is {batcher.default_priority_level}, expected at most "
            f"priority_levels, which is {batcher.priority_levels}"
        )
    if batcher.default_queue_policy is not None:
        _set_policy(message.default_queue_policy, batcher.default_queue_policy)
    for priority, policy in (batcher.priority_queue_policy or {}).items():
        if not 1 <= priority <= batcher.priority_levels:
            raise PyTritonBadParameterError(
                f"model '{model}': priority_queue_policy has priority {priority}, expected 1 to priority_levels, "
                f"which is {batcher.priority_levels}"
            )
        _set_policy(message.priority_queue_policy[priority], policy)


def _set_policy(message: pb.ModelQueuePolicy, policy: QueuePolicy) -> None:
    if policy.timeout_action is TimeoutAction.DELAY:
        message.timeout_action = pb.ModelQueuePolicy.DELAY
    message.default_timeout_microseconds = int(policy.default_timeout_microseconds)
    message.allow_timeout_override = policy.allow_timeout_override
    message.max_queue_size = int(policy.max_queue_size)


# --- warm-up --------------------------------------------------------------------------------------------------------


def _add_warmup(message: pb.ModelConfig, sample: ModelWarmup) -> None:
    warmup = message.model_warmup.add(name=sample.name, batch_size=max(1, sample.batch_size), count=sample.count)
    for name, given in sample.inputs.items():
        entry = warmup.inputs[name]
        entry.data_type = _number(given.dtype, f"warm-up input '{name}'")
        entry.dims.extend(given.shape)
        chosen = [field for field in ("zero_data", "random_data", "input_data_file") if getattr(given, field)]
        if len(chosen) != 1:
            raise PyTritonBadParameterError(
                f"warm-up '{sample.name}': input '{name}' has {', '.join(chosen) or 'no data'}, expected exactly one "
                "of zero_data, random_data and input_data_file"
            )
        if given.input_data_file:
            entry.input_data_file = warmup_file(sample, name)
        else:
            setattr(entry, chosen[0], True)


def warmup_file(sample: ModelWarmup, name: str) -> str:
    """Return the file of an input of a sample, in the directory `warmup` of the model."""
    return "".join(c if c.isalnum() else "_" for c in f"{sample.name}_{name}")


def write_warmup_files(config: TritonModelConfig, directory: Path) -> None:
    """Write the arrays of warm-up files as raw data. Raises PyTritonBadParameterError for unusable ones."""
    for sample in config.model_warmup or ():
        for name, given in sample.inputs.items():
            if given.input_data_file:
                directory.mkdir(parents=True, exist_ok=True)
                (directory / warmup_file(sample, name)).write_bytes(to_buffer(_row_of(given, sample, name)))


def _row_of(given: WarmupInput, sample: ModelWarmup, name: str) -> Array:
    """Return the first row of a file: the server repeats it for every row of the sample."""
    where = f"warm-up '{sample.name}': input '{name}': {given.input_data_file}"
    try:
        data: Array = np.load(str(given.input_data_file), allow_pickle=False)
    except (OSError, ValueError) as error:
        raise PyTritonBadParameterError(
            f"{where} cannot be read: {error}; write it with numpy.save, without objects"
        ) from None
    shape = tuple(given.shape)
    if data.shape[1:] == shape and data.shape[:1] != (0,):
        data = data[0]
    if data.shape != shape:
        raise PyTritonBadParameterError(f"{where} has shape {data.shape}, expected {shape}, with or without rows")
    return data if data.dtype.kind in "SO" else data.astype(given.dtype)


# --- and back -------------------------------------------------------------------------------------------------------


def from_message(message: pb.ModelConfig, version: int = 1) -> TritonModelConfig:
    """Return what clients see of a configuration that the server reports."""
    groups: dict[DeviceKind, int | None] = {}
    for group in message.instance_group:
        name = pb.ModelInstanceGroup.Kind.Name(group.kind)
        kind = DeviceKind(name) if name in DeviceKind.__members__ else DeviceKind.KIND_CPU
        groups[kind] = (groups.get(kind) or 0) + group.count
    is_cached = message.HasField("response_cache") and message.response_cache.enable
    return TritonModelConfig(
        model_name=message.name,
        model_version=version,
        max_batch_size=message.max_batch_size,
        batching=message.max_batch_size > 0,
        batcher=_batcher_of(message.dynamic_batching) if message.HasField("dynamic_batching") else None,
        instance_group=groups,
        decoupled=message.model_transaction_policy.decoupled,
        backend_parameters={key: each.string_value for key, each in message.parameters.items()},
        inputs=[_spec_of(tensor, is_optional=tensor.optional) for tensor in message.input],
        outputs=[_spec_of(tensor, is_optional=False) for tensor in message.output],
        response_cache=ResponseCache(enable=True) if is_cached else None,
        backend=message.backend,
    )


def _spec_of(tensor: pb.ModelInput | pb.ModelOutput, *, is_optional: bool) -> TensorSpec:
    return TensorSpec(tensor.name, tuple(tensor.dims), numpy_type_of(BY_CONFIG_NUMBER[tensor.data_type]), is_optional)


def _batcher_of(message: pb.ModelDynamicBatching) -> DynamicBatcher:
    priorities: Mapping[int, pb.ModelQueuePolicy] = message.priority_queue_policy
    has_default = message.HasField("default_queue_policy")
    return DynamicBatcher(
        max_queue_delay_microseconds=message.max_queue_delay_microseconds,
        preferred_batch_size=list(message.preferred_batch_size) or None,
        preserve_ordering=message.preserve_ordering,
        priority_levels=message.priority_levels,
        default_priority_level=message.default_priority_level,
        default_queue_policy=_policy_of(message.default_queue_policy) if has_default else None,
        priority_queue_policy={key: _policy_of(each) for key, each in priorities.items()} or None,
    )


def _policy_of(message: pb.ModelQueuePolicy) -> QueuePolicy:
    return QueuePolicy(
        timeout_action=TimeoutAction[pb.ModelQueuePolicy.TimeoutAction.Name(message.timeout_action)],
        default_timeout_microseconds=message.default_timeout_microseconds,
        allow_timeout_override=message.allow_timeout_override,
        max_queue_size=message.max_queue_size,
    )
