"""Checks of ensembles: the graph of one configuration, its members, cycles between ensembles."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from naiad.config.forms.findings import Findings
from naiad.config.forms.pbtxt.lexer import ParsedConfig, map_path
from naiad.config.model_config_pb2 import DataType, ModelConfig, ModelEnsembling, ModelInput, ModelOutput
from naiad.config.problem import Problem, nearest, one_of

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
                expected=one_of(sorted(conditions), "condition"),
                suggestion=nearest(key, conditions),
            )
        elif value.string_value not in tensors:
            findings.error_as_is(
                f"condition '{key}' of ensemble '{config.name}' names '{value.string_value}', not one of its tensors",
                map_path("parameters", key),
                expected=one_of(sorted(tensors), "tensor"),
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


# --- an ensemble and its members ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Inferred:
    """Datatype and shape of an ensemble tensor according to one model."""

    model_name: str
    is_batching: bool
    datatype: int
    dims: Sequence[int]

    @property
    def full_dims(self) -> list[int]:
        """The dims with the batch dimension."""
        return [-1, *self.dims] if self.is_batching else list(self.dims)


def ensemble_member_problems(
    config: ModelConfig, members: Mapping[str, ModelConfig], parsed: ParsedConfig | None = None
) -> list[Problem]:
    """Return the mismatches between an ensemble and its members; `members` has every available model by name.

    A member with unknown inputs or outputs (they are auto-completed) is not compared.
    """
    return _MemberChecks(Findings(config, parsed), members).run()


def has_decoupled_member(config: ModelConfig, members: Mapping[str, ModelConfig]) -> bool:
    """Return whether an ensemble is decoupled, as its members are. Triton ignores the ensemble's own policy."""
    steps = config.ensemble_scheduling.step
    return any(members[step.model_name].model_transaction_policy.decoupled for step in steps)


class _MemberChecks:
    """Checks the steps in order; the first model with a tensor determines what later ones must match."""

    def __init__(self, findings: Findings, members: Mapping[str, ModelConfig]) -> None:
        self._findings = findings
        self._members = members
        config = findings.config
        self._name = config.name
        own: Iterable[ModelInput | ModelOutput] = [*config.input, *config.output]
        self._tensors = {each.name: _of_ensemble(config, each) for each in own if each.dims}

    def run(self) -> list[Problem]:
        """Return all problems."""
        missing: list[str] = []
        for index, step in enumerate(self._findings.config.ensemble_scheduling.step):
            path = f"ensemble_scheduling.step[{index}]"
            member = self._members.get(step.model_name)
            if member is not None:
                self._check_batch_size(member, path)
                self._check_inputs(step, member, path)
                self._check_outputs(step, member, path)
            elif step.model_name and step.model_name not in missing:
                missing.append(step.model_name)
                self._findings.error_as_is(
                    f"ensemble {self._name} contains models that are not available or ambiguous: {step.model_name}",
                    f"{path}.model_name",
                    expected=one_of(sorted(self._members.keys() - {self._name}), "other model"),
                    suggestion=nearest(step.model_name, self._members),
                )
        return self._findings.problems

    def _check_batch_size(self, member: ModelConfig, path: str) -> None:
        # Triton: members without batches may be part of an ensemble with batches, if the full shapes match.
        rows = self._findings.config.max_batch_size
        if 0 < member.max_batch_size < rows:
            self._findings.error_as_is(
                f"ensemble {self._name} allows maximum batch size {rows}, but it contains model {member.name} which "
                f"only allows maximum batch size to be {member.max_batch_size}",
                path,
                expected=f"max_batch_size of at most {member.max_batch_size}",
            )

    def _check_inputs(self, step: ModelEnsembling.Step, member: ModelConfig, path: str) -> None:
        known = {tensor.name: tensor for tensor in member.input}
        if not known:
            return
        opening = f"in ensemble {self._name}, "
        for key, tensor in sorted(step.input_map.items()):
            key_path = map_path(f"{path}.input_map", key)
            if key in known:
                self._check_fit(tensor, _of_member(member, known[key]), key_path)
                continue
            self._findings.error_as_is(
                f"{opening}ensemble tensor {tensor} is mapping to non-existing input {key} in model {member.name}",
                key_path,
                expected="one of " + ", ".join(known),
                suggestion=nearest(key, known),
            )
        for name in sorted(known.keys() - set(step.input_map)):
            if not known[name].optional:
                self._findings.error_as_is(
                    f"{opening}input {name} in model {member.name} is not mapped to any ensemble tensors",
                    f"{path}.input_map",
                    expected=f'an entry with key: "{name}"',
                )

    def _check_outputs(self, step: ModelEnsembling.Step, member: ModelConfig, path: str) -> None:
        known = {tensor.name: tensor for tensor in member.output}
        if not known:
            return
        for key, tensor in sorted(step.output_map.items()):
            key_path = map_path(f"{path}.output_map", key)
            if key in known:
                self._check_fit(tensor, _of_member(member, known[key]), key_path)
                continue
            self._findings.error_as_is(
                f"in ensemble {self._name}, ensemble tensor {tensor} is mapped from non-existing output {key} in "
                f"model {member.name}",
                key_path,
                expected="one of " + ", ".join(known),
                suggestion=nearest(key, known),
            )

    def _check_fit(self, tensor: str, found: _Inferred, path: str) -> None:
        """Compare a member's view of a tensor with the previous ones, in Triton's words."""
        if not found.dims:
            return
        first = self._tensors.setdefault(tensor, found)
        opening = f"in ensemble {self._name}, ensemble tensor {tensor}: "
        if first.datatype != found.datatype:
            before, here = DataType.Name(first.datatype), DataType.Name(found.datatype)
            self._findings.error_as_is(
                f"{opening}inconsistent data type: {before} is inferred from model {first.model_name} while {here} "
                f"is inferred from model {found.model_name}",
                path,
                expected=self._remedy(first, here),
            )
        if not _dims_fit(first.dims, found.dims) and not _dims_fit(first.full_dims, found.full_dims):
            before, here = _text(first.full_dims), _text(found.full_dims)
            wanted = found.dims if first.is_batching else found.full_dims
            self._findings.error_as_is(
                f"{opening}inconsistent shape: {before} is inferred from model {first.model_name} while {here} is "
                f"inferred from model {found.model_name}",
                path,
                expected=self._remedy(first, f"dims: {_text(wanted)}"),
            )

    def _remedy(self, first: _Inferred, wanted: str) -> str:
        if first.model_name == self._name:
            return f"{wanted} in the ensemble's own configuration"
        return "models that agree, or a step between them that converts"


def _of_ensemble(config: ModelConfig, tensor: ModelInput | ModelOutput) -> _Inferred:
    # Triton compares the shapes as the members see them.
    dims = tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims
    return _Inferred(config.name, config.max_batch_size > 0, tensor.data_type, dims)


def _of_member(config: ModelConfig, tensor: ModelInput | ModelOutput) -> _Inferred:
    return _Inferred(config.name, config.max_batch_size > 0, tensor.data_type, tensor.dims)


def _text(dims: Sequence[int]) -> str:
    return "[" + ",".join(map(str, dims)) + "]"


def _dims_fit(a: Sequence[int], b: Sequence[int]) -> bool:
    return len(a) == len(b) and all(x == y or -1 in (x, y) for x, y in zip(a, b, strict=True))
