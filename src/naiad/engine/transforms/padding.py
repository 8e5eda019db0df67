"""Padding: requests of different lengths become requests of one shape, and each answer gets its own length back.

[1,3] a b c    ->  [1,4] a b c 0  \\                  / [1,4] A B C ?  ->  [1,3] A B C
[1,2] d e      ->  [1,4] d e 0 0   > model, [2,4] ->    [1,4] D E ? ?  ->  [1,2] D E
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.tensors.padding import InputPadding, Padding
from naiad.core.batch import Batch
from naiad.core.datatype import DataType
from naiad.core.errors import internal
from naiad.core.request import InferRequest, RequestedOutput, RequestHeader, ignore_response
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.tensor import (
    Buffer,
    Shape,
    TensorSpec,
    decode_bytes_elements,
    encode_bytes_elements,
    to_array,
    to_buffer,
    zeros,
)

MAX_FORMS = 4096
"""Limit of the cached request headers with their padded forms, and shapes of padded requests."""
MAX_CUTS = 4096
"""Limit of the cached response headers with their cuts."""

Own = tuple[tuple[str, Shape], ...]
"""Padded inputs with the client's own lengths in their variable dimensions."""


class _Fill(NamedTuple):
    """The padding of one input of a request."""

    position: int
    spec: TensorSpec
    """The client's spec."""
    shape: Shape
    padding: InputPadding
    tail: bytes | None
    """Bytes to append, if appending is sufficient."""


class _Form(NamedTuple):
    """The padded form of the requests with one header."""

    header: RequestHeader
    """The header of the execution."""
    fills: Sequence[_Fill]
    added: Sequence[bytes]
    """The data of the inputs that the server adds."""
    own: Own
    padded: Own
    """The padded lengths of `own`."""
    data_count: int
    """Elements of the client in padded inputs."""
    padding_count: int
    """Elements added to them."""


class _Cut(NamedTuple):
    """The cut of a response for the client."""

    header: ResponseHeader
    specs: Sequence[TensorSpec | None]
    """By output: the client's spec; None for an unchanged output."""


def _record_nothing(data_count: int, padding_count: int) -> None:
    """Do nothing: warm-up is not counted."""


class PaddedRequests:
    """Pads the requests of a batch before its execution, and cuts the responses afterwards.

    A request has the padded header and data while it executes; then the client's header is restored.
    """

    def __init__(
        self, config: ModelConfig, padding: Padding, record: Callable[[int, int], object] = _record_nothing
    ) -> None:
        """`padding` comes from the valid configuration; the model batches.

        `record` gets the elements of each batch: the elements of clients, and the added ones.
        """
        self._record = record
        self._model_name = config.name
        self._padding = padding
        self._output_dims = {output.name: tuple(output.dims) for output in config.output}
        self._forms: dict[RequestHeader, _Form] = {}
        self._layouts: dict[object, RequestHeader] = {}
        self._cuts: dict[tuple[ResponseHeader, Own], _Cut] = {}

    # --- before -----------------------------------------------------------------------------------------------------

    def prepare(self, batch: Batch) -> None:
        """Pad the requests of a batch, and record the elements of clients and the added ones."""
        requests = batch.requests
        forms = [self._form(request.header) for request in requests]
        padded = [_pad_data(request, form) for request, form in zip(requests, forms, strict=True)]
        filler = self._filler(batch, forms[0].header) if self._padding.rows else None
        batch.begin_transform(self)
        for request, form, data in zip(requests, forms, padded, strict=True):
            request.header = form.header
            request.data = data
        padding_count = sum(form.padding_count for form in forms)
        if filler is not None:
            batch.requests = [*requests, filler]
            padding_count += self._counted(filler.header)
        self._record(sum(form.data_count for form in forms), padding_count)

    def _filler(self, batch: Batch, like: RequestHeader) -> InferRequest | None:
        """Return a request of zeros with the missing rows of a batch; None for a full one."""
        sizes = self._padding.rows
        position = bisect_left(sizes, batch.size)
        if position == len(sizes) or sizes[position] == batch.size:
            return None
        rows = sizes[position] - batch.size
        specs = tuple(TensorSpec(spec.name, spec.datatype, (rows, *spec.shape[1:])) for spec in like.inputs)
        key = (specs, tuple(output.name for output in like.outputs))
        if len(self._layouts) >= MAX_FORMS:
            self._layouts.clear()
        header = self._layouts.get(key)
        if header is None:
            header = RequestHeader(model_name=like.model_name, inputs=specs, outputs=like.outputs)
            self._layouts[key] = header
        return InferRequest(header, [zeros(spec) for spec in specs], ignore_response)

    def _counted(self, header: RequestHeader) -> int:
        """Return the number of elements of a request that padding counts."""
        names = self._padding.inputs
        return sum(spec.element_count for spec in header.inputs if self._padding.rows or spec.name in names)

    def _form(self, header: RequestHeader) -> _Form:
        form = self._forms.get(header)
        if form is None:
            if len(self._forms) >= MAX_FORMS:
                self._forms.clear()
            form = self._forms[header] = self._make_form(header)
        return form

    def _make_form(self, header: RequestHeader) -> _Form:
        specs: list[TensorSpec] = []
        extra: list[TensorSpec] = []
        added: list[bytes] = []
        fills: list[_Fill] = []
        own: list[tuple[str, Shape]] = []
        padded: list[tuple[str, Shape]] = []
        counts = [0, 0]
        for position, spec in enumerate(header.inputs):
            padding = self._padding.inputs.get(spec.name)
            if padding is None:
                specs.append(spec)
                counts[0] += spec.element_count if self._padding.rows else 0
                continue
            rows, tail = spec.shape[:1], spec.shape[1:]
            shape = padding.padded(tail)
            specs.append(TensorSpec(spec.name, spec.datatype, rows + shape))
            counts[0] += spec.element_count
            counts[1] += specs[-1].element_count - spec.element_count
            if shape != tail:
                fills.append(_Fill(position, spec, rows + shape, padding, _tail(spec, rows + shape, padding)))
            lengths, targets = padding.variable(tail), padding.variable(shape)
            own.append((spec.name, lengths))
            padded.append((spec.name, targets))
            for tensor, data in _added(padding, rows, lengths, targets):
                extra.append(tensor)
                added.append(data)
        made = self._header(header, (*specs, *extra)) if fills or added else header
        return _Form(made, fills, added, tuple(own), tuple(padded), *counts)

    def _header(self, header: RequestHeader, inputs: Sequence[TensorSpec]) -> RequestHeader:
        # The client's memory for outputs has the size of the cut output; the cut is copied there afterwards.
        outputs = [RequestedOutput(output.name, may_be_missing=output.may_be_missing) for output in header.outputs]
        return header.with_tensors(inputs, outputs, self._layouts)

    # --- afterwards -------------------------------------------------------------------------------------------------

    def restore(self, batch: Batch) -> None:
        """Restore the client's headers and data; no effect for a batch that is not prepared (any more)."""
        replaced = batch.end_transform(self)
        if not replaced:
            return
        batch.requests = batch.requests[: len(replaced)]
        for request, (header, data) in zip(batch.requests, replaced, strict=True):
            request.header, request.data = header, data

    def settle(self, batch: Batch, responses: Sequence[InferResponse]) -> Sequence[InferResponse]:
        """Restore the requests of an executed batch and return the responses for the clients.

        Raises InferError(INTERNAL) for an output without the padded length of its input.
        """
        complete = len(responses) == len(batch.requests)
        self.restore(batch)
        if complete:
            # The rows that filled up the batch have no client.
            responses = responses[: len(batch.requests)]
        if not self._padding.outputs or len(responses) != len(batch.requests):
            return responses
        return [self._cut(request, answer) for request, answer in zip(batch.requests, responses, strict=True)]

    def _cut(self, request: InferRequest, response: InferResponse) -> InferResponse:
        form = self._form(request.header)
        if response.error is not None or not form.fills:
            return response
        key = (response.header, form.own)
        cut = self._cuts.get(key)
        if cut is None:
            if len(self._cuts) >= MAX_CUTS:
                self._cuts.clear()
            cut = self._cuts[key] = self._make_cut(response.header, form)
        data = [
            buffer if spec is None else _cut_data(whole, spec, buffer)
            for whole, spec, buffer in zip(response.header.outputs, cut.specs, response.data, strict=True)
        ]
        return InferResponse(cut.header, data, parameters=response.parameters, final=response.final)

    def _make_cut(self, header: ResponseHeader, form: _Form) -> _Cut:
        own, padded = dict(form.own), dict(form.padded)
        specs: list[TensorSpec] = []
        cuts: list[TensorSpec | None] = []
        for spec in header.outputs:
            source = self._padding.outputs.get(spec.name)
            shape = spec.shape if source is None else self._cut_shape(spec, source, own[source], padded[source])
            specs.append(spec if shape == spec.shape else TensorSpec(spec.name, spec.datatype, shape))
            cuts.append(None if shape == spec.shape else specs[-1])
        return _Cut(ResponseHeader(header.model_name, header.model_version, specs), cuts)

    def _cut_shape(self, spec: TensorSpec, source: str, own: Shape, padded: Shape) -> Shape:
        shape = list(spec.shape)
        axes = [axis for axis, dim in enumerate(self._output_dims[spec.name], 1) if dim < 0]
        if len(shape) != 1 + len(self._output_dims[spec.name]) or padded != tuple(shape[axis] for axis in axes):
            raise internal(
                f"model '{self._model_name}' returned output '{spec.name}' with shape {shape}, but cut as input "
                f"'{source}', as parameter 'cut_output.{spec.name}' says, its variable dimensions should be "
                f"{list(padded)}, to which the input was padded"
            )
        for axis, size in zip(axes, own, strict=True):
            shape[axis] = size
        return tuple(shape)


# --- data -----------------------------------------------------------------------------------------------------------


def _pad_data(request: InferRequest, form: _Form) -> Sequence[Buffer]:
    data = [*request.data, *form.added]
    for fill in form.fills:
        buffer = data[fill.position]
        if fill.tail is not None:
            data[fill.position] = b"".join((buffer, fill.tail))
        else:
            data[fill.position] = _spread(fill, buffer)
    return data


def _tail(spec: TensorSpec, shape: Shape, padding: InputPadding) -> bytes | None:
    """Return the bytes to append to `spec` for `shape`; None if rows also need gaps between them."""
    grown = [axis for axis, (own, size) in enumerate(zip(spec.shape, shape, strict=True)) if own != size]
    if any(size != 1 for size in shape[: grown[-1]]):
        return None
    missing = TensorSpec(spec.name, spec.datatype, shape).element_count - spec.element_count
    return padding.value * missing


def _spread(fill: _Fill, buffer: Buffer) -> Buffer:
    """Return the data with padding after every row, and after rows within it."""
    spec = fill.spec
    own = to_array(spec, buffer)
    if spec.datatype is DataType.BYTES:
        padded = np.full(fill.shape, decode_bytes_elements(fill.padding.value)[0], np.object_)
    else:
        padded = np.full(fill.shape, np.frombuffer(fill.padding.value, spec.datatype.numpy)[0], spec.datatype.numpy)
    padded[_region(spec.shape)] = own
    return to_buffer(padded)


def _cut_data(whole: TensorSpec, spec: TensorSpec, buffer: Buffer) -> Buffer:
    """Return the part of an output with the shape of `spec` at the corner of the `whole`."""
    cut = [axis for axis, (own, size) in enumerate(zip(spec.shape, whole.shape, strict=True)) if own != size]
    if all(size == 1 for size in whole.shape[: cut[-1]]):
        if spec.datatype is not DataType.BYTES:
            return buffer[: spec.byte_size]
        return encode_bytes_elements(decode_bytes_elements(buffer)[: spec.element_count])
    return to_buffer(to_array(whole, buffer)[_region(spec.shape)])


def _added(padding: InputPadding, rows: Shape, own: Shape, padded: Shape) -> Sequence[tuple[TensorSpec, bytes]]:
    """Return the mask and the lengths that the server adds for one input."""
    made: list[tuple[TensorSpec, bytes]] = []
    if padding.mask is not None:
        mask = np.zeros(rows + padded, padding.mask.datatype.numpy)
        mask[_region(rows + own)] = 1
        made.append((TensorSpec(padding.mask.name, padding.mask.datatype, mask.shape), mask.tobytes()))
    if padding.lengths is not None:
        lengths = np.empty(rows + padding.lengths.dims, padding.lengths.datatype.numpy)
        lengths[...] = own if padding.lengths.dims else own[0]
        made.append((TensorSpec(padding.lengths.name, padding.lengths.datatype, lengths.shape), lengths.tobytes()))
    return made


def _region(shape: Shape) -> tuple[slice, ...]:
    return tuple(slice(size) for size in shape)
