"""The graph of an OpenVINO model: read from its file, with the first dimension made the batch's."""

import re
from pathlib import Path
from typing import Any

import openvino

from naiad.backend.api import ModelContext
from naiad.backend.openvino.options import CompilePlan
from naiad.core.errors import InferError, internal, invalid_argument

_PLACES = re.compile(r"^(Exception from .*|Check .* failed( at .*)?|FrontEnd API failed with .*)$", re.MULTILINE)
"""Lines of an error that name OpenVINO's source code."""


def read_graph(core: Any, context: ModelContext, path: Path, plan: CompilePlan) -> Any:
    """Return the openvino.Model of a file, with the shapes that the configuration asks for.

    Raises InferError: INTERNAL for what cannot be read, INVALID_ARG for a batch size that is built in.
    """
    opening = f"model '{context.name}' version {context.version}:"
    try:
        if plan.extension:
            core.add_extension(plan.extension)
        model = core.read_model(path)
    except RuntimeError as error:
        raise internal(f"{opening} {path} cannot be read: {ov_message(error)}{_remedy(path)}") from error
    _set_shapes(context, path, model, plan)
    return model


def _set_shapes(context: ModelContext, path: Path, model: Any, plan: CompilePlan) -> None:
    config = context.config
    shapes = {port: port.partial_shape for port in model.inputs}
    if plan.uses_configured_dims:
        rows = [-1] if config.max_batch_size > 0 else []
        tails = {tensor.name: list(tensor.reshape.shape or tensor.dims) for tensor in config.input}
        for port in model.inputs:
            for name in port.names.intersection(tails):
                shapes[port] = openvino.PartialShape([*rows, *tails[name]])
    if config.max_batch_size > 0:
        rows_dim = config.max_batch_size if plan.has_fixed_rows else -1
        shapes = {port: _with_rows(shape, rows_dim) for port, shape in shapes.items()}
    try:
        _reshape(model, shapes)
    except RuntimeError as error:
        raise _cannot_batch(context, path, ov_message(error)) from error
    if config.max_batch_size > 1:
        for port in model.outputs:
            shape = port.partial_shape
            if shape.rank.is_static and (len(shape) == 0 or (shape[0].is_static and not plan.has_fixed_rows)):
                raise _cannot_batch(context, path, f"output '{_label(port)}' then has the shape {shape}")


def make_batching(model: Any) -> bool:
    """Make the first dimension of all inputs free if that of all outputs then is; return whether it is.

    Only for inputs with one row in the file. An input of shape [1] alone is rather a setting than a row.
    """
    original = {port: port.partial_shape for port in model.inputs}
    for shape in original.values():
        if shape.rank.is_dynamic or len(shape) == 0:
            return False
        if shape[0].is_static and (shape[0].get_length() != 1 or len(shape) == 1):
            return False
    try:
        _reshape(model, {port: _with_rows(shape, -1) for port, shape in original.items()})
        shapes = [port.partial_shape for port in model.outputs]
        if all(shape.rank.is_static and len(shape) > 0 and shape[0].is_dynamic for shape in shapes):
            return True
        _reshape(model, original)
    except RuntimeError:
        # The graph has no shapes for more rows; the model keeps its own.
        return False
    return False


def compile_graph(core: Any, context: ModelContext, path: Path, model: Any, plan: CompilePlan) -> Any:
    """Return the openvino.CompiledModel. Raises InferError: INVALID_ARG for a device, INTERNAL for the rest."""
    opening = f"model '{context.name}' version {context.version}:"
    devices = core.available_devices
    # A name may have a prefix (AUTO:, HETERO:) or a number (GPU.1).
    wanted = re.split(r"[:.(]", plan.device)[0]
    if wanted not in {"AUTO", "HETERO", "MULTI", "BATCH", *(device.split(".")[0] for device in devices)}:
        raise invalid_argument(
            f"{opening} parameter 'TARGET_DEVICE' is '{plan.device}', but the devices here are {', '.join(devices)}"
        )
    try:
        return core.compile_model(model, plan.device, dict(plan.properties))
    except RuntimeError as error:
        raise internal(
            f"{opening} {path} cannot be compiled for {plan.device}: {ov_message(error)}. The properties are "
            f"{', '.join(f'{name}={value}' for name, value in plan.properties.items())}"
        ) from error


def ov_message(error: Exception) -> str:
    """Return the text of an exception of OpenVINO in one line, without places in its source code."""
    lines = _PLACES.sub("", str(error)).splitlines()
    return " ".join(line.strip() for line in lines if line.strip()) or "OpenVINO gives no reason"


def _with_rows(shape: Any, rows: int) -> Any:
    if shape.rank.is_dynamic or len(shape) == 0:
        return shape
    changed = openvino.PartialShape(shape)
    changed[0] = openvino.Dimension(rows)
    return changed


def _reshape(model: Any, shapes: dict[Any, Any]) -> None:
    if any(port.partial_shape != shape for port, shape in shapes.items()):
        model.reshape(shapes)


def _cannot_batch(context: ModelContext, path: Path, reason: str) -> InferError:
    rows = context.config.max_batch_size
    return invalid_argument(
        f"model '{context.name}' version {context.version}: the inputs of {path} cannot have the configured shapes "
        f"with max_batch_size: {rows}: {reason}. If the model has its batch size built in, "
        "set max_batch_size: 0, or export it with a free first dimension"
    )


def _label(port: Any) -> str:
    return str(port.any_name if port.names else port.node.friendly_name)


def _remedy(path: Path) -> str:
    if path.suffix != ".xml":
        return ". Known formats are IR (.xml), ONNX (.onnx) and TFLite (.tflite); is the file complete?"
    weights = path.with_suffix(".bin")
    if not weights.exists():
        return f". Put the weights of the model, {weights.name}, next to it"
    return f". Copy {path.name} and {weights.name} again, both from one export"
