"""The configuration that a candidate is measured, served and packaged with."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from naiad.config.model_config_pb2 import ModelConfig, ModelInstanceGroup, ModelWarmup
from naiad.core.datatype import DataType
from naiad.core.tensor import TensorSpec
from naiad.tools.optimize.candidate import Candidate, Conversion
from naiad.tools.optimize.optimize_source import Format, Source
from naiad.tools.optimize.results.candidate_measurement import Runtime
from naiad.tools.optimize.sources.source_declaration import declare

GRAPH_LEVEL = "optimization.graph.level"
"""The parameter of a runtime that is this field of the configuration instead."""


def configuration(
    candidate: Candidate,
    conversion: Conversion,
    source: Source,
    runtime: Runtime,
    max_batch_size: int,
    warm_up: Sequence[TensorSpec] = (),
) -> str:
    """Return the text of `config.pbtxt`.

    `max_batch_size` of 0 is a model without a batch dimension; larger ones have dynamic batching. What the file does
    not say is added, as the tensors of TorchScript. With `warm_up`, the candidate's own inputs including the batch
    dimension, every instance executes zeros before the version is ready; not for inputs with variable dimensions, and
    strings.
    """
    config = ModelConfig(name=candidate.name, backend=candidate.backend, max_batch_size=max_batch_size)
    if max_batch_size > 0:
        config.dynamic_batching.SetInParent()
    if candidate.format is Format.AOT_INDUCTOR:
        # Converters see no GPU: the code is compiled for the CPU, also where the backend could use a GPU.
        config.instance_group.add(count=runtime.instances, kind=ModelInstanceGroup.KIND_CPU)
    elif runtime.instances > 1:
        config.instance_group.add(count=runtime.instances, kind=ModelInstanceGroup.KIND_AUTO)
    set_parameters(config, {**conversion.backend_parameters, **runtime.parameters})
    declare(config, conversion, source)
    _add_warm_up(config, warm_up, max_batch_size > 0)
    return str(config)


def set_parameters(config: ModelConfig, values: Mapping[str, str]) -> None:
    """Set parameters of a conversion or a runtime."""
    for name, value in values.items():
        if name == GRAPH_LEVEL:
            config.optimization.graph.level = int(value)
        else:
            config.parameters[name].string_value = value


def write_model(home: Path, conversion: Conversion, text: str) -> Path:
    """Write the model into the repository `home` and return its directory; its files are linked, not copied."""
    model = home / conversion.candidate.name
    model.mkdir(parents=True, exist_ok=True)
    version = model / "1"
    if not version.exists():
        version.symlink_to(conversion.folder.absolute(), target_is_directory=True)
    (model / "config.pbtxt").write_text(text, encoding="utf-8")
    return model


def _add_warm_up(config: ModelConfig, inputs: Sequence[TensorSpec], has_batch: bool) -> None:
    own = [(spec, spec.shape[has_batch:]) for spec in inputs]
    if not own or any(-1 in dims or spec.datatype is DataType.BYTES for spec, dims in own):
        return
    warm_up = config.model_warmup.add(name="zeros", batch_size=int(has_batch))
    for spec, dims in own:
        zeros = ModelWarmup.Input(data_type=_data_type(spec), dims=dims, zero_data=True)
        warm_up.inputs[spec.name].CopyFrom(zeros)


def _data_type(spec: TensorSpec) -> str:
    return "TYPE_STRING" if spec.datatype is DataType.BYTES else f"TYPE_{spec.datatype.value}"
