"""Messages between server processes about requests with sequences in another process.

They are plain tuples: each request is packed and unpacked in a few microseconds.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from naiad.core.datatype import DataType
from naiad.core.errors import ErrorCode, FailureReason, InferError
from naiad.core.parameters import NO_PARAMETERS
from naiad.core.request import ExecutionTimes, InferRequest, RequestedOutput, RequestHeader
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.tensor import Shape, TensorSpec

_MAX_HEADERS = 1024

_Specs = tuple[tuple[str, str, Shape], ...]
"""Name, datatype and shape of each tensor."""
_Error = tuple[int, str, str, str | None]
"""Code, message, detail, reason."""
_Times = tuple[int, int, int, int, int]


class Submit(NamedTuple):
    """A request for the process of its sequence."""

    number: int
    """Number that identifies the request in later messages; the sender chooses it."""
    model: str
    """Key of the model that is the same in all processes, for every name that clients use."""
    model_version: str
    inputs: _Specs
    outputs: tuple[str, ...]
    parameters: dict[str, Any] | None
    priority: int
    timeout_us: int
    sequence_id: int | str
    sequence_start: bool
    sequence_end: bool
    wants_empty_final: bool
    request_id: str
    arrival_ns: int
    wants_times: bool
    data: list[bytes]


class Cancel(NamedTuple):
    """The client of a request has cancelled it."""

    number: int


class Paused(NamedTuple):
    """Whether the client of a request is too slow to read its responses."""

    number: int
    is_paused: bool
    unread_bytes: int
    """What its client has not taken yet; -1 if unknown."""


class CountSequences(NamedTuple):
    """A query: the number of sequences of the process."""


class Answer(NamedTuple):
    """A response to a request."""

    number: int
    model_version: str
    outputs: _Specs
    data: list[bytes]
    parameters: dict[str, Any] | None
    error: _Error | None
    final: bool
    empty_final: bool
    times: _Times | None


def pack_request(number: int, model: str, version: str, request: InferRequest) -> Submit:
    """Return a request as a message, with the key of its model, and the version.

    The sender resolves the shared memory of its inputs and outputs itself.
    """
    header = request.header
    return Submit(
        number,
        model,
        version,
        _pack_specs(header.inputs),
        tuple([output.name for output in header.outputs]),
        dict(header.parameters) if header.parameters else None,
        header.priority,
        header.timeout_us,
        header.sequence_id,
        header.sequence_start,
        header.sequence_end,
        header.wants_empty_final,
        request.id,
        request.arrival_ns,
        request.times is not None,
        [bytes(data) for data in request.data],
    )


def unpack_header(submit: Submit) -> RequestHeader:
    """Return the header of a forwarded request."""
    return RequestHeader(
        model_name=submit.model,
        model_version=submit.model_version,
        inputs=_unpack_specs(submit.inputs),
        outputs=[RequestedOutput(name) for name in submit.outputs],
        parameters=submit.parameters or NO_PARAMETERS,
        priority=submit.priority,
        timeout_us=submit.timeout_us,
        sequence_id=submit.sequence_id,
        sequence_start=submit.sequence_start,
        sequence_end=submit.sequence_end,
        wants_empty_final=submit.wants_empty_final,
    )


def pack_response(number: int, times: ExecutionTimes | None, response: InferResponse) -> Answer:
    """Return a response as a message; `times` go with the final one."""
    header = response.header
    packed_times = None
    if times is not None and response.final:
        packed_times = (
            times.free_ns,
            times.exec_start_ns,
            times.compute_start_ns,
            times.compute_end_ns,
            times.exec_end_ns,
        )
    return Answer(
        number,
        header.model_version,
        _pack_specs(header.outputs),
        [bytes(data) for data in response.data],
        dict(response.parameters) if response.parameters else None,
        None if response.error is None else _pack_error(response.error),
        response.final,
        response.empty_final,
        packed_times,
    )


def pack_rejection(submit: Submit, error: InferError) -> Answer:
    """Return the response to a request that was rejected at admission."""
    return Answer(submit.number, submit.model_version, (), [], None, _pack_error(error), True, False, None)


class ResponseHeaders:
    """Headers of responses by their contents, so that encoders prepare each of them once."""

    def __init__(self) -> None:
        self._headers: dict[tuple[str, str, _Specs], ResponseHeader] = {}

    def find(self, model_name: str, model_version: str, outputs: _Specs = ()) -> ResponseHeader:
        """Return the header of a response."""
        key = (model_name, model_version, outputs)
        header = self._headers.get(key)
        if header is None:
            if len(self._headers) >= _MAX_HEADERS:
                self._headers.clear()
            header = self._headers[key] = ResponseHeader(model_name, model_version, _unpack_specs(outputs))
        return header


def unpack_response(answer: Answer, header: ResponseHeader) -> InferResponse:
    """Return a response of another process."""
    return InferResponse(
        header,
        answer.data,
        error=None if answer.error is None else _unpack_error(answer.error),
        parameters=answer.parameters or NO_PARAMETERS,
        final=answer.final,
        empty_final=answer.empty_final,
    )


def unpack_times(times: _Times, into: ExecutionTimes) -> None:
    """Fill in the times of an execution; processes of one machine share the clock."""
    into.free_ns, into.exec_start_ns, into.compute_start_ns, into.compute_end_ns, into.exec_end_ns = times


def _pack_specs(specs: Sequence[TensorSpec]) -> _Specs:
    return tuple([(spec.name, spec.datatype.value, spec.shape) for spec in specs])


def _unpack_specs(specs: _Specs) -> list[TensorSpec]:
    return [TensorSpec(name, _DATATYPES[datatype], shape) for name, datatype, shape in specs]


_DATATYPES: Mapping[str, DataType] = {datatype.value: datatype for datatype in DataType}


def _pack_error(error: InferError) -> _Error:
    return error.code.value, error.message, error.detail, None if error.reason is None else error.reason.value


def _unpack_error(packed: _Error) -> InferError:
    code, message, detail, reason = packed
    return InferError(
        ErrorCode(code), message, detail=detail, reason=None if reason is None else FailureReason(reason)
    )
