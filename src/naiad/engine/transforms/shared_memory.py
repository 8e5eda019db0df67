"""Shared-memory I/O: inputs and outputs in shared memory, and outputs as classes.

Such a request is prepared before it is submitted, and its responses pass through here on their way to the frontend.
All code here runs on the event loop. Schedulers and instances see an ordinary request; if the model takes tensors of
devices, those in CUDA shared memory remain there: see `naiad.core.device_tensor`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import DataType
from naiad.core.device_tensor import DevicePlace, DeviceTensor, in_host_memory
from naiad.core.errors import InferError, excerpt, wrong_request
from naiad.core.request import InferRequest, SharedMemoryRegion
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.tensor import Buffer, TensorSpec
from naiad.engine.regions.posix_memory import SystemRegion
from naiad.engine.regions.regions import Region, SharedMemory
from naiad.engine.transforms.classification import class_shape, classify
from naiad.engine.transforms.device_headers import DeviceHeaders

_MEMO = "classes"
_MEMO_LIMIT = 64
"""Limit of the cached selections of classified outputs per response header."""

_Place = tuple[Region, SharedMemoryRegion]


class ModelFacts(Protocol):
    """The facts of a model that are needed here."""

    @property
    def config(self) -> ModelConfig:
        """The complete configuration."""

    @property
    def labels(self) -> Mapping[str, Sequence[str]]:
        """Output name to class labels."""

    @property
    def takes_device_tensors(self) -> bool:
        """Whether requests and responses may have a `DeviceTensor` in place of a buffer."""


class SharedMemoryTensors:
    """Stands between one request and its frontend."""

    __slots__ = ("_classes", "_has_device_inputs", "_inputs", "_memory", "_model", "_outputs", "_regions", "on_next")

    def __init__(
        self, request: InferRequest, model: ModelFacts, memory: SharedMemory, device_headers: DeviceHeaders
    ) -> None:
        """Read the inputs of a request and intercept its responses. Raises InferError, without holding any region."""
        self._model = model
        self._memory = memory
        self.on_next: Callable[[InferRequest, InferResponse], object] = request.on_response
        """Takes the responses next; the tracer looks for the trace of the request behind it."""
        self._regions: list[Region] = []
        self._inputs: list[_Place] = []
        self._outputs: dict[str, _Place] = {}
        self._classes = {o.name: o.classification for o in request.header.outputs if o.classification}
        self._has_device_inputs = False
        try:
            if request.header.shared_memory:
                request.data = self._read_inputs(request)
            staying = self._find_outputs(request)
        except InferError:
            self.release()
            raise
        request.on_response = self.on_response
        if staying or self._has_device_inputs:
            request.header = device_headers.find(request.header, staying)

    def release(self) -> None:
        """Release all regions: the request has ended, or was not submitted."""
        regions, self._regions = self._regions, []
        self._memory.release(regions)

    def on_response(self, request: InferRequest, response: InferResponse) -> None:
        """Process a response of the request and pass it on."""
        if response.error is None and not response.empty_final:
            try:
                response = self._transform(request, response)
            except InferError as error:
                header = ResponseHeader(response.header.model_name, response.header.model_version, ())
                # Its traceback would lead to this frame and back: a reference cycle that keeps regions mapped.
                response = InferResponse(header, error=error.with_traceback(None), final=response.final)
        if response.final:
            self.release()
        self.on_next(request, response)

    # --- before -----------------------------------------------------------------------------------------------------

    def _acquire(self, part: SharedMemoryRegion) -> Region:
        region = self._memory.acquire(part)
        self._regions.append(region)
        return region

    def _read_inputs(self, request: InferRequest) -> list[Buffer]:
        data = list(request.data)
        for position, spec in enumerate(request.header.inputs):
            part = request.header.shared_memory.get(spec.name)
            if part is None:
                continue
            region = self._acquire(part)
            self._inputs.append((region, part))
            tensor = self._on_device(region, part, spec)
            if tensor is not None:
                data[position] = tensor.as_buffer()
                self._has_device_inputs = True
                continue
            content = region.read(part.offset, part.byte_size)
            # Strings are parsed twice, at admission and by the backend, so they must not change in between.
            data[position] = bytes(content) if spec.datatype is DataType.BYTES else content
        return data

    def _on_device(self, region: Region, part: SharedMemoryRegion, spec: TensorSpec) -> DeviceTensor | None:
        """Return an input as a tensor of its GPU if the model can read it there."""
        if isinstance(region, SystemRegion) or not self._model.takes_device_tensors:
            return None
        # Of another size it is refused at admission, as every input.
        is_whole = spec.datatype is not DataType.BYTES and spec.byte_size == part.byte_size
        return region.tensor(part.offset, spec) if is_whole else None

    def _find_outputs(self, request: InferRequest) -> frozenset[str]:
        """Note where outputs go; return the names of those that may remain on their GPU until they are there."""
        destinations: dict[str, memoryview | DevicePlace] = {}
        places: dict[str, memoryview | DevicePlace] = {}
        for output in request.header.outputs:
            part = output.shared_memory
            if part is None:
                continue
            region = self._acquire(part)
            self._outputs[output.name] = (region, part)
            if not isinstance(region, SystemRegion):
                if self._model.takes_device_tensors and not output.classification:
                    places[output.name] = region.place(part.offset, part.byte_size)
            # The model may still read this memory: the output is copied afterwards instead.
            elif not any(_overlap((region, part), other) for other in self._inputs):
                destinations[output.name] = region.view(part.offset, part.byte_size)
        # With a tensor on a device the instance writes there alone.
        request.destinations = (places if places or self._has_device_inputs else destinations) or None
        return frozenset(places)

    # --- after ------------------------------------------------------------------------------------------------------

    def _transform(self, request: InferRequest, response: InferResponse) -> InferResponse:
        specs = response.header.outputs
        data: list[Buffer] = []
        for spec, content in zip(specs, response.data, strict=True):
            if spec.name in self._outputs:
                self._write(spec, content)
                data.append(b"")
            elif spec.name in self._classes:
                data.append(self._classify(spec, content))
            else:
                data.append(self._own(content))
        for region in self._regions:
            region.check_intact()
        header = self._class_header(request, response.header) if self._classes else response.header
        return InferResponse(header, data, parameters=response.parameters, final=response.final)

    def _write(self, spec: TensorSpec, content: Buffer) -> None:
        """Copy an output to its place; the instance has already written an output without content."""
        region, part = self._outputs[spec.name]
        size = len(content)
        if size > part.byte_size:
            raise wrong_request(
                f"shared memory size specified with the request for output '{excerpt(spec.name)}' "
                f"({part.byte_size} bytes) "
                f"should be at least {size} bytes to hold the results"
            )
        if not size:
            return
        if isinstance(region, SystemRegion):
            # numpy releases the GIL while it copies.
            target = np.frombuffer(region.view(part.offset, size), np.uint8)
            target[:] = np.frombuffer(in_host_memory(content), np.uint8)
        else:
            region.write(part.offset, in_host_memory(content))

    def _classify(self, spec: TensorSpec, content: Buffer) -> bytes:
        is_batching = self._model.config.max_batch_size > 0
        labels = self._model.labels.get(spec.name, ())
        return classify(spec, content, self._classes[spec.name], labels, is_batching=is_batching)

    def _class_header(self, request: InferRequest, header: ResponseHeader) -> ResponseHeader:
        """Return the header with the requested classes."""
        key = (_MEMO, request.header.outputs)
        found = header.memo.get(key)
        if isinstance(found, ResponseHeader):
            return found
        is_batching = self._model.config.max_batch_size > 0
        specs = [
            TensorSpec(s.name, DataType.BYTES, class_shape(s.shape, self._classes[s.name], is_batching=is_batching))
            if s.name in self._classes
            else s
            for s in header.outputs
        ]
        made = ResponseHeader(header.model_name, header.model_version, specs)
        if len(header.memo) < _MEMO_LIMIT:
            header.memo[key] = made
        return made

    def _own(self, content: Buffer) -> Buffer:
        """Return an output to send: a copy if it is one of the inputs, which the client may change meanwhile."""
        if not isinstance(content, memoryview) or not content.nbytes:
            return content
        sent = np.frombuffer(content, np.uint8)
        for region, part in self._inputs:
            if isinstance(region, SystemRegion):
                shared = np.frombuffer(region.view(part.offset, part.byte_size), np.uint8)
                if np.may_share_memory(sent, shared):
                    return bytes(content)
        return content


def _overlap(place: _Place, other: _Place) -> bool:
    """Return whether two places are in the same file and overlap."""
    (region, part), (other_region, other_part) = place, other
    if not isinstance(region, SystemRegion) or not isinstance(other_region, SystemRegion):
        return False
    start, other_start = region.offset + part.offset, other_region.offset + other_part.offset
    return (
        region.file == other_region.file
        and start < other_start + other_part.byte_size
        and other_start < start + part.byte_size
    )
