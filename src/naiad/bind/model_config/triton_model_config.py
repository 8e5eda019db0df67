"""The complete configuration of one model version, as decorators and clients see it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from naiad.bind.model_config.common import DeviceKind, DynamicBatcher, ModelWarmup


@dataclass
class ResponseCache:
    """Whether responses are cached."""

    enable: bool


@dataclass
class TensorSpec:
    """Name, shape without batch dimension, and numpy type of a tensor."""

    name: str
    shape: tuple[int, ...]
    dtype: Any
    optional: bool | None = False


@dataclass
class TritonModelConfig:
    """Everything that the server knows of one model version."""

    model_name: str
    model_version: int = 1
    max_batch_size: int = 4
    batching: bool = True
    batcher: DynamicBatcher | None = None
    instance_group: Mapping[DeviceKind, int | None] = field(default_factory=dict)
    decoupled: bool = False
    backend_parameters: Mapping[str, str] = field(default_factory=dict)
    inputs: Sequence[TensorSpec] = ()
    outputs: Sequence[TensorSpec] = ()
    response_cache: ResponseCache | None = None
    model_warmup: Sequence[ModelWarmup] | None = None
    backend: str = "naiad_bind"
