"""Checks of the parameters that pad inputs and cut outputs."""

from collections import Counter

from naiad.config.forms.findings import Findings
from naiad.config.forms.pbtxt.lexer import map_path
from naiad.config.model_config_pb2 import ModelInput, ModelOutput
from naiad.config.padding import (
    CUT_PREFIX,
    PAD_BATCH,
    PAD_PREFIX,
    InputPadding,
    PaddingTextError,
    parse_input_padding,
    parse_rows,
)
from naiad.config.problem import nearest
from naiad.core.datatype import BY_CONFIG_NUMBER


def check_padding(findings: Findings, *, complete: bool) -> None:
    """Check `pad_batch`, `pad_input.` and `cut_output.`; without `complete`, tensors may still be missing."""
    config = findings.config
    # A backend completes nothing if there are inputs and outputs; a Python model may add to them.
    is_known = complete or bool(config.input and config.output and config.backend != "python")
    if PAD_BATCH in config.parameters:
        _check_model(findings, PAD_BATCH, is_known=is_known)
        _check_rows(findings, is_known=is_known)
    padded = sorted(key for key in config.parameters if key.startswith(PAD_PREFIX))
    cut = sorted(key for key in config.parameters if key.startswith(CUT_PREFIX))
    if not padded:
        for key in cut:
            expected = f"a parameter '{PAD_PREFIX}INPUT'"
            findings.parameter_error(key, "cuts an output, but no input is padded", expected=expected)
        return
    _check_model(findings, padded[0], is_known=is_known)
    inputs = {tensor.name: tensor for tensor in config.input}
    found: dict[str, InputPadding] = {}
    for key in padded:
        if is_known:
            _check_name(findings, key, PAD_PREFIX, inputs)
        tensor = inputs.get(key.removeprefix(PAD_PREFIX))
        padding = None if tensor is None else _check_input(findings, tensor, key)
        if padding is not None:
            found[padding.name] = padding
    _check_added(findings, found)
    _check_batch_tensors(findings, found)
    if is_known:
        _check_outputs(findings, cut, inputs, found)


def _check_rows(findings: Findings, *, is_known: bool) -> None:
    config = findings.config
    text = config.parameters[PAD_BATCH].string_value
    try:
        rows = parse_rows(text)
    except PaddingTextError as error:
        findings.parameter_error(PAD_BATCH, str(error), text=error.text, expected=error.expected)
        return
    if is_known and rows[-1] != config.max_batch_size:
        findings.parameter_error(
            PAD_BATCH,
            f"ends in {rows[-1]} rows, and batches have up to {config.max_batch_size}",
            text=text,
            expected="max_batch_size as the last number",
        )
    if config.batch_input or config.batch_output or any(tensor.allow_ragged_batch for tensor in config.input):
        findings.parameter_error(
            PAD_BATCH,
            "cannot be used with a ragged batch, which has no rows to add",
            expected="no 'batch_input', 'batch_output' and 'allow_ragged_batch'",
        )


def _check_model(findings: Findings, key: str, *, is_known: bool) -> None:
    config = findings.config
    refusals = {
        "an ensemble; its members are padded": config.HasField("ensemble_scheduling"),
        "a model of sequences": config.HasField("sequence_batching"),
        "a decoupled model": config.model_transaction_policy.decoupled,
        "a model without batches": is_known and config.max_batch_size < 1,
    }
    for kind, applies in refusals.items():
        if applies:
            findings.parameter_error(key, f"cannot be used with {kind}", expected=f"no '{key}'")
            return


def _check_name(
    findings: Findings, key: str, prefix: str, known: dict[str, ModelInput] | dict[str, ModelOutput]
) -> None:
    name = key.removeprefix(prefix)
    if name not in known:
        kind = "input" if prefix == PAD_PREFIX else "output"
        findings.parameter_error(
            key,
            f"does not name an {kind}",
            text=name,
            expected="one of " + ", ".join(known),
            suggestion=nearest(name, known),
        )


def _check_input(findings: Findings, tensor: ModelInput, key: str) -> InputPadding | None:
    if tensor.data_type not in BY_CONFIG_NUMBER:
        return None  # reported where datatypes are checked
    if -1 not in tensor.dims:
        expected, text = f"-1 among 'dims' of input '{tensor.name}'", list(tensor.dims)
        findings.parameter_error(key, "pads an input without a variable dimension", text=text, expected=expected)
        return None
    if tensor.allow_ragged_batch:
        expected = "one of padding and 'allow_ragged_batch'"
        findings.parameter_error(key, "pads an input that is ragged", expected=expected)
    try:
        padding = parse_input_padding(tensor, findings.config.parameters[key].string_value)
    except PaddingTextError as error:
        findings.parameter_error(key, str(error), text=error.text, expected=error.expected)
        return None
    if tensor.optional and (padding.mask or padding.lengths):
        expected = f"no 'optional' at input '{tensor.name}'"
        findings.parameter_error(key, "has a mask or lengths of an input that requests may omit", expected=expected)
    return padding


def _check_added(findings: Findings, found: dict[str, InputPadding]) -> None:
    """Check that the names of added inputs are not in use."""
    names = Counter(tensor.name for tensor in findings.config.input)
    names.update(name for batch_input in findings.config.batch_input for name in batch_input.target_name)
    for padding in found.values():
        for added in (padding.mask, padding.lengths):
            if added is None:
                continue
            names[added.name] += 1
            if names[added.name] > 1:
                findings.parameter_error(
                    PAD_PREFIX + padding.name,
                    f"adds input '{added.name}', which exists already",
                    text=added.name,
                    expected=f"no '{added.name}' among the inputs: clients do not send it",
                )


def _check_batch_tensors(findings: Findings, found: dict[str, InputPadding]) -> None:
    config = findings.config
    sources = {
        **{f"batch_input[{index}]": entry.source_input for index, entry in enumerate(config.batch_input)},
        **{f"batch_output[{index}]": entry.source_input for index, entry in enumerate(config.batch_output)},
    }
    for path, names in sources.items():
        for name in names:
            if name in found:
                findings.error(
                    f"'{path}' uses the shape of input '{name}', which is padded",
                    path,
                    text=name,
                    expected=f"mask= or lengths= of '{PAD_PREFIX}{name}', and '{CUT_PREFIX}OUTPUT'",
                )


def _check_outputs(
    findings: Findings, keys: list[str], inputs: dict[str, ModelInput], found: dict[str, InputPadding]
) -> None:
    config = findings.config
    outputs = {tensor.name: tensor for tensor in config.output}
    for key in keys:
        _check_name(findings, key, CUT_PREFIX, outputs)
    for name, output in outputs.items():
        key = CUT_PREFIX + name
        if key in config.parameters:
            _check_cut(findings, output, config.parameters[key].string_value, inputs, found)
        elif -1 in output.dims:
            index = list(outputs).index(name)
            findings.error(
                f"output '{name}' has a variable dimension, and inputs are padded: does it have their length?",
                f"output[{index}]",
                text=list(output.dims),
                expected=f"parameter '{key}' with the name of the padded input, or empty if it has its own length",
            )


def _check_cut(
    findings: Findings,
    output: ModelOutput,
    source: str,
    inputs: dict[str, ModelInput],
    found: dict[str, InputPadding],
) -> None:
    path = map_path("parameters", CUT_PREFIX + output.name)
    if not source:
        return
    if PAD_PREFIX + source not in findings.config.parameters:
        findings.error(
            f"output '{output.name}' is to be cut as input '{source}', which is not padded",
            path,
            text=source,
            expected="one of " + ", ".join(found),
            suggestion=nearest(source, found),
        )
    elif source in inputs and list(output.dims).count(-1) != list(inputs[source].dims).count(-1):
        findings.error(
            f"output '{output.name}' has another number of variable dimensions than input '{source}'",
            path,
            text=list(output.dims),
            expected=f"as many -1 as {list(inputs[source].dims)}",
        )
    elif source in inputs and inputs[source].optional:
        findings.error(
            f"output '{output.name}' is to be cut as input '{source}', which requests may omit",
            path,
            text=source,
            expected="an input that is always there",
        )
