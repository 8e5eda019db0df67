"""The instance of a framework that computes on whole arrays: gather a batch, run it, scatter what came out.

A framework's adapter implements `run` and, if the framework can work on fixed buffers, `stage`.
"""

import abc
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from naiad.backend.api import Instance, ModelContext
from naiad.backend.mixed_batch import cut_output, gather_inputs
from naiad.backend.tensor_layout import (
    MAX_RESPONSE_HEADERS,
    Dtype,
    HeaderLayout,
    TensorConfig,
    TensorTable,
    as_input,
)
from naiad.config.execution import execution_config
from naiad.core.batch import Batch
from naiad.core.datatype import from_numpy
from naiad.core.errors import ErrorCode, InferError, internal
from naiad.core.request import InferRequest, RequestHeader
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.tensor import Array, Buffer, Shape, TensorSpec, to_buffer

MAX_PLANS = 512
"""Combinations of request header and batch size that an instance remembers."""
COPY_LIMIT_BYTES = 16384
"""An output of a batch up to this size is copied into `bytes`: cheaper than views, and it lets go of the array."""
LARGE_INPUT_BYTES = 1 << 20
"""An input of a single request above this size is worth letting go of once it has been copied."""

_now_ns = time.monotonic_ns
_join = b"".join
_ndarray = np.ndarray
_copy_out = np.ndarray.tobytes


class StagedRun(Protocol):
    """A run on fixed buffers: for tiny batches, copying in and out costs less than making arrays does."""

    inputs: Sequence[memoryview]
    """Writable, format "B": one per input, in the order in which `stage` was asked for them."""
    outputs: Sequence[Array]
    """Filled by `run`, one per output; overwritten by the next run."""

    def run(self) -> None:
        """Compute `outputs` from `inputs`. Raises what the framework raises."""


class _Plan:
    """What to do for a batch of some number of requests that share one header."""

    __slots__ = (
        "columns",
        "dtypes",
        "has_destinations",
        "header",
        "inputs",
        "is_large",
        "layout",
        "output_names",
        "shapes",
        "staged",
        "targets",
    )

    def __init__(self, layout: HeaderLayout, count: int, is_batching: bool) -> None:
        rows = (layout.rows * count,) if is_batching else ()
        self.layout = layout
        self.inputs: list[tuple[str, int, Dtype | None, Shape]] = [
            (slot.name, slot.position, slot.dtype, rows + slot.tail) for slot in layout.inputs
        ]
        self.is_large = any(
            dtype is not None and math.prod(shape) * dtype.itemsize >= LARGE_INPUT_BYTES
            for _, _, dtype, shape in self.inputs
        )
        self.output_names = [output.name for output in layout.outputs]
        # What is batched lies in one array, which has to be cut apart anyway.
        self.has_destinations = count == 1 and layout.has_destinations
        self.staged: StagedRun | None = None
        self.targets: list[tuple[memoryview, int]] = []
        # What the last run returned; outputs like those need no second look.
        self.shapes: list[Shape] | None = None
        self.dtypes: list[Dtype] = []
        self.header = ResponseHeader("", "", ())
        self.columns: list[tuple[Callable[[Array], Buffer], list[slice] | None]] = []
        """Per output how it becomes bytes, and which of them are whose; None for BYTES, cut as elements."""


class TensorInstance(Instance):
    """Gathers the inputs of a batch into one array each, calls `run`, and cuts the outputs apart again.

    Applies `reshape` both ways, leaves absent optional inputs out, returns only the outputs that were asked for, and
    checks what `run` returns: datatypes, and the batch dimension of a batching model.
    """

    def __init__(self, context: ModelContext) -> None:
        self._model_name = context.name
        self._model_version = str(context.version)
        self._table = TensorTable(execution_config(context.config))
        self._is_batching = self._table.is_batching
        self._may_stage = True
        self._error_header = ResponseHeader(self._model_name, self._model_version, ())
        self._layouts: dict[RequestHeader, HeaderLayout] = {}
        self._plans: dict[tuple[RequestHeader, int], _Plan] = {}

    def close(self) -> None:
        """Forget staged runs, which hold what the framework has of the model. See `Instance.close`."""
        self._plans.clear()

    @abc.abstractmethod
    def run(self, inputs: dict[str, Array], output_names: Sequence[str]) -> Sequence[Array]:
        """Return one array per name in `output_names`, in that order.

        `inputs` has an array per configured input that the requests carry, batch dimension first if the model
        batches, with the model's own shape where the configuration has a `reshape`. Arrays are C-contiguous, aligned
        and often read-only; BYTES arrives as an object array of `bytes`. Returned arrays must stay untouched
        afterwards; BYTES is returned as an array of bytes or str.

        Raises InferError, with INVALID_ARG when the values of an input are at fault: then the requests of the batch
        are executed one by one, and only the faulty ones fail. Anything else that it raises is reported as a bug.
        """

    def run_into(
        self, inputs: dict[str, Array], output_names: Sequence[str], destinations: Mapping[str, memoryview]
    ) -> Sequence[Array] | None:
        """Do what `run` does, with outputs written to the client's memory, or return None where it cannot be done.

        `destinations` has writable memory for some of the outputs; each of them must be returned as an array at the
        beginning of its memory. Afterwards None makes the caller call `run` with the same `inputs`: so does whatever
        fails here.
        """
        return None

    def stage(self, inputs: Sequence[TensorSpec], output_names: Sequence[str]) -> StagedRun | None:
        """Return a run on fixed buffers for inputs of exactly these shapes, or None where `run` is better.

        The shape of every output must be known beforehand. When a staged run raises, `run` is called with the same
        inputs, and what that returns or raises counts.
        """
        return None

    def execute(self, batch: Batch) -> Sequence[InferResponse]:
        """Execute `batch`; see `Instance.execute`."""
        # hot: bench/micro_tensor_instance.py
        requests = batch.requests
        count = len(requests)
        layout = requests[0].header.layout or requests[0].header
        plan = self._plans.get((layout, count))
        if plan is None or (count > 1 and [r.header.layout or r.header for r in requests].count(layout) != count):
            plan = self._find_plan(requests)
            if plan is None:
                return self._execute_mixed(batch)
        if plan.staged is not None and (responses := self._execute_staged(batch, plan, plan.staged)) is not None:
            return responses
        inputs: dict[str, Array] = {}
        for name, position, dtype, shape in plan.inputs:
            data = requests[0].data[position] if count == 1 else _join([r.data[position] for r in requests])
            inputs[name] = as_input(name, dtype, shape, data)
        if plan.is_large and count == 1 and _are_own(inputs):
            # All of it was copied: the received message need not stay in memory while the model runs.
            data = b""
            requests[0].data = ()
        batch.compute_start_ns = _now_ns()
        if plan.has_destinations and (responses := self._execute_placed(batch, plan, inputs)) is not None:
            return responses
        try:
            arrays = self.run(inputs, plan.output_names)
        except InferError as error:
            if count > 1 and error.code is ErrorCode.INVALID_ARG:
                return self._execute_one_by_one(batch)
            raise
        batch.compute_end_ns = _now_ns()
        if plan.staged is not None:
            # It works, only not with the buffers: what `stage` knows of this model's outputs is wrong.
            plan.staged = None
            self._may_stage = False
        return self._scatter(plan, count, arrays)

    def _execute_placed(self, batch: Batch, plan: _Plan, inputs: dict[str, Array]) -> Sequence[InferResponse] | None:
        """Execute a single request with outputs where the client wants them; None when that cannot be done."""
        destinations = batch.requests[0].destinations
        arrays = self.run_into(inputs, plan.output_names, destinations) if destinations else None
        if arrays is None or destinations is None:
            return None
        batch.compute_end_ns = _now_ns()
        (response,) = self._scatter(plan, 1, arrays)
        pairs = zip(plan.output_names, response.data, strict=True)
        response.data = [b"" if name in destinations else data for name, data in pairs]
        return [response]

    def _execute_one_by_one(self, batch: Batch) -> Sequence[InferResponse]:
        """Execute each request alone, so that only those fail whose inputs are refused."""
        start_ns = batch.compute_start_ns or _now_ns()
        responses: list[InferResponse] = []
        for request in batch.requests:
            single = Batch([request], request.batch_size, batch.release_reason)
            try:
                responses += self.execute(single)
            except InferError as error:
                if error.code is not ErrorCode.INVALID_ARG:
                    raise
                responses.append(InferResponse(self._error_header, error=error))
        batch.compute_start_ns = start_ns
        batch.compute_end_ns = _now_ns()
        return responses

    def _execute_staged(self, batch: Batch, plan: _Plan, staged: StagedRun) -> Sequence[InferResponse] | None:
        requests = batch.requests
        count = len(requests)
        try:
            if count == 1:
                data = requests[0].data
                for target, position in plan.targets:
                    target[:] = data[position]
            else:
                for target, position in plan.targets:
                    target[:] = _join([r.data[position] for r in requests])
            batch.compute_start_ns = _now_ns()
            staged.run()
            batch.compute_end_ns = _now_ns()
        except Exception:  # the same batch is run without buffers at once, which tells the reason
            return None
        return self._scatter(plan, count, staged.outputs)

    def _scatter(self, plan: _Plan, count: int, arrays: Sequence[Array]) -> Sequence[InferResponse]:
        try:
            shapes = [array.shape for array in arrays]
            dtypes = [array.dtype for array in arrays]
        except AttributeError:
            raise self._not_arrays(arrays) from None
        if shapes != plan.shapes or dtypes != plan.dtypes:
            self._learn_outputs(plan, count, arrays)
        header = plan.header
        if count == 1:
            return [InferResponse(header, [convert(a) for (convert, _), a in zip(plan.columns, arrays, strict=True)])]
        columns: list[Sequence[Buffer]] = []
        for (convert, slices), array in zip(plan.columns, arrays, strict=True):
            if slices is None:
                rows = plan.layout.rows
                columns.append([to_buffer(array[i * rows : (i + 1) * rows]) for i in range(count)])
            else:
                data = convert(array)
                columns.append([data[part] for part in slices])
        return [InferResponse(header, data) for data in zip(*columns, strict=True)]

    # --- what is done once ------------------------------------------------------------------------------------------

    def _layout(self, header: RequestHeader) -> HeaderLayout:
        layout = self._layouts.get(header)
        if layout is None:
            if len(self._layouts) >= MAX_PLANS:
                self._layouts.clear()
            layout = self._layouts[header] = HeaderLayout(self._table, header)
        return layout

    def _find_plan(self, requests: Sequence[InferRequest]) -> _Plan | None:
        """Return the plan for requests with one header, made if need be; None for several or ragged ones."""
        if self._table.is_ragged:
            return None
        header = requests[0].header.layout or requests[0].header
        count = len(requests)
        if any((request.header.layout or request.header) is not header for request in requests):
            return None
        plan = self._plans.get((header, count))
        if plan is None:
            if len(self._plans) >= MAX_PLANS:
                self._plans.clear()
            plan = self._plans[header, count] = _Plan(self._layout(header), count, self._is_batching)
            self._try_to_stage(plan, count)
        return plan

    def _try_to_stage(self, plan: _Plan, count: int) -> None:
        if not self._may_stage or any(dtype is None for _, _, dtype, _ in plan.inputs):
            return
        specs = [
            TensorSpec(slot.name, slot.config.datatype, shape)
            for slot, (_, _, _, shape) in zip(plan.layout.inputs, plan.inputs, strict=True)
        ]
        staged = self.stage(specs, plan.output_names)
        if staged is not None:
            self._learn_outputs(plan, count, staged.outputs)
            plan.targets = [(view, item[1]) for view, item in zip(staged.inputs, plan.inputs, strict=True)]
            plan.staged = staged

    def _learn_outputs(self, plan: _Plan, count: int, arrays: Sequence[Array]) -> None:
        """Check outputs of shapes not seen by this plan before, and note how to cut them apart."""
        layout = plan.layout
        self._check_outputs(layout.outputs, arrays, layout.rows * count)
        plan.header = self._response_header(layout, [array.shape for array in arrays])
        plan.columns = []
        for array in arrays:
            if array.dtype.kind in "OSU":
                plan.columns.append((to_buffer, None))
                continue
            convert = to_buffer if array.nbytes > COPY_LIMIT_BYTES or array.dtype.byteorder == ">" else _copy_out
            size = array.nbytes // count
            plan.columns.append((convert, [slice(i * size, (i + 1) * size) for i in range(count)]))
        plan.shapes = [array.shape for array in arrays]
        plan.dtypes = [array.dtype for array in arrays]

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
            header = layout.response_headers[key] = ResponseHeader(self._model_name, self._model_version, specs)
        return header

    def _client_tail(self, output: TensorConfig, tail: Shape) -> Shape:
        shape = output.to_client(tail)
        if shape is None:
            raise internal(
                f"model '{self._model_name}' returned output '{output.name}' with {len(tail)} dimensions, but its "
                f"'reshape' in the model configuration has {len(output.model_dims)}"
            )
        return shape

    # --- batches of several headers ---------------------------------------------------------------------------------

    def _execute_mixed(self, batch: Batch) -> Sequence[InferResponse]:
        """Execute requests that fit together but differ in rows, ragged shapes, order of inputs or outputs wanted."""
        requests = batch.requests
        if not self._is_batching and len(requests) > 1:
            raise internal(
                f"model '{self._model_name}' does not batch but was given {len(requests)} requests at once"
            )
        layouts = [self._layout(request.header.layout or request.header) for request in requests]
        inputs = gather_inputs(self._table, requests, layouts)
        if inputs is None:
            # States of sequences may differ in shape where the requests do not.
            return self._execute_one_by_one(batch)
        wanted = {output.name for layout in layouts for output in layout.outputs}
        outputs = [output for output in self._table.outputs if output.name in wanted]
        batch.compute_start_ns = _now_ns()
        try:
            arrays = self.run(inputs, [output.name for output in outputs])
        except InferError as error:
            if error.code is ErrorCode.INVALID_ARG and len(requests) > 1:
                return self._execute_one_by_one(batch)
            raise
        batch.compute_end_ns = _now_ns()
        self._check_outputs(outputs, arrays, sum(layout.rows for layout in layouts))
        parts = {
            output.name: cut_output(self._model_name, output, array, layouts, is_batching=self._is_batching)
            for output, array in zip(outputs, arrays, strict=True)
        }
        responses: list[InferResponse] = []
        for index, layout in enumerate(layouts):
            own = [parts[output.name][index] for output in layout.outputs]
            header = self._response_header(layout, [part.shape for part in own])
            responses.append(InferResponse(header, [to_buffer(part) for part in own]))
        return responses

    # --- refusals ---------------------------------------------------------------------------------------------------

    def _check_outputs(self, outputs: Sequence[TensorConfig], arrays: Sequence[Array], rows: int) -> None:
        if len(arrays) != len(outputs) or not all(isinstance(array, _ndarray) for array in arrays):
            raise self._not_arrays(arrays)
        for output, array in zip(outputs, arrays, strict=True):
            datatype = from_numpy(array.dtype)
            if datatype is not output.datatype:
                found = datatype.value if datatype else str(array.dtype)
                raise internal(
                    f"model '{self._model_name}' returned output '{output.name}' with datatype {found}, but the "
                    f"model configuration says {output.datatype.config_name}"
                )
            is_by_rows = self._is_batching and not output.scatter_source
            if is_by_rows and (not array.shape or array.shape[0] != rows):
                raise self._wrong_rows(output.name, array.shape, rows)

    def _not_arrays(self, arrays: Sequence[object]) -> InferError:
        kinds = ", ".join(type(array).__name__ for array in arrays)
        return internal(
            f"model '{self._model_name}' did not return one array for each of the outputs asked for, but [{kinds}]"
        )

    def _wrong_rows(self, name: str, shape: Shape, rows: int) -> InferError:
        dims = ",".join(map(str, shape))
        reason = (
            "An output with as many elements as a ragged input needs a 'batch_output' that names this input"
            if self._table.is_ragged
            else "The model has its batch size built in: set 'max_batch_size: 0', or export it with a free first "
            "dimension"
        )
        return internal(
            f"model '{self._model_name}' returned output '{name}' with shape [{dims}] for a batch of {rows}: its "
            f"first dimension should be {rows}. {reason}"
        )


def _are_own(inputs: Mapping[str, Array]) -> bool:
    return all(array.flags.owndata for array in inputs.values())
