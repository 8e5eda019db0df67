"""An engine on one GPU: reading the file, and what the engine says of its tensors and profiles."""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorrt

from naiad.backend.api import ModelContext
from naiad.backend.framework import ModelFile, find_model_file
from naiad.backend.signature import ModelSignature, TensorSignature
from naiad.backend.tensorrt.library import VERSION, Messages, TensorRtOptions, load_plugins
from naiad.backend.tensorrt.profiles import OptimizationProfile, ProfileShapes
from naiad.config.backends import filenames_of
from naiad.core.datatype import DataType
from naiad.core.errors import InferError
from naiad.core.tensor import Shape

DATATYPES: Mapping[str, DataType] = {
    "BOOL": DataType.BOOL,
    "UINT8": DataType.UINT8,
    "INT8": DataType.INT8,
    "INT32": DataType.INT32,
    "INT64": DataType.INT64,
    "HALF": DataType.FP16,
    "BF16": DataType.BF16,
    "FLOAT": DataType.FP32,
}
"""Name of a type in TensorRT to datatype."""
_REBUILD = (
    f"build it again with TensorRT {VERSION} on this kind of GPU (trtexec --onnx=model.onnx --saveEngine=model.plan)"
)


class TensorRtEngine(ModelFile):
    """A deserialised engine. Its memory is that of the GPU that was the current one."""

    def __init__(self, context: ModelContext, options: TensorRtOptions, messages: Messages) -> None:
        """Read the file. Raises InferError(INVALID_ARG)."""
        super().__init__(context, find_model_file(context, filenames_of("tensorrt")))
        self._messages = messages
        load_plugins(messages, options.plugins)
        self.native: Any = self._deserialize(options)
        self.inputs, self.outputs = self._names()
        self.host_tensors = frozenset(
            name
            for name in (*self.inputs, *self.outputs)
            if self.native.get_tensor_location(name) == tensorrt.TensorLocation.HOST
        )
        """Tensors whose values are in host memory: TensorRT computes shapes from them."""
        self._check_layouts()
        self.profiles = [self._profile(index) for index in range(self.native.num_optimization_profiles)]

    @property
    def signature(self) -> ModelSignature:
        """The tensors by name."""
        return ModelSignature(
            "TensorRT",
            {name: self._tensor(name) for name in self.inputs},
            {name: self._tensor(name) for name in self.outputs},
        )

    def create_context(self, strategy: str) -> Any:
        """Return an execution context. Raises InferError(INVALID_ARG) if the GPU's memory is not enough."""
        context = self.native.create_execution_context(getattr(tensorrt.ExecutionContextAllocationStrategy, strategy))
        if context is None:
            raise self.error(
                f"allows no further execution context: {self._messages.take()}; use fewer instances, or "
                "execution_context_allocation_strategy ON_PROFILE_CHANGE"
            )
        return context

    def _deserialize(self, options: TensorRtOptions) -> Any:
        content = self.path.read_bytes()
        if not content:
            raise self.error("is empty; copy it again")
        runtime = tensorrt.Runtime(self._messages)
        runtime.engine_host_code_allowed = options.is_version_compatible
        engine = runtime.deserialize_cuda_engine(content)
        if engine is None:
            raise self._not_readable(self._messages.take(), options)
        if getattr(engine, "has_implicit_batch_dimension", False):
            raise self.error(
                "has an implicit batch dimension, which TensorRT 10 has removed; build it from a network with "
                "explicit batch: export the model to ONNX with a free first dimension"
            )
        # The engine uses it, but does not keep it alive in all releases.
        self._runtime = runtime
        return engine

    def _not_readable(self, reason: str, options: TensorRtOptions) -> InferError:
        text = f"cannot be read by TensorRT {VERSION}: {reason}; "
        if "host code" in reason.lower() and not options.is_version_compatible:
            return self.error(
                f"{text}it is version-compatible, that is, contains a runtime as code; if the file is trusted, start "
                "the server with --backend-config=tensorrt,version-compatible=true"
            )
        if "magictag" in reason.lower().replace(" ", ""):
            return self.error(f"{text}it is no engine, is truncated, or is of another major version; {_REBUILD}")
        return self.error(
            f"{text}{_REBUILD}; an engine serves several versions if it was built with --versionCompatible and the "
            "server has --backend-config=tensorrt,version-compatible=true"
        )

    def _names(self) -> tuple[Sequence[str], Sequence[str]]:
        names = [self.native.get_tensor_name(index) for index in range(self.native.num_io_tensors)]
        modes = {name: self.native.get_tensor_mode(name) for name in names}
        inputs = [name for name in names if modes[name] == tensorrt.TensorIOMode.INPUT]
        return inputs, [name for name in names if name not in inputs]

    def _check_layouts(self) -> None:
        for name in (*self.inputs, *self.outputs):
            layout = self.native.get_tensor_format(name)
            if layout != tensorrt.TensorFormat.LINEAR:
                raise self.error(
                    f"has tensor '{name}' in the format {layout.name}; build it with linear inputs and outputs "
                    "(trtexec --inputIOFormats=fp32:chw --outputIOFormats=fp32:chw)"
                )

    def _profile(self, index: int) -> OptimizationProfile:
        ranges: dict[str, ProfileShapes] = {}
        for name in self.inputs:
            shape = self._shape(name)
            low = high = shape
            if -1 in shape:
                low, _, high = (tuple(dims) for dims in self.native.get_tensor_profile_shape(name, index))
            ranges[name] = ProfileShapes(low, high)
        return OptimizationProfile(index, ranges)

    def _shape(self, name: str) -> Shape:
        return tuple(self.native.get_tensor_shape(name))

    def _tensor(self, name: str) -> TensorSignature:
        kind = self.native.get_tensor_dtype(name).name
        dims = tuple(None if size < 0 else size for size in self._shape(name))
        return TensorSignature(name, DATATYPES.get(kind), dims, kind)
