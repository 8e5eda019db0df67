"""Checks of the sequence batcher's configuration."""

from collections import Counter
from collections.abc import Sequence

from naiad.config.forms.findings import Findings
from naiad.config.model_config_pb2 import DataType, ModelSequenceBatching
from naiad.config.validate.file_names import is_outside

_Control = ModelSequenceBatching.Control
_CORRID_TYPES = ("TYPE_UINT64", "TYPE_INT64", "TYPE_UINT32", "TYPE_INT32", "TYPE_STRING")
_VALUES = ("int32_false_true", "fp32_false_true", "bool_false_true")
_VALUE_NAMES = "'int32_false_true', 'fp32_false_true'"


def check_sequence_batching(findings: Findings) -> None:
    """Check controls, strategy and states."""
    batching = findings.config.sequence_batching
    _check_control_names(findings, batching)
    _check_controls(findings, batching)
    _check_strategy(findings, batching)
    for index, state in enumerate(batching.state):
        _check_state(findings, state, f"sequence_batching.state[{index}]")
    _check_state_names(findings, batching)


def _check_control_names(findings: Findings, batching: ModelSequenceBatching) -> None:
    inputs = {tensor.name for tensor in findings.config.input}
    names = Counter(control_input.name for control_input in batching.control_input)
    for index, control_input in enumerate(batching.control_input):
        path = f"sequence_batching.control_input[{index}]"
        name = control_input.name
        if not name:
            findings.error("sequence batching control tensor must have a name", path, expected="'name'")
        elif names[name] > 1:
            findings.error(
                f"sequence batching control tensor '{name}' is specified for multiple control kinds",
                path,
                text=name,
                expected="a tensor of its own for each control",
            )
        elif len({control.kind for control in control_input.control}) > 1:
            # Triton: loads it.
            findings.warning(
                f"control tensor '{name}' has several controls, but represents only the first",
                f"{path}.control[1]",
                expected="a tensor of its own for each control",
            )
        elif name in inputs:
            findings.warning(
                f"control tensor '{name}' is also an input, which every request would have to contain",
                f"{path}.name",
                expected="it under 'control_input' only",
            )


def _check_controls(findings: Findings, batching: ModelSequenceBatching) -> None:
    seen: Counter[int] = Counter()
    for index, control_input in enumerate(batching.control_input):
        path = f"sequence_batching.control_input[{index}]"
        if not control_input.control:
            findings.warning(f"control tensor '{control_input.name}' has no 'control'", path, expected="'control'")
        for position, control in enumerate(control_input.control):
            control_path = f"{path}.control[{position}]"
            seen[control.kind] += 1
            if seen[control.kind] > 1:
                findings.error(
                    f"sequence batching specifies multiple {_Control.Kind.Name(control.kind)} tensors",
                    f"{control_path}.kind",
                    text=_Control.Kind.Name(control.kind),
                )
            _check_control(findings, control, control_path)


def _check_control(findings: Findings, control: ModelSequenceBatching.Control, path: str) -> None:
    kind = _Control.Kind.Name(control.kind)
    given = [name for name in _VALUES if getattr(control, name)]
    if control.kind == _Control.CONTROL_SEQUENCE_CORRID:
        if given:
            findings.error(
                f"sequence batching must not specify either {_VALUE_NAMES} or 'bool_false_true' for {kind}",
                f"{path}.{given[0]}",
            )
        elif DataType.Name(control.data_type) not in _CORRID_TYPES:
            findings.error_as_is(
                f"unexpected data type for control {kind} for {findings.config.name}. Allowed data types are "
                "TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING",
                f"{path}.data_type",
                expected="one of " + ", ".join(_CORRID_TYPES),
            )
        return
    if not given:
        findings.error(
            f"sequence batching must specify either {_VALUE_NAMES} or 'bool_false_true' for {kind}",
            path,
            expected="for example 'fp32_false_true: [ 0, 1 ]'",
        )
    elif len(given) > 1:
        findings.error(
            f"sequence batching specifies more than one from {_VALUE_NAMES} and 'bool_false_true' for {kind}",
            f"{path}.{given[1]}",
        )
    for name in given:
        if len(getattr(control, name)) != 2:
            findings.error(
                f"sequence batching control '{name}' must have exactly 2 entries for {kind}",
                f"{path}.{name}",
                expected="the value for false, then the value for true",
            )


def _check_strategy(findings: Findings, batching: ModelSequenceBatching) -> None:
    path = "sequence_batching.oldest"
    sizes = batching.oldest.preferred_batch_size
    check_preferred_sizes(findings, sizes, "sequence batching preferred batch size", path)
    candidates = batching.oldest.max_candidate_sequences
    if candidates < 0:
        findings.error(
            "sequence batching max candidate sequences must be positive",
            f"{path}.max_candidate_sequences",
            text=candidates,
            expected="1 or more, or 0 for max_batch_size",
        )
    utilization = batching.direct.minimum_slot_utilization
    if not 0.0 <= utilization <= 1.0:
        findings.error(
            "sequence batching minimum slot utilization must be in range (0.0, 1.0]",
            "sequence_batching.direct.minimum_slot_utilization",
            text=utilization,
        )


def check_preferred_sizes(findings: Findings, sizes: Sequence[int], title: str, path: str) -> None:
    """Check the preferred batch sizes of a batcher."""
    largest = findings.config.max_batch_size
    for position, size in enumerate(sizes):
        size_path = f"{path}.preferred_batch_size[{position}]"
        if size <= 0:
            findings.error(f"{title} must be positive", size_path, text=size)
        elif size > largest:
            expected = f"at most {largest}"
            findings.error(f"{title} must be <= max batch size", size_path, text=size, expected=expected)


def _check_state_names(findings: Findings, batching: ModelSequenceBatching) -> None:
    """Check that every tensor belongs to one state; an output may also be visible to clients."""
    inputs = {tensor.name for tensor in findings.config.input}
    controls = {control_input.name for control_input in batching.control_input}
    taken = Counter(state.input_name for state in batching.state)
    returned = Counter(state.output_name for state in batching.state)
    for index, state in enumerate(batching.state):
        path = f"sequence_batching.state[{index}]"
        name = state.input_name
        if name and (taken[name] > 1 or name in controls):
            findings.error(
                f"sequence state input '{name}' can only be specified once", f"{path}.input_name", text=name
            )
        elif name in inputs:
            findings.warning(
                f"sequence state input '{name}' is also an input, which every request would have to contain",
                f"{path}.input_name",
                expected="it under 'state' only",
            )
        if state.output_name and returned[state.output_name] > 1:
            findings.error(
                f"sequence state output '{state.output_name}' can only be specified once",
                f"{path}.output_name",
                text=state.output_name,
            )


def _check_state(findings: Findings, state: ModelSequenceBatching.State, path: str) -> None:
    title = f"sequence state '{state.input_name or state.output_name}'"
    for name in ("input_name", "output_name", "dims"):
        if not getattr(state, name):
            findings.error(f"{title} must specify '{name}'", path, expected=f"'{name}'")
    if state.data_type == DataType.TYPE_INVALID:
        findings.error(f"{title} must specify 'data_type'", path, expected="'data_type'")
    if len(state.initial_state) > 1:
        count = len(state.initial_state)
        findings.error(
            f"{title}: 'initial_state' must contain exactly one or zero element. Found {count}",
            f"{path}.initial_state",
        )
    for index, initial in enumerate(state.initial_state):
        _check_initial_state(findings, state, initial, f"{path}.initial_state[{index}]")


def _check_initial_state(
    findings: Findings, state: ModelSequenceBatching.State, initial: ModelSequenceBatching.InitialState, path: str
) -> None:
    name = state.input_name
    if not initial.name:
        findings.error(f"Field 'name' must be set when using initial_state for state input '{name}'.", path)
    if initial.data_type != state.data_type:
        findings.error(
            f"The data type used for 'initial_state' field of state '{name}' does not match the state data type.",
            f"{path}.data_type",
            expected=DataType.Name(state.data_type),
        )
    if initial.WhichOneof("state_data") is None:
        findings.error(f"initial_state setting expects state'{name}' to have zero_data or data_file", path)
    if is_outside(initial.data_file):
        findings.error_as_is(
            f"initial state file '{initial.data_file}' must stay within model directory.", f"{path}.data_file"
        )
    if len(initial.dims) != len(state.dims):
        findings.error(
            "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions for state input "
            f"'{name}'.",
            f"{path}.dims",
            expected=f"{len(state.dims)} dimensions",
        )
        return
    for position, (size, wanted) in enumerate(zip(initial.dims, state.dims, strict=True)):
        size_path = f"{path}.dims[{position}]"
        if size == -1:
            findings.error(
                f"'initial_state' field for state input name '{name}' contains variable dimensions.", size_path
            )
        elif wanted not in (-1, size):
            findings.error(
                f"'initial_state' dim for input name '{name}' doesn't match 'state' dim description.",
                size_path,
                text=size,
                expected=str(wanted),
            )
