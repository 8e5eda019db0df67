"""Instances of engines: an execution context, a stream and buffers each, on one GPU."""

import contextlib
import logging
import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np

from naiad.backend.api import InstanceSpec, ModelContext
from naiad.backend.cuda.cuda import CudaError, CudaRuntime
from naiad.backend.cuda.dlpack import address_of
from naiad.backend.framework import Scalars
from naiad.backend.tensor_instance import TensorInstance
from naiad.backend.tensorrt.buffers import Blocks, Buffers, DeviceArray
from naiad.backend.tensorrt.engine_file import DATATYPES, TensorRtEngine
from naiad.backend.tensorrt.library import Messages, TensorRtOptions
from naiad.backend.tensorrt.profiles import OptimizationProfile, choose_profile, no_profile
from naiad.core.errors import InferError, internal, unavailable, unsupported
from naiad.core.tensor import Array, Shape

_log = logging.getLogger(__name__)

_CUDA = 2
"""kDLCUDA, the kind of the devices."""


class TensorRtInstance(TensorInstance):
    """Runs batches with an execution context of its own."""

    def __init__(
        self,
        context: ModelContext,
        spec: InstanceSpec,
        engine: TensorRtEngine,
        profiles: Sequence[OptimizationProfile],
        options: TensorRtOptions,
        tools: "Tools",
    ) -> None:
        """`profiles` are those that the instance may use, the smallest first. Raises InferError."""
        super().__init__(context, None if tools.scalars.has_inputs else (_CUDA, spec.device_id))
        self.executable = engine
        self._blocks: dict[str, Blocks] = {}
        """Memory of outputs that stay on the GPU."""
        self._name = spec.name
        self._device_id = spec.device_id
        self._profiles = profiles
        self._tools = tools
        self._datatypes = {
            name: datatype
            for name in (*engine.inputs, *engine.outputs)
            if (datatype := DATATYPES.get(engine.native.get_tensor_dtype(name).name)) is not None
        }
        """Without outputs of other types, which the configuration does not have."""
        self._stream = 0
        self._buffers: Buffers | None = None
        self._profile: OptimizationProfile | None = None
        runtime = tools.runtime
        with self._on_device("cannot be created"):
            self._context: Any = engine.create_context(options.allocation_strategy)
            try:
                self._stream = runtime.create_stream()
                self._buffers = Buffers(runtime, self._byte_sizes(), engine.host_tensors)
            except Exception:
                self.close()
                raise

    def close(self) -> None:
        """Release context, stream and buffers."""
        super().close()
        runtime = self._tools.runtime
        buffers, self._buffers = self._buffers, None
        stream, self._stream = self._stream, 0
        try:
            runtime.set_device(self._device_id)
            self._context = self._profile = None
            if buffers is not None:
                buffers.close()
            for blocks in self._blocks.values():
                blocks.close()
            if stream:
                runtime.destroy_stream(stream)
        except CudaError as error:
            _log.warning("instance '%s' on GPU %d: memory is not released: %s", self._name, self._device_id, error)

    def run(self, inputs: dict[str, Array], output_names: Sequence[str]) -> Sequence[Array]:
        """Run the engine; see `TensorInstance.run`."""
        return self.run_on_device(inputs, output_names, frozenset())

    def run_on_device(self, inputs: dict[str, Any], output_names: Sequence[str], staying: Set[str]) -> Sequence[Any]:
        """Run the engine with tensors on its GPU; see `TensorInstance.run_on_device`."""
        self._tools.scalars.to_model(inputs)
        shapes = {name: tuple(array.shape) for name, array in inputs.items()}
        profile = choose_profile(self._profiles, shapes)
        if profile is None:
            opening = f"model '{self._model_name}':"
            raise no_profile(opening, shapes, self._profiles, self.executable.profiles)
        with self._on_device("failed"):
            try:
                with self._tools.turn:
                    found = self._launch(profile, inputs, output_names, staying)
            finally:
                # Also after a failure: the next run must not overwrite what is still copied.
                self._tools.runtime.wait_for(self._stream)
            return [each if isinstance(each, DeviceArray) else self._take(name, each) for name, each in found.items()]

    @staticmethod
    def to_host(tensor: Any) -> Array:
        """Return an output as an array; see `TensorInstance.to_host`."""
        try:
            array: Array = tensor.to_host()
        except CudaError as error:
            raise BufferError(f"a tensor on DLPack device {tensor.__dlpack_device__()}: {error}") from error
        return array

    def _launch(
        self, profile: OptimizationProfile, inputs: Mapping[str, Any], output_names: Sequence[str], staying: Set[str]
    ) -> dict[str, Shape | DeviceArray]:
        """Put a run into the stream, and return its outputs that stay on the GPU, and the shapes of other ones."""
        buffers = self._opened().by_name
        self._use(profile)
        for name, array in inputs.items():
            shape = tuple(array.shape)
            self._check(self._context.set_input_shape(name, shape), f"input '{name}' of shape {shape}")
            if isinstance(array, np.ndarray):
                buffers[name].send(array, self._stream)
            else:
                buffers[name].receive(
                    address_of(array, stream=self._stream), self._byte_size(name, shape), self._stream
                )
        shapes = {name: self._output_shape(name) for name in output_names}
        self._check(self._context.execute_async_v3(self._stream), "the execution")
        found: dict[str, Shape | DeviceArray] = {}
        for name, shape in shapes.items():
            size = self._byte_size(name, shape)
            if name in staying and shape and buffers[name].is_on_device:
                found[name] = array = self._device_array(name, shape)
                buffers[name].leave(array.address, size, self._stream)
            else:
                found[name] = shape
                buffers[name].fetch(size, self._stream)
        return found

    def _device_array(self, name: str, shape: Shape) -> DeviceArray:
        blocks = self._blocks.get(name)
        if blocks is None:
            size = self._opened().by_name[name].byte_size
            blocks = self._blocks[name] = Blocks(self._tools.runtime, size)
        return DeviceArray(blocks, shape, self._datatypes[name], (_CUDA, self._device_id))

    def _take(self, name: str, shape: Shape) -> Array:
        datatype = self._datatypes[name]
        array = self._opened().by_name[name].take(shape, datatype.numpy, self._byte_size(name, shape))
        return self._tools.scalars.to_client(name, array)

    def _use(self, profile: OptimizationProfile) -> None:
        if profile is self._profile:
            return
        # Shapes and addresses belong to a profile.
        self._check(
            self._context.set_optimization_profile_async(profile.index, self._stream), f"profile {profile.index}"
        )
        self._profile = profile
        if self._buffers is not None:
            for name, buffer in self._buffers.by_name.items():
                self._check(self._context.set_tensor_address(name, buffer.address), f"the buffer of '{name}'")

    def _byte_sizes(self) -> dict[str, int]:
        """Return the largest size of each tensor in any profile of the instance."""
        sizes: dict[str, int] = {}
        for profile in self._profiles:
            self._use(profile)
            for name, each in profile.ranges.items():
                self._check(self._context.set_input_shape(name, each.maximum), f"input '{name}'")
                sizes[name] = max(sizes.get(name, 0), self._byte_size(name, each.maximum))
            for name in self.executable.outputs:
                size = self._context.get_max_output_size(name)
                self._check(size >= 0, f"the largest size of output '{name}'")
                sizes[name] = max(sizes.get(name, 0), size)
        # Its buffers were not there yet.
        self._profile = None
        return sizes

    def _output_shape(self, name: str) -> Shape:
        shape = tuple(self._context.get_tensor_shape(name))
        if -1 in shape:
            raise unsupported(
                f"model '{self._model_name}': the shape of output '{name}' depends on the values of the inputs; "
                "export the model so that it fills the output up to a fixed size, with the count as another output"
            )
        return shape

    def _byte_size(self, name: str, shape: Shape) -> int:
        return math.prod(shape) * self._datatypes[name].item_bytes

    def _opened(self) -> Buffers:
        if self._buffers is None:
            raise unavailable(f"instance '{self._name}' of model '{self._model_name}' is closed")
        return self._buffers

    def _check(self, is_done: bool, what: str) -> None:
        if not is_done:
            raise internal(
                f"TensorRT refuses {what} in instance '{self._name}' of model '{self._model_name}': "
                f"{self._tools.messages.take()}"
            )

    @contextlib.contextmanager
    def _on_device(self, verb: str) -> Iterator[None]:
        """Make the instance's GPU the current one, and report failures of CUDA."""
        try:
            self._tools.runtime.set_device(self._device_id)
            yield
        except CudaError as error:
            raise self._failed(verb, error) from error

    def _failed(self, verb: str, error: CudaError) -> InferError:
        fix = ""
        if "out of memory" in str(error):
            fix = "; use fewer instances, or build the engine with smaller profiles"
        return internal(
            f"instance '{self._name}' of model '{self._model_name}' on GPU {self._device_id} {verb}: {error}{fix}"
        )


@dataclass(frozen=True, slots=True)
class Tools:
    """What the instances of a model share on one GPU."""

    runtime: CudaRuntime
    messages: Messages
    scalars: Scalars
    turn: contextlib.AbstractContextManager[Any]
    """Held while an execution begins: a lock of the GPU, or nothing."""
