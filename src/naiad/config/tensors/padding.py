"""Parameters that pad requests of different lengths, so that they can share a batch, and their checks.

parameters { key: "pad_input.TOKENS" value { string_value: "buckets=16,32,64 value=0 mask=MASK:TYPE_INT64" } }
parameters { key: "cut_output.STATES" value { string_value: "TOKENS" } }
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from naiad.config.forms.findings import Findings
from naiad.config.forms.pbtxt.lexer import map_path
from naiad.config.model_config_pb2 import ModelConfig, ModelInput, ModelOutput
from naiad.config.problem import nearest, one_of
from naiad.core.datatype import BY_CONFIG_NAME, BY_CONFIG_NUMBER, DataType
from naiad.core.tensor import Shape, encode_bytes_elements

PAD_PREFIX = "pad_input."
"""`pad_input.INPUT`: the target lengths for the variable dimensions of an input, and the padding value."""
CUT_PREFIX = "cut_output."
"""`cut_output.OUTPUT`: the input that determines the lengths of an output; empty for an output with its own lengths.
"""
PAD_BATCH = "pad_batch"
"""The numbers of rows that a batch is padded to, ascending; the last is max_batch_size."""
MAX_LENGTH = (1 << 31) - 1
"""Maximum length of a tensor."""
_COUNTS = (DataType.INT32, DataType.INT64, DataType.UINT32, DataType.UINT64, DataType.FP32, DataType.FP64)
_TRUTH = {"true": True, "false": False, "1": True, "0": False}
_FIELDS = ("buckets", "multiple_of", "max", "max_waste", "value", "mask", "lengths")
FIELD_LIST = "one of " + ", ".join(f"{name}=" for name in _FIELDS)


class PaddingTextError(ValueError):
    """A parameter has an invalid text; `expected` describes a valid one."""

    def __init__(self, message: str, text: str, expected: str) -> None:
        super().__init__(message)
        self.text = text
        self.expected = expected


@dataclass(frozen=True, slots=True)
class AddedInput:
    """An input that the server derives from a padded one and adds to the request."""

    name: str
    datatype: DataType
    dims: Shape
    """As in a configuration, without batch dimension."""


@dataclass(frozen=True, slots=True)
class InputPadding:
    """The padding of one input."""

    name: str
    datatype: DataType
    dims: Shape
    """Dimensions in the configuration; those with -1 are padded."""
    buckets: tuple[int, ...] = ()
    """Lengths, ascending; empty if lengths are multiples."""
    multiple_of: int = 0
    max_length: int = MAX_LENGTH
    """Longer dimensions stay unchanged."""
    max_waste: float = 1.0
    """A tensor stays unchanged if its share of padding, from 0 to 1, would exceed this."""
    value: bytes = b""
    """One element in wire format."""
    mask: AddedInput | None = None
    """1 for the client's elements, 0 for padding: over the variable dimensions of each row."""
    lengths: AddedInput | None = None
    """The client's own lengths: one number per row, or one per variable dimension."""

    def padded(self, tail: Shape) -> Shape:
        """Return the shape that a tensor of shape `tail` is padded to, both without batch dimension."""
        shape = tuple(self._length(size) if dim < 0 else size for size, dim in zip(tail, self.dims, strict=True))
        count = math.prod(shape)
        return tail if count and 1 - math.prod(tail) / count > self.max_waste else shape

    def variable(self, tail: Shape) -> Shape:
        """Return the variable ones among the dimensions of `tail`."""
        return tuple(size for size, dim in zip(tail, self.dims, strict=True) if dim < 0)

    def _length(self, length: int) -> int:
        if length > self.max_length:
            return length
        if self.buckets:
            return self.buckets[bisect_left(self.buckets, length)]
        return min(-(-length // self.multiple_of) * self.multiple_of, self.max_length)


@dataclass(frozen=True, slots=True)
class Padding:
    """The padding in a configuration."""

    inputs: Mapping[str, InputPadding]
    outputs: Mapping[str, str]
    """Output to the input that determines its lengths; outputs that stay unchanged are missing."""
    rows: tuple[int, ...] = ()
    """Numbers of rows that batches are padded to; empty for unpadded batches."""


def read_padding(config: ModelConfig) -> Padding | None:
    """Return the padding in a valid configuration; None for a model without padding."""
    if not config.parameters:
        return None  # Most models: a load asks six times.
    keys = {tensor.name: PAD_PREFIX + tensor.name for tensor in config.input}
    inputs = {
        tensor.name: parse_input_padding(tensor, config.parameters[keys[tensor.name]].string_value)
        for tensor in config.input
        if keys[tensor.name] in config.parameters
    }
    rows = parse_rows(_text(config, PAD_BATCH)) if PAD_BATCH in config.parameters else ()
    if not inputs and not rows:
        return None
    sources = {output.name: _text(config, CUT_PREFIX + output.name) for output in config.output}
    return Padding(inputs, {name: source for name, source in sources.items() if source}, rows)


def added_inputs(config: ModelConfig) -> Sequence[AddedInput]:
    """Return the inputs that the server derives for a valid configuration."""
    padding = read_padding(config)
    if padding is None:
        return ()
    pairs = [(each.mask, each.lengths) for each in padding.inputs.values()]
    return [added for pair in pairs for added in pair if added is not None]


def added_names(config: ModelConfig) -> set[str]:
    """Return the names of the inputs that the server derives, also while the padded inputs are not known yet."""
    texts = [config.parameters[key].string_value for key in config.parameters if key.startswith(PAD_PREFIX)]
    fields = [_split(text) for text in texts]
    return {_added(name, each[name], ()).name for each in fields for name in ("mask", "lengths") if name in each}


def _text(config: ModelConfig, key: str) -> str:
    return config.parameters[key].string_value if key in config.parameters else ""


# --- one parameter --------------------------------------------------------------------------------------------------


def parse_input_padding(tensor: ModelInput, text: str) -> InputPadding:
    """Read the parameter of an input. Raises PaddingTextError."""
    fields = _split(text)
    datatype, dims = BY_CONFIG_NUMBER[tensor.data_type], tuple(tensor.dims)
    if "buckets" in fields and ("multiple_of" in fields or "max" in fields):
        raise PaddingTextError("has 'buckets' together with 'multiple_of' or 'max'", text, "one or the other")
    if "buckets" not in fields and "multiple_of" not in fields:
        raise PaddingTextError("has no lengths", text, "buckets=16,32,64 or multiple_of=16")
    buckets = _ascending("buckets", fields["buckets"]) if "buckets" in fields else ()
    free_count = dims.count(-1)
    return InputPadding(
        name=tensor.name,
        datatype=datatype,
        dims=dims,
        buckets=buckets,
        multiple_of=0 if buckets else _number("multiple_of", fields["multiple_of"]),
        max_length=buckets[-1] if buckets else _number("max", fields.get("max", str(MAX_LENGTH))),
        max_waste=_share(fields.get("max_waste", "1")),
        value=element(datatype, fields.get("value", "")),
        mask=_added("mask", fields["mask"], (-1,) * free_count) if "mask" in fields else None,
        lengths=_added("lengths", fields["lengths"], () if free_count == 1 else (free_count,))
        if "lengths" in fields
        else None,
    )


def parse_rows(text: str) -> tuple[int, ...]:
    """Read the numbers of rows of a batch. Raises PaddingTextError."""
    return _ascending("rows", text)


def _split(text: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for part in text.split():
        name, equals, value = part.partition("=")
        if not equals or name not in _FIELDS:
            raise PaddingTextError(f"has an unknown part '{part}'", part, FIELD_LIST)
        if name in fields:
            raise PaddingTextError(f"has '{name}' twice", part, f"one {name}=")
        fields[name] = value
    return fields


def _ascending(name: str, text: str) -> tuple[int, ...]:
    numbers = tuple(_number(name, part) for part in text.split(","))
    if list(numbers) != sorted(set(numbers)):
        raise PaddingTextError(f"has {name} that are not ascending", text, "every number above the one before it")
    return numbers


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < int(text[:12]) <= MAX_LENGTH):
        raise PaddingTextError(
            f"has a '{name}' that is not a number of elements", text, f"whole numbers from 1 to {MAX_LENGTH}"
        )
    return int(text)


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise PaddingTextError("has a 'max_waste' that is not a share", text, "a number from 0 to 1")
    return share


def _added(field: str, text: str, dims: Shape) -> AddedInput:
    name, colon, type_name = text.rpartition(":")
    if not colon or not type_name.startswith("TYPE_"):
        name, type_name = text, DataType.INT32.config_name
    datatype = BY_CONFIG_NAME.get(type_name)
    allowed = _COUNTS if field == "lengths" else [each for each in DataType if each is not DataType.BYTES]
    if not name or datatype is None or datatype not in allowed:
        expected = f"NAME or NAME:TYPE, one of {', '.join(each.config_name for each in allowed)}"
        raise PaddingTextError(f"has a '{field}' that is not an input with a type", text, expected)
    return AddedInput(name, datatype, dims)


def element(datatype: DataType, text: str) -> bytes:
    """Return one element of a datatype in wire format; an empty text is zero. Raises PaddingTextError."""
    if datatype is DataType.BYTES:
        return encode_bytes_elements([text.encode()])
    if not text:
        return bytes(datatype.item_bytes)
    kind = datatype.numpy.kind
    try:
        if kind == "b":
            return np.array(_TRUTH[text.lower()], np.bool_).tobytes()
        if kind in "iu":
            # Numbers out of range raise OverflowError.
            return np.array([int(text)], datatype.numpy).tobytes()
        return np.array([float(text)], datatype.numpy).tobytes()
    except (ValueError, KeyError, OverflowError):
        expected = f"a number of {datatype.config_name}" if kind != "b" else "true or false"
        raise PaddingTextError(f"has a 'value' that is not a {datatype.config_name}", text, expected) from None


# --- checks ---------------------------------------------------------------------------------------------------------


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
            expected=one_of(known, kind),
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
            expected=one_of(found, "padded input"),
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
