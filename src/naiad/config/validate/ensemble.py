"""Checks of ensembles: the graph of one configuration, cycles between ensembles."""

from collections.abc import Mapping, Sequence

from naiad.config.forms.findings import Findings
from naiad.config.forms.pbtxt.lexer import map_path
from naiad.config.model_config_pb2 import ModelConfig, ModelEnsembling
from naiad.config.problem import nearest

CONDITION_PREFIX = "run_if."
"""`parameters { key: "run_if.MODEL" value { string_value: "TENSOR" } }`: the step of MODEL runs if TENSOR is true."""
_SHOWN_OF_CYCLE = 3
"""Triton shows the start of a cycle, the last model and the start again."""


def condition_of(config: ModelConfig, step: ModelEnsembling.Step) -> str:
    """Return the ensemble tensor that decides whether a step runs; "" for always."""
    key = CONDITION_PREFIX + step.model_name
    return config.parameters[key].string_value if key in config.parameters else ""


def tensors_read(config: ModelConfig, step: ModelEnsembling.Step) -> set[str]:
    """Return the ensemble tensors that a step waits for."""
    condition = condition_of(config, step)
    return {*step.input_map.values(), condition} if condition else set(step.input_map.values())


def check_ensemble(findings: Findings) -> None:
    """Check a single ensemble's configuration: forbidden fields, steps, the flow of tensors."""
    config = findings.config
    ending = f"for ensemble '{config.name}'"
    for name, verb in (("instance_group", "should not"), ("optimization", "should not"), ("model_warmup", "can not")):
        if name == "optimization" and not config.HasField("optimization"):
            continue
        if getattr(config, name):
            title = "instance group" if name == "instance_group" else name
            findings.error_as_is(f"{title} {verb} be specified {ending}", name, expected="it at the composing models")
    steps = config.ensemble_scheduling.step
    if not steps:
        findings.error_as_is(f"must specify 'step' {ending}", "ensemble_scheduling", expected="at least one 'step'")
        return
    for index, step in enumerate(steps):
        for name in ("model_name", "input_map", "output_map"):
            if not getattr(step, name):
                findings.error_as_is(
                    f"must specify '{name}' in step {index} of ensemble '{config.name}'",
                    f"ensemble_scheduling.step[{index}]",
                    expected=f"'{name}'",
                )
    _check_flow(findings)


def _check_flow(findings: Findings) -> None:
    """Check that every tensor is written once, before it is read, and is used."""
    config = findings.config
    steps = config.ensemble_scheduling.step
    inputs = {tensor.name for tensor in config.input}
    outputs = {tensor.name for tensor in config.output}
    writers = _find_writers(findings, inputs)
    read = {tensor for step in steps for tensor in tensors_read(config, step)}
    for index, tensor in enumerate(config.input):
        if tensor.name not in read:
            findings.error_as_is(
                # Triton: without the first quotation mark around the ensemble's name.
                f"ensemble input '{tensor.name}' for ensemble {config.name}' is not used",
                f"input[{index}].name",
                expected="a step whose input_map has it as a value",
            )
    available = _find_available(config, inputs)
    _check_outputs(findings, available, writers, read)
    for name, path in writers.items():
        if name not in read and name not in outputs:
            findings.error_as_is(f"ensemble tensor '{name}' is unused in ensemble '{config.name}'", path)
    _check_conditions(findings, [*inputs, *writers])
    _check_order(findings, available, writers)


def _check_outputs(findings: Findings, available: set[str], writers: Mapping[str, str], read: set[str]) -> None:
    """Check that every output is written, in Triton's words."""
    config = findings.config
    for index, output in enumerate(config.output):
        if output.name in available:
            continue
        known = output.name in writers or output.name in read
        source = _find_unwritten(config, available, output.name)
        if not known:
            # Triton: without the first quotation mark around the ensemble's name.
            message = f"ensemble output '{output.name}' for ensemble {config.name}' is not used"
        elif source == output.name:
            message = f"output '{output.name}' for ensemble '{config.name}' is not written"
        else:
            message = (
                f"output '{output.name}' for ensemble '{config.name}' is not written: at least one of its depending "
                f"tensors, '{source}', is not connected"
            )
        findings.error_as_is(
            message,
            f"output[{index}].name",
            expected="a step whose output_map has it as a value, and whose inputs are all written",
            suggestion=nearest(output.name, writers),
        )


def _find_unwritten(config: ModelConfig, available: set[str], tensor: str) -> str:
    """Return the first missing tensor that prevents `tensor` from being written, following the steps backwards."""
    sources = {
        written: sorted(tensors_read(config, step))
        for step in config.ensemble_scheduling.step
        for written in step.output_map.values()
    }
    seen = {tensor}
    while found := next((name for name in sources.get(tensor, ()) if name not in available | seen), None):
        seen.add(found)
        tensor = found
    return tensor


def _check_conditions(findings: Findings, tensors: Sequence[str]) -> None:
    """Check that every condition names a model of a step and a tensor of the ensemble."""
    config = findings.config
    conditions = {CONDITION_PREFIX + step.model_name for step in config.ensemble_scheduling.step}
    for key, value in sorted(config.parameters.items()):
        if not key.startswith(CONDITION_PREFIX):
            continue
        if key not in conditions:
            findings.error_as_is(
                f"condition '{key}' of ensemble '{config.name}' does not name a model of a step",
                map_path("parameters", key),
                expected="one of " + ", ".join(sorted(conditions)),
                suggestion=nearest(key, conditions),
            )
        elif value.string_value not in tensors:
            findings.error_as_is(
                f"condition '{key}' of ensemble '{config.name}' names '{value.string_value}', not one of its tensors",
                map_path("parameters", key),
                expected="one of " + ", ".join(sorted(tensors)),
                suggestion=nearest(value.string_value, tensors),
            )


def _find_writers(findings: Findings, inputs: set[str]) -> dict[str, str]:
    """Return each written tensor with the path that writes it; report tensors with two sources."""
    name = findings.config.name
    writers: dict[str, str] = {}
    for index, step in enumerate(findings.config.ensemble_scheduling.step):
        for key, tensor in step.output_map.items():
            path = map_path(f"ensemble_scheduling.step[{index}].output_map", key)
            if tensor in writers or tensor in inputs:
                findings.error_as_is(
                    f"ensemble tensor '{tensor}' can appear in an output map only once for ensemble '{name}' "
                    f"step {index}",
                    path,
                    expected="a tensor that no other step and no input of the ensemble provides",
                )
            writers.setdefault(tensor, path)
    return writers


def _find_available(config: ModelConfig, inputs: set[str]) -> set[str]:
    """Return the tensors that exist after every step that can run."""
    waiting = dict(enumerate(config.ensemble_scheduling.step))
    available = set(inputs)
    while ready := [index for index, step in waiting.items() if available.issuperset(tensors_read(config, step))]:
        for index in ready:
            available.update(waiting.pop(index).output_map.values())
    return available


def _check_order(findings: Findings, available: set[str], writers: Mapping[str, str]) -> None:
    """Report the steps that can never start: they lack a tensor or form a cycle."""
    for index, step in enumerate(findings.config.ensemble_scheduling.step):
        for key, tensor in step.input_map.items():
            if tensor in available:
                continue
            path = map_path(f"ensemble_scheduling.step[{index}].input_map", key)
            if tensor not in writers:
                findings.error_as_is(
                    f"ensemble tensor '{tensor}' is not written",
                    path,
                    expected="an input of the ensemble or a tensor of some output_map",
                    suggestion=nearest(tensor, [*available, *writers]),
                )
            else:
                findings.error_as_is(
                    f"ensemble tensor '{tensor}' is not written: at least one of its depending tensors is not "
                    "connected",
                    path,
                    expected="steps without a cycle",
                )


def cycle_message(cycle: Sequence[str]) -> str:
    """Return Triton's message for the cycle from `find_ensemble_cycle`, and the whole cycle if it is longer."""
    message = f"circular dependency between ensembles: {cycle[0]} -> ... -> {cycle[-2]} -> {cycle[-1]}"
    return message if len(cycle) <= _SHOWN_OF_CYCLE else f"{message}; the cycle is {' -> '.join(cycle)}"


def find_ensemble_cycle(members: Mapping[str, Sequence[str]], start: str) -> list[str]:
    """Return the models of a cycle through ensemble `start`, which ends as it begins, or nothing.

    `members` maps each ensemble to the models of its steps.
    """
    path = [start]
    # Depth-first with explicit stacks: chains of ensembles may be longer than Python's recursion limit.
    stack = [iter(members.get(start, ()))]
    visited: set[str] = set()
    while stack:
        name = next(stack[-1], None)
        if name is None:
            stack.pop()
            path.pop()
        elif name == start:
            return [*path, start]
        elif name in members and name not in visited:
            visited.add(name)
            path.append(name)
            stack.append(iter(members[name]))
    return []
