"""What a model takes and returns, as requests of a plan are made for it: shapes of a sample, and its values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.model import ModelMetadata
from naiad.core.tensor import Array, Shape
from naiad.tools.perf.perf_plan import ModelLoad
from naiad.tools.values.tensor import InputError, ModelTensor, fits, model_tensor


@dataclass(frozen=True, slots=True)
class Signature:
    """The inputs and outputs of a model by name."""

    model: str
    inputs: Mapping[str, ModelTensor]
    outputs: Mapping[str, ModelTensor]
    has_sequences: bool

    def single_input(self, source: str, kind: str) -> ModelTensor:
        """Return the only input that a request needs. Raises InputError for a model with several."""
        required = [tensor for tensor in self.inputs.values() if not tensor.is_optional]
        if len(required) != 1:
            raise InputError(
                f"{source}: {kind} is data for one input; model '{self.model}' has {_names(self.inputs)}; use an "
                ".npz file or a directory with a file for each input"
            )
        return required[0]

    def check_names(self, names: Sequence[str], where: str) -> None:
        """Check that each name is an input, and that no required input is missing. Raises InputError."""
        for name in names:
            if name not in self.inputs:
                raise InputError(f"{where}: model '{self.model}' has no input '{name}'; it has {_names(self.inputs)}")
        for tensor in self.inputs.values():
            if not tensor.is_optional and tensor.name not in names:
                raise InputError(
                    f"{where}: input '{tensor.name}' is missing; expected {tensor.datatype.value} of shape "
                    f"{list(tensor.dims)}"
                )


def read_signature(
    plan: ModelLoad, metadata: ModelMetadata, config: ModelConfig | None, *, is_only_model: bool = True
) -> Signature:
    """Return the signature of a model, with the shapes of the plan.

    `config` is None for a server without the configuration extension: then a model batches if the first dimension
    of all inputs is variable. Unless `is_only_model` the settings may name inputs of other models. Raises InputError
    for a shape or a batch size that the model does not allow.
    """
    if config is None:
        is_batching = all(spec.shape[:1] == (-1,) for spec in metadata.inputs) and bool(metadata.inputs)
    else:
        is_batching = config.max_batch_size > 0
    _check_batch_size(plan, config, is_batching=is_batching)
    hints = {} if config is None else {each.name: each for each in config.input}
    inputs = {
        spec.name: model_tensor(spec, hints.get(spec.name), is_batching=is_batching) for spec in metadata.inputs
    }
    for name, dims in _warm_up_dims(config).items():
        if name in inputs and fits(dims, inputs[name].dims):
            inputs[name] = replace(inputs[name], warm_up_dims=dims)
    for flag, named in (("--shape", plan.inputs.shapes), ("--input-bound", plan.inputs.integer_bounds)):
        for name in named if is_only_model else ():
            if name not in inputs:
                raise InputError(f"{flag} {name}: model '{plan.name}' has no such input; it has {_names(inputs)}")
    for name, shape in plan.inputs.shapes.items():
        if name not in inputs:
            continue
        tensor = inputs[name]
        tensor.check(shape, f"--shape {name}")
        inputs[name] = replace(tensor, dims=shape)
    outputs = {spec.name: model_tensor(spec, None, is_batching=is_batching) for spec in metadata.outputs}
    has_sequences = config is not None and config.HasField("sequence_batching")
    return Signature(plan.name, inputs, outputs, has_sequences)


def _check_batch_size(plan: ModelLoad, config: ModelConfig | None, *, is_batching: bool) -> None:
    if plan.batch_size < 1:
        raise InputError(f"batch size {plan.batch_size}: expected at least 1")
    if not is_batching and plan.batch_size > 1:
        raise InputError(f"batch size {plan.batch_size}: model '{plan.name}' does not batch; leave -b out")
    if config is not None and is_batching and plan.batch_size > config.max_batch_size:
        raise InputError(
            f"batch size {plan.batch_size}: model '{plan.name}' has max_batch_size {config.max_batch_size}"
        )


def _warm_up_dims(config: ModelConfig | None) -> dict[str, Shape]:
    """Return the shapes that the configuration warms the model up with: typical ones, of one sample."""
    found: dict[str, Shape] = {}
    for sample in config.model_warmup if config is not None else ():
        for name, each in sample.inputs.items():
            found.setdefault(name, tuple(each.dims))
    return found


def _names(tensors: Mapping[str, ModelTensor]) -> str:
    return ", ".join(f"'{name}'" for name in tensors) or "none"


@dataclass(frozen=True, slots=True)
class InputStep:
    """One sample, without a batch dimension."""

    tensors: Mapping[str, Array]
    source: str
    """For error messages: `data.json step 3`."""
    expected: Mapping[str, Array] = field(default_factory=dict)
    """Outputs that the response must equal."""
    timestamp_ms: float | None = None
    """When a fixed schedule sends it, from the start of the run."""


Stream: TypeAlias = list[InputStep]
"""Samples in the order in which they are sent; a sequence for a stateful model."""
