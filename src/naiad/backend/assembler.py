"""Assembles batches: gathers requests into one array per input, and scatters output arrays into responses.

Independent of what runs the batch. Requests with one header take the fast path, with a plan made once per header and
batch size. Other batches are mixed: requests differ in rows, in the order of their tensors, in the outputs asked for,
or, with ragged inputs, in shape; so are batches with tensors on devices. A ragged input reaches the model as the
elements of the whole batch in one dimension. Batch inputs, tensors that the server adds, describe it, and outputs
that follow a ragged input are cut by its shapes:

    requests [1,3] [2,2]  ->  DATA [7]: a b c | d e f g   COUNT [2]: 3 4   ->  model  ->  [7]: A B C | D E F G
"""

import math
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, Protocol

import numpy as np

from naiad.backend.device_tensors import DLPackTensor, Tensor, datatype_of, device_of
from naiad.backend.tensor_layout import (
    MAX_RESPONSE_HEADERS,
    Dtype,
    HeaderLayout,
    InputSlot,
    TensorConfig,
    TensorTable,
    as_input,
    make_batch_inputs,
    shape_text,
)
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import STRING_KINDS, conversion_hint, from_numpy
from naiad.core.device_tensor import Device, DeviceTensor, in_host_memory
from naiad.core.errors import InferError, internal
from naiad.core.request import InferRequest, RequestHeader
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.tensor import Array, Buffer, Shape, TensorSpec, text_problem, to_buffer

MAX_PLANS = 512
"""Combinations of request header and batch size that an assembler remembers."""
COPY_LIMIT_BYTES = 16384
"""An output of a batch up to this size is copied into `bytes`: cheaper than views, and it releases the array."""
ALIGNMENT_BYTES = 16
"""Compiled kernels of a device rely on inputs at multiples of this."""
LARGE_INPUT_BYTES = 1 << 20
"""An input of a single request above this size is worth releasing once it has been copied."""

_join = b"".join
_ndarray = np.ndarray
_copy_out = np.ndarray.tobytes


class StagedRun(Protocol):
    """A run on fixed buffers: for tiny batches, copying in and out costs less than making arrays does."""

    inputs: Sequence[memoryview]
    """Writable, format "B": one per input, in the order in which `stage` was asked for them."""
    outputs: Sequence[Array]
    """Filled by `run`, one per output; overwritten by the next run."""

    def run(self) -> object:
        """Compute `outputs` from `inputs`. Raises what the framework raises."""


class BatchPlan:
    """What to do for a batch of `count` requests that share one header."""

    def __init__(self, layout: HeaderLayout, count: int, is_batching: bool) -> None:
        rows = (layout.rows * count,) if is_batching else ()
        self.layout = layout
        self.count = count
        self.inputs: list[tuple[str, int, Dtype | None, Shape]] = [
            (slot.name, slot.position, slot.dtype, rows + slot.tail) for slot in layout.inputs
        ]
        self.is_large = count == 1 and any(
            dtype is not None and math.prod(shape) * dtype.itemsize >= LARGE_INPUT_BYTES
            for _, _, dtype, shape in self.inputs
        )
        self.output_names = [output.name for output in layout.outputs]
        # The outputs of several requests are in one array, which has to be cut anyway.
        self.has_destinations = count == 1 and layout.has_destinations
        self.was_staged = False
        """Whether the instance has decided about `staged`."""
        self.staged: StagedRun | None = None
        self.targets: list[tuple[memoryview, int]] = []
        """With `staged`: buffer and position in `InferRequest.data` of each input."""
        # Shapes and dtypes of the last outputs, if all were arrays; equal ones need no second look.
        self.shapes: list[Shape] | None = None
        self.dtypes: list[Dtype] = []
        self.learned: tuple[list[Shape], list[Dtype]] | None = None
        """Shapes and dtypes that `header` and `columns` are for."""
        self.header = ResponseHeader("", "", ())
        self.columns: list[tuple[Callable[[Array], Buffer], list[slice] | None]] = []
        """Per output the conversion to bytes, and the part of each request; None for BYTES, cut as elements."""

    def input_specs(self) -> list[TensorSpec] | None:
        """Return the inputs of the batch; None when there is one with BYTES, which has no fixed size."""
        if any(dtype is None for _, _, dtype, _ in self.inputs):
            return None
        pairs = zip(self.layout.inputs, self.inputs, strict=True)
        return [TensorSpec(slot.name, slot.config.datatype, shape) for slot, (_, _, _, shape) in pairs]

    def unstage(self) -> None:
        """Run on arrays from now on."""
        self.staged = None
        self.shapes = None


class MixedPlan:
    """What to do for one mixed batch."""

    __slots__ = ("inputs", "is_on_device", "layouts", "output_names", "outputs", "staying")

    def __init__(
        self,
        layouts: Sequence[HeaderLayout],
        inputs: dict[str, Any],
        outputs: Sequence[TensorConfig],
        *,
        is_on_device: bool,
    ) -> None:
        self.layouts = layouts
        self.inputs = inputs
        """Arrays, and tensors on the device of the instance if the plan `is_on_device`."""
        self.outputs = outputs
        self.is_on_device = is_on_device
        self.staying: Set[str] = frozenset()
        """Names of the outputs that stay there: all requests that want them accept that."""
        if is_on_device:
            wanted = [(output.name, layout.staying) for layout in layouts for output in layout.outputs]
            self.staying = {name for name, _ in wanted} - {name for name, staying in wanted if name not in staying}
        self.output_names = [output.name for output in outputs]


class BatchAssembler:
    """Gathers and scatters the batches of one model version. Not safe for use by several threads at once.

    Applies `reshape` in both directions, leaves absent optional inputs out, returns only the outputs asked for, and
    checks outputs: datatypes, and the batch dimension of a batching model.
    """

    def __init__(
        self,
        config: ModelConfig,
        name: str,
        version: str,
        to_host: Callable[[DLPackTensor], Array],
        device: Device | None = None,
    ) -> None:
        """`config` has the inputs and outputs that are executed; `to_host` converts outputs that are no arrays.

        `device`: where the instance takes tensors, and may leave them.
        """
        self.table = TensorTable(config)
        self.plans: dict[tuple[RequestHeader, int], BatchPlan] = {}
        self._name = name
        self._version = version
        self._to_host = to_host
        self._device = device
        self._is_batching = self.table.is_batching
        self._layouts: dict[RequestHeader, HeaderLayout] = {}

    # --- requests with one header -----------------------------------------------------------------------------------

    def find_plan(self, requests: Sequence[InferRequest]) -> BatchPlan | None:
        """Return the plan for requests with one header, made if need be; None for several, ragged or device ones."""
        header = requests[0].header.layout or requests[0].header
        if self.table.is_ragged or header.is_on_device:
            return None
        count = len(requests)
        if any((request.header.layout or request.header) is not header for request in requests):
            return None
        plan = self.plans.get((header, count))
        if plan is None:
            if len(self.plans) >= MAX_PLANS:
                self.plans.clear()
            plan = self.plans[header, count] = BatchPlan(self._layout(header), count, self._is_batching)
        return plan

    def gather(self, plan: BatchPlan, requests: Sequence[InferRequest]) -> dict[str, Array]:
        """Return the inputs of a batch: views on the data of a single request where it is aligned, else copies.

        Raises InferError(INVALID_ARG) when BYTES do not hold the elements of their shape.
        """
        # hot: bench/micro_tensor_instance.py
        inputs: dict[str, Array] = {}
        single = requests[0].data if plan.count == 1 else None
        for name, position, dtype, shape in plan.inputs:
            data = _join([r.data[position] for r in requests]) if single is None else single[position]
            if dtype is None:
                inputs[name] = as_input(name, None, shape, data)
                continue
            array: Array = _ndarray(shape, dtype, data)
            # Received bodies put tensors at any offset; compiled kernels may rely on alignment.
            inputs[name] = array if array.flags.aligned else array.copy()
        return inputs

    def scatter(self, plan: BatchPlan, tensors: Sequence[Any]) -> list[InferResponse]:
        """Return one response per request from the outputs in the order of `plan.output_names`.

        Outputs are arrays or DLPack tensors. Raises InferError(INTERNAL) for outputs that do not fit.
        """
        # hot: bench/micro_tensor_instance.py
        try:
            shapes = [tensor.shape for tensor in tensors]
            dtypes = [tensor.dtype for tensor in tensors]
        except AttributeError:  # a tensor with nothing but the methods of DLPack
            shapes = dtypes = []
        if shapes != plan.shapes or dtypes != plan.dtypes:
            tensors = self.learn_outputs(plan, tensors)
        try:
            return self.split(plan, tensors)
        except UnicodeEncodeError:
            raise self._wrong_text(plan.layout.outputs, tensors) from None

    def split(self, plan: BatchPlan, arrays: Sequence[Array]) -> list[InferResponse]:
        """Return one response per request from outputs that the plan has learned."""
        # hot: bench/micro_tensor_instance.py
        header, count = plan.header, plan.count
        columns: list[Sequence[Buffer]] = []
        if count == 1:
            outputs: list[Buffer] = []
            # A loop: a comprehension costs a call.
            for (convert, _), array in zip(plan.columns, arrays, strict=True):
                outputs.append(convert(array))
            return [InferResponse(header, outputs)]
        for (convert, slices), array in zip(plan.columns, arrays, strict=True):
            if slices is None:
                rows = plan.layout.rows
                columns.append([to_buffer(array[i * rows : (i + 1) * rows]) for i in range(count)])
            else:
                data = convert(array)
                columns.append([data[part] for part in slices])
        return [InferResponse(header, data) for data in zip(*columns, strict=True)]

    def learn_outputs(self, plan: BatchPlan, tensors: Sequence[Any]) -> Sequence[Array]:
        """Check outputs, note how to cut them, and return them as arrays. Raises as `scatter`."""
        layout, count = plan.layout, plan.count
        arrays = self._on_host(layout.outputs, tensors)
        found = [array.shape for array in arrays], [array.dtype for array in arrays]
        if found != plan.learned:
            self._check_outputs(layout.outputs, arrays, layout.rows * count)
            plan.header = self._response_header(layout, found[0])
            plan.columns = [_column(array, count) for array in arrays]
            plan.learned = found
        # Tensors of other frameworks may have equal shapes and dtypes, but have to be converted each time.
        are_arrays = all(array is tensor for array, tensor in zip(arrays, tensors, strict=True))
        plan.shapes, plan.dtypes = found if are_arrays else (None, [])
        return arrays

    def _layout(self, header: RequestHeader) -> HeaderLayout:
        layout = self._layouts.get(header)
        if layout is None:
            if len(self._layouts) >= MAX_PLANS:
                self._layouts.clear()
            layout = self._layouts[header] = HeaderLayout(self.table, header)
        return layout

    def _response_header(self, layout: HeaderLayout, shapes: Sequence[Shape]) -> ResponseHeader:
        """Return the header for one request of this layout, given the shapes of the whole batch's outputs."""
        key = tuple(shape[1:] for shape in shapes) if self._is_batching else tuple(shapes)
        header = layout.response_headers.get(key)
        if header is None:
            if len(layout.response_headers) >= MAX_RESPONSE_HEADERS:
                layout.response_headers.clear()
            rows = (layout.rows,) if self._is_batching else ()
            specs = [
                TensorSpec(output.name, output.datatype, rows + self._client_tail(output, tail))
                for output, tail in zip(layout.outputs, key, strict=True)
            ]
            header = layout.response_headers[key] = ResponseHeader(self._name, self._version, specs)
        return header

    def _client_tail(self, output: TensorConfig, tail: Shape) -> Shape:
        shape = output.to_client(tail)
        if shape is None:
            raise internal(
                f"model '{self._name}' returned output '{output.name}' with {len(tail)} dimensions, but its "
                f"'reshape' in the model configuration has {len(output.model_dims)}"
            )
        return shape

    # --- mixed batches ----------------------------------------------------------------------------------------------

    def gather_mixed(self, requests: Sequence[InferRequest]) -> MixedPlan | None:
        """Return plan and inputs of a mixed batch, batch inputs included.

        None when shapes differ where nothing is ragged: states of sequences do, where the requests do not.
        Raises InferError(INTERNAL) for several requests to a model that does not batch.
        """
        if not self._is_batching and len(requests) > 1:
            raise internal(f"model '{self._name}' does not batch but was given {len(requests)} requests at once")
        layouts = [self._layout(request.header.layout or request.header) for request in requests]
        if any(layout.tails != layouts[0].tails for layout in layouts):
            return None
        rows = (sum([layout.rows for layout in layouts]),) if self._is_batching else ()
        is_on_device = True in [layout.is_on_device for layout in layouts]
        inputs: dict[str, Any] = {}
        for index, slot in enumerate(layouts[0].inputs):
            parts = [r.data[layout.inputs[index].position] for r, layout in zip(requests, layouts, strict=True)]
            if slot.config.is_ragged:
                shape: Shape = (sum(math.prod(layout.input_shapes[slot.name]) for layout in layouts),)
            else:
                shape = rows + slot.tail
            if is_on_device:
                inputs[slot.name] = self._input(slot, shape, parts)
                continue
            inputs[slot.name] = as_input(slot.name, slot.dtype, shape, parts[0] if len(parts) == 1 else _join(parts))
        inputs |= make_batch_inputs(self.table.batch_inputs, layouts)
        wanted = {output.name for layout in layouts for output in layout.outputs}
        outputs = [output for output in self.table.outputs if output.name in wanted]
        return MixedPlan(layouts, inputs, outputs, is_on_device=is_on_device and self._device is not None)

    def _input(self, slot: InputSlot, shape: Shape, parts: Sequence[Buffer | DeviceTensor]) -> Tensor:
        """Return an input: the tensor itself if it is on the device of the instance and alone, else an array."""
        if len(parts) > 1:
            return as_input(slot.name, slot.dtype, shape, _join([in_host_memory(part) for part in parts]))
        part = parts[0]
        if isinstance(part, DeviceTensor) and part.device == self._device and part.shape == shape:
            tensor: DLPackTensor = part.tensor
            return tensor
        return as_input(slot.name, slot.dtype, shape, in_host_memory(part))

    def scatter_mixed(self, plan: MixedPlan, tensors: Sequence[Any]) -> list[InferResponse]:
        """Return one response per request, as `scatter` does."""
        layouts = plan.layouts
        arrays = self._on_host(plan.outputs, tensors, plan.staying, layouts)
        self._check_outputs(plan.outputs, arrays, sum(layout.rows for layout in layouts))
        parts = {
            output.name: self._cut(output, array, layouts) for output, array in zip(plan.outputs, arrays, strict=True)
        }
        try:
            return self._mixed_responses(plan, parts)
        except UnicodeEncodeError:
            raise self._wrong_text(plan.outputs, arrays) from None

    def _mixed_responses(self, plan: MixedPlan, parts: Mapping[str, Sequence[Any]]) -> list[InferResponse]:
        responses: list[InferResponse] = []
        for index, layout in enumerate(plan.layouts):
            own = [parts[output.name][index] for output in layout.outputs]
            if plan.is_on_device:
                header = self._response_header(layout, [tuple(part.shape) for part in own])
                pairs = zip(layout.outputs, own, strict=True)
                responses.append(InferResponse(header, [self._to_data(output, part) for output, part in pairs]))
                continue
            header = self._response_header(layout, [part.shape for part in own])
            responses.append(InferResponse(header, [to_buffer(part) for part in own]))
        return responses

    def _to_data(self, output: TensorConfig, part: Any) -> Buffer:
        device = None if isinstance(part, _ndarray) else device_of(part)
        if device is None:
            return to_buffer(part)
        shape = tuple(part.shape)
        return DeviceTensor(
            part,
            device=device,
            shape=shape,
            byte_size=math.prod(shape) * output.datatype.item_bytes,
            copy=lambda: to_buffer(self._to_array(output, part)),
        ).as_buffer()

    def _cut(self, output: TensorConfig, array: Array, layouts: Sequence[HeaderLayout]) -> list[Array]:
        """Return the part of an output of each request: by rows, or by the shapes of its source input."""
        if output.scatter_source:
            return self._cut_by_source(output, array, layouts)
        if not self._is_batching or len(layouts) == 1:
            return [array]
        parts: list[Array] = []
        start = 0
        for layout in layouts:
            parts.append(array[start : start + layout.rows])
            start += layout.rows
        return parts

    def _cut_by_source(self, output: TensorConfig, array: Array, layouts: Sequence[HeaderLayout]) -> list[Array]:
        pattern = (-1, *output.model_dims) if self._is_batching else output.model_dims
        shapes = [_fill(pattern, layout.input_shapes[output.scatter_source]) for layout in layouts]
        counts = [math.prod(shape) for shape in shapes]
        if array.size != sum(counts):
            raise internal(
                f"model '{self._name}' returned output '{output.name}' with {array.size} elements, but cut by the "
                f"shapes of input '{output.scatter_source}', as its 'batch_output' says, it should have {sum(counts)}"
            )
        flat = array.reshape(-1)
        parts: list[Array] = []
        start = 0
        for shape, count in zip(shapes, counts, strict=True):
            parts.append(flat[start : start + count].reshape(shape))
            start += count
        return parts

    # --- checks of outputs ------------------------------------------------------------------------------------------

    def _on_host(
        self,
        outputs: Sequence[TensorConfig],
        tensors: Sequence[Any],
        staying: Set[str] = frozenset(),
        layouts: Sequence[HeaderLayout] = (),
    ) -> list[Any]:
        """Return outputs as arrays, except those that stay on their device and can be cut for these layouts."""
        if len(tensors) != len(outputs):
            raise self._not_tensors(tensors)
        arrays: list[Any] = []
        for output, tensor in zip(outputs, tensors, strict=True):
            if isinstance(tensor, _ndarray):
                arrays.append(tensor)
            elif not hasattr(tensor, "__dlpack__"):
                raise self._not_tensors(tensors)
            elif output.name in staying and _can_stay(tensor, layouts):
                arrays.append(tensor)
            else:
                arrays.append(self._to_array(output, tensor))
        return arrays

    def _to_array(self, output: TensorConfig, tensor: DLPackTensor) -> Array:
        try:
            return self._to_host(tensor)
        except BufferError as error:
            raise internal(f"model '{self._name}' returned output '{output.name}': {error}") from error

    def _check_outputs(self, outputs: Sequence[TensorConfig], arrays: Sequence[Any], rows: int) -> None:
        for output, array in zip(outputs, arrays, strict=True):
            datatype = from_numpy(array.dtype) if isinstance(array, _ndarray) else datatype_of(array)
            if datatype is not output.datatype:
                found = datatype.value if datatype else str(array.dtype)
                hint = "" if datatype or not isinstance(array, _ndarray) else f": {conversion_hint(array.dtype)}"
                raise internal(
                    f"model '{self._name}' returned output '{output.name}' with datatype {found}, but the model "
                    f"configuration says {output.datatype.config_name}{hint}"
                )
            is_by_rows = self._is_batching and not output.scatter_source
            if is_by_rows and (not array.shape or array.shape[0] != rows):
                raise self._wrong_rows(output.name, array.shape, rows)

    def _not_tensors(self, tensors: Sequence[object]) -> InferError:
        kinds = ", ".join(type(tensor).__name__ for tensor in tensors)
        return internal(
            f"model '{self._name}' did not return one array for each of the outputs asked for, but [{kinds}]"
        )

    def _wrong_text(self, outputs: Sequence[TensorConfig], arrays: Sequence[Any]) -> InferError:
        """Return the error of the first output with text that UTF-8 does not have."""
        for output, array in zip(outputs, arrays, strict=True):
            problem = text_problem(array) if isinstance(array, _ndarray) else ""
            if problem:
                return internal(f"output '{output.name}' of model '{self._name}' {problem}")
        return internal(f"model '{self._name}' has returned text that UTF-8 does not have")

    def _wrong_rows(self, name: str, shape: Shape, rows: int) -> InferError:
        reason = (
            "An output with as many elements as a ragged input needs a 'batch_output' that names this input"
            if self.table.is_ragged
            else "The model has its batch size built in: set 'max_batch_size: 0', or export it with a free first "
            "dimension"
        )
        return internal(
            f"model '{self._name}' returned output '{name}' with shape {shape_text(shape)} for a batch of {rows}: "
            f"its first dimension should be {rows}. {reason}"
        )


def _column(array: Array, count: int) -> tuple[Callable[[Array], Buffer], list[slice] | None]:
    if array.dtype.kind in STRING_KINDS:
        return to_buffer, None
    convert = to_buffer if array.nbytes > COPY_LIMIT_BYTES or array.dtype.byteorder == ">" else _copy_out
    size = array.nbytes // count
    return convert, [slice(i * size, (i + 1) * size) for i in range(count)]


def _can_stay(tensor: Any, layouts: Sequence[HeaderLayout]) -> bool:
    """Return whether a tensor is on a device, describes itself, and can be cut into aligned rows for each request."""
    datatype = datatype_of(tensor)
    if device_of(tensor) is None or datatype is None:
        return False
    row_bytes = math.prod(tensor.shape[1:]) * datatype.item_bytes
    are_aligned = all(layout.rows * row_bytes % ALIGNMENT_BYTES == 0 for layout in layouts[:-1])
    return len(layouts) == 1 or (are_aligned and hasattr(tensor, "__getitem__"))


def _fill(pattern: Shape, source: Shape) -> Shape:
    """Return `pattern` with the dimension of `source` at the same place instead of each -1, as Triton does."""
    return tuple(source[axis] if dim < 0 else dim for axis, dim in enumerate(pattern))
