"""The configurations of stages and of the ensemble that connects them."""

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from naiad.backend.api import ModelContext
from naiad.backend.cores import usable_cores
from naiad.backend.registry import BackendRegistry
from naiad.config.forms.pbtxt.text_format import format_config
from naiad.config.model_config_pb2 import ModelConfig, ModelInput, ModelInstanceGroup, ModelOutput

_Tensor = TypeVar("_Tensor", ModelInput, ModelOutput)
MAX_BATCH_SIZE = 32


def write_stage(
    directory: Path,
    backend: str,
    *,
    can_batch: bool,
    threads: tuple[str, int],
    device: int | None,
    isolation: str = "",
) -> ModelConfig:
    """Write and return the configuration of the stage in `directory`, completed from its model file.

    `threads` is a parameter of the backend and its value, `device` the number of a GPU, None for the CPU. Raises
    InferError.
    """
    config = ModelConfig(name=directory.name, backend=backend)
    context = ModelContext(
        name=directory.name,
        version=1,
        config=config,
        model_dir=directory,
        version_dir=directory / "1",
        usable_cores=usable_cores(),
    )
    config = BackendRegistry().get(backend).auto_complete(context)
    # A batch of all waiting requests would leave the stages before and after it without work.
    config.ClearField("dynamic_batching")
    if config.max_batch_size and can_batch:
        config.max_batch_size = MAX_BATCH_SIZE
    elif config.max_batch_size:
        config.max_batch_size = 0
        tensors: list[ModelInput | ModelOutput] = [*config.input, *config.output]
        for tensor in tensors:
            # A tensor with one number for each row has no dims but a reshape, which is about the rows of a batch.
            dims = [-1, *(tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims)]
            tensor.ClearField("reshape")
            tensor.dims[:] = dims
    group = config.instance_group.add(count=1)
    if device is None:
        group.kind = ModelInstanceGroup.KIND_CPU
        config.parameters[threads[0]].string_value = str(threads[1])
    else:
        group.kind = ModelInstanceGroup.KIND_GPU
        group.gpus.append(device)
    if isolation:
        config.parameters["isolation"].string_value = isolation
    _write(directory, config)
    return config


def write_ensemble(
    directory: Path, stages: Sequence[ModelConfig], inputs: Sequence[str], outputs: Sequence[str]
) -> None:
    """Write the configuration of the ensemble. Tensors have the names that they have in the graph."""
    config = ModelConfig(name=directory.name, platform="ensemble", max_batch_size=stages[0].max_batch_size)
    consumed = {tensor.name: tensor for stage in reversed(stages) for tensor in stage.input}
    produced = {tensor.name: tensor for stage in stages for tensor in stage.output}
    for name in inputs:
        if name in consumed:
            config.input.append(_plain(ModelInput(), consumed[name]))
    for name in outputs:
        config.output.append(_plain(ModelOutput(), produced[name]))
    for stage in stages:
        step = config.ensemble_scheduling.step.add(model_name=stage.name, model_version=-1)
        step.input_map.update({tensor.name: tensor.name for tensor in stage.input})
        step.output_map.update({tensor.name: tensor.name for tensor in stage.output})
    (directory / "1").mkdir(parents=True)
    _write(directory, config)


def _plain(made: _Tensor, tensor: ModelInput | ModelOutput) -> _Tensor:
    made.name, made.data_type = tensor.name, tensor.data_type
    made.dims.extend(tensor.dims)
    if tensor.HasField("reshape"):
        made.reshape.CopyFrom(tensor.reshape)
    return made


def _write(directory: Path, config: ModelConfig) -> None:
    (directory / "config.pbtxt").write_text(format_config(config), encoding="utf-8")
