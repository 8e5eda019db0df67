"""Requests with more rows than a batch of their model may have: executed in parts, answered with one response.

Bare model files (`naiad serve FILE`) have no configuration: their max_batch_size is a default. The parts are
ordinary requests of the same model: they share batches with others, and no execution is larger than before. A bounded
number of them is submitted; each one that ends submits the next.
"""

from collections.abc import Callable, Sequence

from naiad.core.datatype import DataType
from naiad.core.errors import ErrorCode, InferError, internal, invalid_argument
from naiad.core.request import InferRequest, RequestHeader
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.tensor import Buffer, TensorSpec

MAX_ROWS = 1 << 20
"""Of one request; each part costs some microseconds of the event loop."""
MAX_STRINGS = 1 << 16
"""Of one input: their positions are looked up at once."""
_OPEN_PARTS = 256
_MAX_OUTPUT_BYTES = 1 << 30
"""Limit of the outputs that wait for the last part."""


def can_split(request: InferRequest) -> bool:
    """Return whether a request may be executed in parts: one of a client, whose strings are few enough."""
    return type(request) is InferRequest and all(
        spec.datatype is not DataType.BYTES or spec.element_count <= MAX_STRINGS for spec in request.header.inputs
    )


class LargeRequest:
    """One request that is executed in parts; the `model` of the request, to which its cancellation goes."""

    def __init__(
        self,
        request: InferRequest,
        part_rows: int,
        *,
        version: str,
        submit: Callable[[InferRequest], None],
        cancel: Callable[[InferRequest], object],
    ) -> None:
        self.version = version
        self._request = request
        self._rows = request.header.inputs[0].shape[0]
        self._part_rows = part_rows
        self._submit_part = submit
        self._cancel_part = cancel
        self._columns = [_Column(spec, data) for spec, data in zip(request.header.inputs, request.data, strict=True)]
        self._headers: dict[int, RequestHeader] = {}
        self._answers: list[InferResponse | None] = [None] * -(-self._rows // part_rows)
        self._numbers: dict[InferRequest, int] = {}
        """Open parts."""
        self._next = 0
        self._output_bytes = 0
        self._error: InferResponse | None = None
        self._is_answered = False

    def start(self) -> None:
        """Submit the first parts. Raises InferError if the first one is rejected."""
        self._submit_next()
        self._request.model = self
        self._fill()

    def cancel(self, request: InferRequest) -> bool:
        """Cancel the open parts; the response comes when they have ended, at once if none executes."""
        if request.cancelled:
            return False
        request.cancelled = True
        self._end_parts()
        return self._is_answered

    def is_waiting(self, request: InferRequest) -> bool:
        """Return whether no instance executes any part of it."""
        return all(part.model is not None and part.model.is_waiting(part) for part in self._numbers)

    # --- parts ----------------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Submit parts up to the limit; respond when all have ended."""
        while self._is_going_on and len(self._numbers) < _OPEN_PARTS and self._next < len(self._answers):
            try:
                self._submit_next()
            except InferError as error:
                self._fail(error)
        if not self._numbers and not self._is_answered:
            self._is_answered = True
            self._request.on_response(self._request, self._error or self._joined())

    @property
    def _is_going_on(self) -> bool:
        return self._error is None and not self._request.cancelled

    def _submit_next(self) -> None:
        number = self._next
        begin = number * self._part_rows
        end = min(begin + self._part_rows, self._rows)
        request = self._request
        data = [column.rows(begin, end) for column in self._columns]
        part = InferRequest(self._header(end - begin), data, self._take, id=request.id, arrival_ns=request.arrival_ns)
        part.deadline_ns = request.deadline_ns
        part.times = request.times
        self._next += 1
        self._numbers[part] = number
        try:
            self._submit_part(part)
        except InferError:
            del self._numbers[part]
            raise

    def _header(self, rows: int) -> RequestHeader:
        header = self._headers.get(rows)
        if header is None:
            whole = self._request.header
            inputs = [TensorSpec(spec.name, spec.datatype, (rows, *spec.shape[1:])) for spec in whole.inputs]
            header = self._headers[rows] = whole.with_tensors(inputs, whole.outputs, {})
        return header

    def _take(self, part: InferRequest, response: InferResponse) -> None:
        number = self._numbers.pop(part, None)
        if number is None:
            return
        self._answers[number] = response
        self._output_bytes += sum(map(len, response.data))
        if response.error is not None:
            self._fail(response.error)
        elif self._output_bytes > _MAX_OUTPUT_BYTES:
            self._fail(
                invalid_argument(
                    f"the outputs of {self._rows} rows have more than {_MAX_OUTPUT_BYTES} bytes: send fewer rows in "
                    "a request"
                )
            )
        self._fill()

    def _fail(self, error: InferError) -> None:
        if self._error is None:
            self._error = InferResponse(self._names(), error=error.of_part())
            self._end_parts()

    def _names(self, outputs: Sequence[TensorSpec] = ()) -> ResponseHeader:
        return ResponseHeader(self._request.header.model_name, self.version, outputs)

    def _end_parts(self) -> None:
        for part in list(self._numbers):
            self._cancel_part(part)

    def _joined(self) -> InferResponse:
        if self._request.cancelled:
            return InferResponse(self._names(), error=InferError(ErrorCode.CANCELLED, "request cancelled"))
        parts = [answer for answer in self._answers if answer is not None]
        try:
            specs = self._joined_specs([part.header.outputs for part in parts])
        except InferError as error:
            return InferResponse(self._names(), error=error)
        data = [b"".join([part.data[position] for part in parts]) for position in range(len(specs))]
        return InferResponse(self._names(specs), data, parameters=parts[0].parameters)

    def _joined_specs(self, parts: Sequence[Sequence[TensorSpec]]) -> list[TensorSpec]:
        """Return the outputs of all rows. Raises InferError if their parts do not fit together."""
        specs = []
        for position, first in enumerate(parts[0]):
            shapes = {each[position].shape[1:] for each in parts}
            rows = sum(each[position].shape[0] if each[position].shape else 0 for each in parts)
            if len(shapes) > 1 or rows != self._rows:
                raise internal(
                    f"output '{first.name}' of {self._rows} rows, executed {self._part_rows} at a time, has parts of "
                    f"the shapes {', '.join(sorted({str(list(each[position].shape)) for each in parts}))}: send at "
                    f"most {self._part_rows} rows in a request"
                )
            specs.append(TensorSpec(first.name, first.datatype, (rows, *first.shape[1:])))
        return specs


class _Column:
    """The data of one input, by rows."""

    def __init__(self, spec: TensorSpec, data: Buffer) -> None:
        self._view = memoryview(data).cast("B")
        rows = max(1, spec.shape[0])
        if spec.datatype is DataType.BYTES:
            self._starts = _string_starts(self._view, spec.element_count // rows)
        else:
            size = len(self._view) // rows
            self._starts = range(0, rows * size + 1, size) if size else [0] * (rows + 1)

    def rows(self, begin: int, end: int) -> memoryview:
        """Return the data of some rows."""
        return self._view[self._starts[begin] : self._starts[end]]


def _string_starts(view: memoryview, row_elements: int) -> Sequence[int]:
    """Return the position of each row and of the end, of strings whose number and lengths have been checked."""
    starts, position, count = [], 0, 0
    while position < len(view):
        if count % row_elements == 0:
            starts.append(position)
        position += 4 + int.from_bytes(view[position : position + 4], "little")
        count += 1
    return [*starts, position]
