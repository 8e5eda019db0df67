"""An ensemble as a graph: its inputs, steps and outputs in an order in which each stands behind all that it reads."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from naiad.config.model_config_pb2 import DataType, ModelConfig, ModelInput, ModelOutput
from naiad.config.validate.ensemble import condition_of
from naiad.core.errors import invalid_argument

IF = "if"
"""The port of a step's condition."""


@dataclass(slots=True)
class Part:
    """A step, an input or an output of the ensemble."""

    kind: str
    """step, input or output."""
    title: str
    reads: Sequence[tuple[str, str]]
    """The name inside the step and the ensemble's tensor."""
    writes: Sequence[tuple[str, str]]
    note: str = ""
    layer: int = 0
    """0 for inputs; for others, one more than the highest layer that it reads from."""


def parts_of(config: ModelConfig, members: Mapping[str, ModelConfig] | None = None) -> list[Part]:
    """Return the parts of a valid ensemble in order; `members` by name, as far as they are known.

    Raises InferError(INVALID_ARG) for a model that is not an ensemble, and for steps that form a cycle.
    """
    if not config.HasField("ensemble_scheduling"):
        raise invalid_argument(f"model '{config.name}' is not an ensemble, so there is no graph to draw")
    parts = _parts(config, members or {})
    _assign_layers(config.name, parts)
    return sorted(parts, key=lambda part: part.layer)


def _parts(config: ModelConfig, members: Mapping[str, ModelConfig]) -> list[Part]:
    parts = [Part("input", _signature(tensor), (), [("", tensor.name)]) for tensor in config.input]
    for step in config.ensemble_scheduling.step:
        condition = condition_of(config, step)
        reads = sorted(step.input_map.items()) + ([(IF, condition)] if condition else [])
        version = "" if step.model_version < 0 else f" v{step.model_version}"
        note = _kind_of(members.get(step.model_name))
        parts.append(Part("step", step.model_name + version, reads, sorted(step.output_map.items()), note))
    parts += [Part("output", _signature(tensor), [("", tensor.name)], ()) for tensor in config.output]
    return parts


def _signature(tensor: ModelInput | ModelOutput) -> str:
    dims = ",".join("?" if dim < 0 else str(dim) for dim in tensor.dims)
    optional = " optional" if isinstance(tensor, ModelInput) and tensor.optional else ""
    return f"{tensor.name} {DataType.Name(tensor.data_type).removeprefix('TYPE_')}[{dims}]{optional}"


def _kind_of(member: ModelConfig | None) -> str:
    if member is None:
        return ""
    if member.HasField("ensemble_scheduling"):
        return "ensemble"
    decoupled = ", decoupled" if member.model_transaction_policy.decoupled else ""
    return (member.backend or member.platform) + decoupled


def _tensors(ports: Iterable[tuple[str, str]]) -> list[str]:
    return [tensor for _, tensor in ports]


def _assign_layers(name: str, parts: Sequence[Part]) -> None:
    """Set the layer of each step above the steps that write its inputs; outputs are in the last layer."""
    writer = {tensor: part for part in parts for tensor in _tensors(part.writes)}
    left = [part for part in parts if part.kind == "step"]
    placed = {id(part) for part in parts if part.kind == "input"}
    while left:
        ready = [each for each in left if all(id(writer[t]) in placed for t in _tensors(each.reads) if t in writer)]
        if not ready:
            waiting = ", ".join(f"'{part.title}'" for part in left)
            raise invalid_argument(f"steps of ensemble '{name}' form a cycle: {waiting}")
        for part in ready:
            before = [writer[tensor].layer for tensor in _tensors(part.reads) if tensor in writer]
            part.layer = 1 + max(before, default=0)
        placed |= {id(part) for part in ready}
        left = [part for part in left if id(part) not in placed]
    last = 1 + max((part.layer for part in parts), default=0)
    for part in parts:
        if part.kind == "output":
            part.layer = last
