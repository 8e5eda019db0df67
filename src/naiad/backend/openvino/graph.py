"""The graph of an OpenVINO model: read from its file, with the first dimension made the batch's; its signature."""

import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import openvino

from naiad.backend.api import ModelContext
from naiad.backend.framework import ModelFile, find_model_file
from naiad.backend.openvino.compile_options import plan_compilation
from naiad.backend.signature import ModelSignature, TensorSignature
from naiad.config.execution_tensors import execution_config
from naiad.core.datatype import DataType
from naiad.core.errors import InferError, internal, invalid_argument

_log = logging.getLogger(__name__)
_FILENAMES = ("model.xml", "model.onnx", "model.tflite")
DATATYPES: Mapping[str, DataType] = {
    "boolean": DataType.BOOL,
    "u8": DataType.UINT8,
    "u16": DataType.UINT16,
    "u32": DataType.UINT32,
    "u64": DataType.UINT64,
    "i8": DataType.INT8,
    "i16": DataType.INT16,
    "i32": DataType.INT32,
    "i64": DataType.INT64,
    "f16": DataType.FP16,
    "bf16": DataType.BF16,
    "f32": DataType.FP32,
    "f64": DataType.FP64,
    "string": DataType.BYTES,
}
"""Name of an element type in OpenVINO to datatype."""
_PLACES = re.compile(r"^(Exception from .*|Check .* failed( at .*)?|FrontEnd API failed with .*)$", re.MULTILINE)
"""Lines of an error that name OpenVINO's source code."""


class Graph(ModelFile):
    """The openvino.Model of a model version, with the shapes that the configuration asks for."""

    def __init__(self, core: Any, context: ModelContext) -> None:
        """Read the file. Raises InferError: INTERNAL if that fails, INVALID_ARG for a batch size that is built in."""
        super().__init__(context, find_model_file(context, _FILENAMES))
        self.plan = plan_compilation(context)
        self._core = core
        self._config = context.config
        try:
            self._add_extension(context)
            self.model = core.read_model(self.path)
        except RuntimeError as error:
            raise self.error(f"cannot be read: {ov_message(error)}{_remedy(self.path)}", internal) from error
        self._set_shapes()

    def _add_extension(self, context: ModelContext) -> None:
        """Load the library with custom operators; a relative name is one in the model's directory."""
        if not self.plan.extension:
            return
        path = context.model_dir / self.plan.extension
        try:
            self._core.add_extension(str(path))
        except RuntimeError as error:
            _log.error("%s extension %s cannot be loaded: %s", self.opening, path, error)
            raise invalid_argument(
                f"{self.opening} parameter 'CPU_EXTENSION_PATH': {path} cannot be loaded; the log of the server has "
                "the reason"
            ) from error

    def signature(self) -> ModelSignature:
        """Return the inputs and outputs.

        A tensor may have several names; it is known by the one in the configuration. With fixed rows the first
        dimensions count as free, since the instance fills batches up.
        """
        return ModelSignature("OpenVINO", self._tensors(self.model.inputs), self._tensors(self.model.outputs))

    def compile(self) -> Any:
        """Return the openvino.CompiledModel. Raises InferError: INVALID_ARG for a device, INTERNAL for the rest."""
        plan = self.plan
        devices = self._core.available_devices
        # A name may have a prefix (AUTO:, HETERO:) or a number (GPU.1).
        wanted = re.split(r"[:.(]", plan.device)[0]
        if wanted not in {"AUTO", "HETERO", "MULTI", "BATCH", *(device.split(".")[0] for device in devices)}:
            raise invalid_argument(
                f"{self.opening} parameter 'TARGET_DEVICE' is '{plan.device}', but the devices here are "
                f"{', '.join(devices)}"
            )
        try:
            return self._core.compile_model(self.model, plan.device, dict(plan.properties))
        except RuntimeError as error:
            properties = ", ".join(f"{name}={value}" for name, value in plan.properties.items())
            raise self.error(
                f"cannot be compiled for {plan.device}: {ov_message(error)}. The properties are {properties}",
                internal,
            ) from error

    def _set_shapes(self) -> None:
        model, plan, config = self.model, self.plan, self._config
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
            raise self._cannot_batch(ov_message(error)) from error
        if config.max_batch_size > 1:
            for port in model.outputs:
                shape = port.partial_shape
                if shape.rank.is_static and (len(shape) == 0 or (shape[0].is_static and not plan.has_fixed_rows)):
                    raise self._cannot_batch(f"output '{_label(port)}' then has the shape {shape}")

    def _cannot_batch(self, reason: str) -> InferError:
        return invalid_argument(
            f"{self.opening} the inputs of {self.path} cannot have the configured shapes with max_batch_size: "
            f"{self._config.max_batch_size}: {reason}. If the model has its batch size built in, set max_batch_size: "
            "0, or export it with a free first dimension"
        )

    def _tensors(self, ports: Sequence[Any]) -> dict[str, TensorSignature]:
        config = execution_config(self._config)
        configured = {tensor.name for tensors in (config.input, config.output) for tensor in tensors}
        tensors: dict[str, TensorSignature] = {}
        for port in ports:
            known = sorted(port.names.intersection(configured))
            name = known[0] if known else _label(port)
            dims = _dims(port.partial_shape)
            if self.plan.has_fixed_rows and dims:
                dims = (None, *dims[1:])
            type_name = port.element_type.get_type_name()
            tensors[name] = TensorSignature(name, DATATYPES.get(type_name), dims, type_name)
        return tensors


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


def _label(port: Any) -> str:
    # A Result is known by the operator that it is the result of.
    source = port.node.input_value(0).node if port.node.type_info.name == "Result" else port.node
    return str(port.any_name if port.names else source.friendly_name)


def _dims(shape: Any) -> tuple[int | None, ...] | None:
    if shape.rank.is_dynamic:
        return None
    return tuple(dim.get_length() if dim.is_static else None for dim in shape)


def _remedy(path: Path) -> str:
    if path.suffix != ".xml":
        return ". Known formats are IR (.xml), ONNX (.onnx) and TFLite (.tflite); is the file complete?"
    weights = path.with_suffix(".bin")
    if not weights.exists():
        return f". Put the weights of the model, {weights.name}, next to it"
    return f". Copy {path.name} and {weights.name} again, both from one export"
