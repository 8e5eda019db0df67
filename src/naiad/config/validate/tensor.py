"""Checks of inputs, outputs, and the batch inputs and outputs derived from them."""

from collections import Counter
from collections.abc import Iterable, Sequence
from math import prod

from naiad.config.forms.findings import Findings
from naiad.config.model_config_pb2 import BatchInput, BatchOutput, DataType, ModelInput, ModelOutput
from naiad.config.problem import nearest
from naiad.config.validate.file_names import is_outside

_IMAGE_DIMS = 3
_ITEM_KINDS = (BatchInput.BATCH_ITEM_SHAPE, BatchInput.BATCH_ITEM_SHAPE_FLATTEN)
_VARIABLE = "-1 to indicate a variable-size dimension"


def check_tensors(findings: Findings, *, complete: bool) -> None:
    """Check every input and output; with `complete`, datatype and dims must be present."""
    config = findings.config
    for index, tensor in enumerate(config.input):
        path = f"input[{index}]"
        _check_tensor(findings, tensor, "input", path, complete)
        _check_input(findings, tensor, path)
    for index, output in enumerate(config.output):
        path = f"output[{index}]"
        _check_tensor(findings, output, "output", path, complete)
        if is_outside(output.label_filename):
            findings.error_as_is(
                f"label file '{output.label_filename}' must stay within model directory.", f"{path}.label_filename"
            )
    for kind, tensors in (("input", config.input), ("output", config.output)):
        _check_unique(findings, kind, [tensor.name for tensor in tensors])


def _check_unique(findings: Findings, kind: str, names: Sequence[str]) -> None:
    first: dict[str, int] = {}
    for index, name in enumerate(names):
        if name and name in first:
            findings.error(
                f"model {kind} '{name}' is specified more than once",
                f"{kind}[{index}].name",
                text=name,
                expected=f"a name that {kind}[{first[name]}] does not have",
            )
        first.setdefault(name, index)


def _check_tensor(findings: Findings, tensor: ModelInput | ModelOutput, kind: str, path: str, complete: bool) -> None:
    if not tensor.name:
        findings.error(f"model {kind} must specify 'name'", path, expected=f"'name: \"...\"' in {path}")
        return
    title = f"model {kind} '{tensor.name}'"
    if complete and tensor.data_type == DataType.TYPE_INVALID:
        findings.error(f"{title} must specify 'data_type'", path, expected="for example 'data_type: TYPE_FP32'")
    if complete and not tensor.dims:
        hint = "without the batch dimension" if findings.config.max_batch_size > 0 else "for example 'dims: [ 4 ]'"
        findings.error(f"{title} must specify 'dims'", path, expected=f"'dims', {hint}")
    _check_dims(findings, f"{title} dimension", tensor.dims, f"{path}.dims")
    if tensor.HasField("reshape"):
        _check_reshape(findings, tensor, title, path)
    _check_tensorrt_only(findings, tensor, path)


def _check_dims(findings: Findings, title: str, dims: Sequence[int], path: str) -> None:
    for position, size in enumerate(dims):
        if size < 1 and size != -1:
            findings.error(
                f"{title} must be integer >= 1, or {_VARIABLE}",
                f"{path}[{position}]",
                text=size,
                expected="a size of 1 or more, or -1",
            )


def _check_reshape(findings: Findings, tensor: ModelInput | ModelOutput, title: str, path: str) -> None:
    shape, dims = list(tensor.reshape.shape), list(tensor.dims)
    shape_path = f"{path}.reshape.shape"
    if not shape and findings.config.max_batch_size == 0:
        findings.error(
            f"{title} cannot have empty reshape for non-batching model as scalar tensors are not supported",
            f"{path}.reshape",
        )
    _check_dims(findings, f"{title} reshape dimensions", shape, shape_path)
    if any(size < 1 and size != -1 for size in shape + dims) or not dims:
        return
    if (-1 in shape) == (-1 in dims) and shape.count(-1) != dims.count(-1):
        findings.error(
            f"{title} has different number of variable-size dimensions for dims and reshape",
            shape_path,
            text=shape,
            expected=f"as many -1 as dims {dims} have",
        )
    elif _segment_sizes(dims) != _segment_sizes(shape):
        findings.error(
            f"{title} has different size for dims and reshape",
            shape_path,
            text=shape,
            expected=f"the element count of dims {dims}" + (" between the -1s" if -1 in dims else f": {prod(dims)}"),
        )


def _segment_sizes(dims: Iterable[int]) -> list[int]:
    """Return the element counts before, between and after the variable dimensions."""
    sizes = [1]
    for size in dims:
        if size == -1:
            sizes.append(1)
        else:
            sizes[-1] *= size
    return sizes


def _check_tensorrt_only(findings: Findings, tensor: ModelInput | ModelOutput, path: str) -> None:
    if findings.config.platform == "tensorrt_plan":
        return
    if tensor.is_shape_tensor:
        findings.error("shape tensors are only supported for TensorRT platform", f"{path}.is_shape_tensor")
    if tensor.is_non_linear_format_io:
        findings.error(
            "Non-linear IO format is only supported for the TensorRT platform", f"{path}.is_non_linear_format_io"
        )


def _check_input(findings: Findings, tensor: ModelInput, path: str) -> None:
    if tensor.format != ModelInput.FORMAT_NONE and tensor.dims and len(tensor.dims) != _IMAGE_DIMS:
        findings.error(
            "model input NHWC/NCHW require 3 dims", f"{path}.dims", text=list(tensor.dims), expected="3 dims"
        )
    if tensor.allow_ragged_batch and findings.config.max_batch_size == 0:
        findings.warning(
            f"'allow_ragged_batch' of input '{tensor.name}' has no effect without batching",
            f"{path}.allow_ragged_batch",
            expected="max_batch_size above 0",
        )


def check_batch_tensors(findings: Findings) -> None:
    """Check batch inputs and batch outputs against the model's own inputs and outputs."""
    config = findings.config
    if config.backend == "python" and (config.batch_input or config.batch_output):
        # Triton: its Python backend also delivers requests to a model one by one.
        findings.warning(
            "'batch_input' and 'batch_output' have no effect on Python models, which receive the requests of a batch "
            "one by one",
            "batch_input" if config.batch_input else "batch_output",
        )
    inputs = [tensor.name for tensor in config.input]
    _check_batch_inputs(findings, inputs)
    _check_batch_outputs(findings, inputs)


def _check_batch_inputs(findings: Findings, inputs: Sequence[str]) -> None:
    config = findings.config
    for index, batch_input in enumerate(config.batch_input):
        path = f"batch_input[{index}]"
        if batch_input.data_type not in (DataType.TYPE_INT32, DataType.TYPE_FP32):
            findings.error(
                "batch input data type must be TYPE_INT32 or TYPE_FP32",
                f"{path}.data_type",
                text=DataType.Name(batch_input.data_type),
                expected="TYPE_INT32 or TYPE_FP32",
            )
        if not batch_input.target_name:
            findings.error("batch input must specify 'target_name'", path, expected="the name of a model input")
        kind = BatchInput.Kind.Name(batch_input.kind)
        _check_sources(findings, batch_input.source_input, f"batch input kind '{kind}'", path, inputs)
        if batch_input.kind in _ITEM_KINDS and config.max_batch_size == 0:
            findings.error(
                f"batch input kind '{kind}' describes the shapes of a batch's rows, but the model does not batch",
                f"{path}.kind",
                expected="'max_batch_size' above 0",
            )
    targets = Counter(name for batch_input in config.batch_input for name in batch_input.target_name)
    for name, count in targets.items():
        if count > 1 or name in inputs:
            findings.error(f"batch input target '{name}' can only be specified once", "batch_input", text=name)


def _check_batch_outputs(findings: Findings, inputs: Sequence[str]) -> None:
    config = findings.config
    outputs = [tensor.name for tensor in config.output]
    for index, batch_output in enumerate(config.batch_output):
        path = f"batch_output[{index}]"
        _check_names(findings, batch_output.target_name, "target output", f"{path}.target_name", outputs)
        kind = BatchOutput.Kind.Name(batch_output.kind)
        _check_sources(findings, batch_output.source_input, f"batch output kind '{kind}'", path, inputs)
        if not batch_output.target_name:
            findings.error("batch output must specify 'target_name'", path, expected="the name of a model output")
        _check_scatter(findings, batch_output, path)
    scattered = Counter(name for batch_output in config.batch_output for name in batch_output.target_name)
    for name, count in scattered.items():
        if count > 1:
            findings.error_as_is(f"target output name '{name}' can only be specified once", "batch_output", text=name)


def _check_sources(findings: Findings, sources: Sequence[str], title: str, path: str, inputs: Sequence[str]) -> None:
    if len(sources) != 1:
        findings.error(f"{title} expects 1 source input, got {len(sources)}", path, expected="one 'source_input'")
    _check_names(findings, sources, "source input", f"{path}.source_input", inputs)
    optional = {tensor.name for tensor in findings.config.input if tensor.optional}
    for name in optional.intersection(sources):
        findings.error(
            f"{title} has the source input '{name}', which requests may omit",
            f"{path}.source_input",
            text=name,
            expected=f"an input that is always there, or no 'optional' at '{name}'",
        )


def _check_scatter(findings: Findings, batch_output: BatchOutput, path: str) -> None:
    """Check that the source input has a dimension for every -1 of the outputs that are cut by its shape."""
    config = findings.config
    sources = {tensor.name: len(tensor.dims) for tensor in config.input}
    rank = sources.get(batch_output.source_input[0], 0) if batch_output.source_input else 0
    for output in config.output:
        dims = output.reshape.shape if output.HasField("reshape") else output.dims
        if rank and output.name in batch_output.target_name and -1 in list(dims)[rank:]:
            findings.error(
                f"batch output '{output.name}' has a variable dimension for which source input "
                f"'{batch_output.source_input[0]}' has none",
                path,
                text=list(dims),
                expected=f"-1 only among the first {rank} dims",
            )


def _check_names(findings: Findings, names: Sequence[str], title: str, path: str, known: Sequence[str]) -> None:
    # No check is possible while the model's own tensors are not known yet.
    if not known:
        return
    for position, name in enumerate(names):
        if name not in known:
            findings.error(
                f"unknown {title} name '{name}'",
                f"{path}[{position}]",
                text=name,
                expected="one of " + ", ".join(known),
                suggestion=nearest(name, known),
            )
