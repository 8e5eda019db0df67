"""What the configurations of a point say about the system that serves it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from google.protobuf import json_format

from naiad.config.model_config_pb2 import ModelConfig, ModelEnsembling
from naiad.tools.analyze.simulation.simulated_system import RouteStep
from naiad.tools.analyze.space import Point
from naiad.tools.analyze.variants.dimensions import THREADS, backend_of

_THREAD_PARAMETERS = frozenset(("num_threads", "tf_num_intra_threads", *(each.lower() for each in THREADS.values())))
_ONE_THREAD = frozenset(("python", "identity", "repeat", "trees", "sklearn"))
"""Backends whose instances have one thread unless a parameter says otherwise."""


@dataclass(frozen=True, slots=True)
class Configured:
    """A model with a configuration."""

    config: ModelConfig
    source: str
    """The model of the repository whose files are served."""
    instance_count: int
    threads: int
    """Of an instance."""


def configured(point: Point, configs: Mapping[str, ModelConfig], cores: float) -> dict[str, Configured]:
    """Return every model of the repository as it is at a point; variants replace `configs`."""
    by_model = {name: _read(config, name, cores) for name, config in configs.items()}
    for variant in point.variants:
        source = variant.source_model or variant.model
        config = configs.get(source, ModelConfig(name=source))
        if variant.config_json:
            config = json_format.Parse(variant.config_json, ModelConfig(), ignore_unknown_fields=True)
        by_model[variant.model] = _read(config, source, cores)
    return by_model


def _read(config: ModelConfig, source: str, cores: float) -> Configured:
    instances = max(1, sum(group.count or 1 for group in config.instance_group))
    asked = [
        int(value.string_value)
        for name, value in config.parameters.items()
        if name.lower() in _THREAD_PARAMETERS and value.string_value.isdecimal()
    ]
    shared = 1 if backend_of(config) in _ONE_THREAD else max(1, int(cores) // instances)
    threads = max(asked, default=0) or shared
    if config.HasField("sequence_batching"):
        config = _independent(config)
    return Configured(config, source, instances, threads)


def _independent(config: ModelConfig) -> ModelConfig:
    """Return a configuration in which the requests of a stateful model are independent."""
    copy = ModelConfig()
    copy.CopyFrom(config)
    if config.sequence_batching.HasField("oldest"):
        oldest = config.sequence_batching.oldest
        copy.dynamic_batching.max_queue_delay_microseconds = oldest.max_queue_delay_microseconds
        copy.dynamic_batching.preferred_batch_size.extend(oldest.preferred_batch_size)
    else:
        copy.ClearField("sequence_batching")
        copy.dynamic_batching.SetInParent()
    return copy


def route_steps(model: str, models: Mapping[str, Configured], above: frozenset[str] = frozenset()) -> list[RouteStep]:
    """Return what a request to a model passes; ensembles inside of ensembles are spread out.

    Raises ValueError for an ensemble that contains itself, or has a step without a configuration.
    """
    if model in above or model not in models:
        reason = "contains itself" if model in above else "has no configuration"
        raise ValueError(f"model '{model}' {reason}")
    config = models[model].config
    if not config.HasField("ensemble_scheduling"):
        return [RouteStep(model)]
    steps: list[RouteStep] = []
    makers: dict[str, tuple[int, ...]] = {}
    """Tensor to the positions of the steps that must end before it is there."""
    for step in _in_order(config):
        needs = sorted({made for name in step.input_map.values() for made in makers.get(name, ())})
        ends = _append(steps, route_steps(step.model_name, models, above | {model}), needs)
        makers |= dict.fromkeys(step.output_map.values(), ends)
    return steps


def _in_order(config: ModelConfig) -> list[ModelEnsembling.Step]:
    """Return the steps of an ensemble so that each follows the makers of its inputs."""
    left, known = list(config.ensemble_scheduling.step), {each.name for each in config.input}
    ordered = []
    while left:
        ready = [step for step in left if set(step.input_map.values()) <= known]
        if not ready:
            raise ValueError(f"ensemble '{config.name}' has a step whose inputs no step makes")
        ordered += ready
        left = [step for step in left if step not in ready]
        known |= {name for step in ready for name in step.output_map.values()}
    return ordered


def _append(steps: list[RouteStep], added: Sequence[RouteStep], needs: Sequence[int]) -> tuple[int, ...]:
    """Append steps whose first ones need `needs`; return the positions of the last ones."""
    start = len(steps)
    for step in added:
        steps.append(RouteStep(step.model, tuple(start + each for each in step.needs) or tuple(needs)))
    needed = {each for step in added for each in step.needs}
    return tuple(start + index for index in range(len(added)) if index not in needed)
