"""Requests with more rows than a batch: parts, their joined response, failures, cancellation."""

from collections.abc import Sequence

import numpy as np

from naiad.core.datatype import DataType
from naiad.core.errors import ErrorCode, InferError, invalid_argument, rejected
from naiad.core.request import InferRequest, RequestHeader
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.tensor import TensorSpec, decode_bytes_elements, encode_bytes_elements
from naiad.engine.serving.large_requests import MAX_STRINGS, LargeRequest, can_split
from support.engine_parts import Answers


class Model:
    """Keeps the parts that it gets; the test answers them."""

    def __init__(self, refuses: int = -1) -> None:
        self.parts: list[InferRequest] = []
        self.refuses = refuses

    def submit(self, part: InferRequest) -> None:
        if len(self.parts) == self.refuses:
            raise InferError(ErrorCode.UNAVAILABLE, "unloading")
        self.parts.append(part)

    def cancel(self, part: InferRequest) -> None:
        answer(part, error=InferError(ErrorCode.CANCELLED, "cancelled"))


def answer(part: InferRequest, *, columns: int = 2, error: InferError | None = None) -> None:
    rows = part.header.inputs[0].shape[0]
    if error is not None:
        part.on_response(part, InferResponse(ResponseHeader("m", "1", ()), error=error))
        return
    specs = [TensorSpec("OUT", DataType.FP32, (rows, columns))]
    part.on_response(part, InferResponse(ResponseHeader("m", "1", specs), [bytes(part.data[0])]))


def large(rows: int, model: Model, size: int = 4) -> tuple[LargeRequest, InferRequest, Answers]:
    values = np.arange(rows * 2, dtype=np.float32)
    answers = Answers()
    specs = [TensorSpec("IN", DataType.FP32, (rows, 2))]
    request = InferRequest(RequestHeader(model_name="m", inputs=specs), [values.tobytes()], answers, id="7")
    return LargeRequest(request, size, version="1", submit=model.submit, cancel=model.cancel), request, answers


def only(answers: Answers) -> InferResponse:
    ((_, response),) = answers.received
    return response


def test_parts_are_joined_in_the_order_of_rows() -> None:
    model = Model()
    parts, request, answers = large(10, model)
    parts.start()
    assert [part.header.inputs[0].shape for part in model.parts] == [(4, 2), (4, 2), (2, 2)]
    for part in reversed(model.parts):
        assert not answers.received
        answer(part)
    response = only(answers)
    assert [spec.shape for spec in response.header.outputs] == [(10, 2)]
    assert response.data[0] == request.data[0]


def test_number_of_open_parts_is_bounded() -> None:
    model = Model()
    parts, _, answers = large(4 * 300, model)
    parts.start()
    assert len(model.parts) == 256
    for number in range(300):
        answer(model.parts[number])
    assert only(answers).header.outputs[0].shape == (1200, 2)


def test_failure_of_a_part_fails_the_request() -> None:
    model = Model()
    parts, _, answers = large(12, model)
    parts.start()
    answer(model.parts[0])
    answer(model.parts[1], error=invalid_argument("row 5 is wrong"))
    error = only(answers).error
    assert error is not None
    assert error.message == "row 5 is wrong"
    answer(model.parts[2])
    assert len(answers) == 1


def test_model_that_stops_between_parts_is_an_error() -> None:
    parts, _, answers = large(12, Model(refuses=2))
    parts.start()
    error = only(answers).error
    assert error is not None
    assert error.message == "unloading"


def test_a_part_that_was_not_begun_leaves_others() -> None:
    model = Model()
    parts, _, answers = large(12, model)
    parts.start()
    answer(model.parts[0])
    answer(model.parts[1], error=rejected("full"))
    error = only(answers).error
    assert error is not None
    assert (error.message, error.has_begun) == ("full", True)


def test_cancelled_request_cancels_its_parts() -> None:
    model = Model()
    parts, request, answers = large(12, model)
    parts.start()
    answer(model.parts[0])
    assert request.model.cancel(request)
    error = only(answers).error
    assert error is not None
    assert error.code is ErrorCode.CANCELLED
    assert not request.model.cancel(request)


def test_outputs_that_are_not_rows_are_refused() -> None:
    model = Model()
    parts, _, answers = large(8, model)
    parts.start()
    answer(model.parts[0])
    answer(model.parts[1], columns=3)
    error = only(answers).error
    assert error is not None
    assert "output 'OUT' of 8 rows" in error.message


def request_of_strings(words: Sequence[bytes], shape: tuple[int, ...]) -> InferRequest:
    specs = [TensorSpec("TEXT", DataType.BYTES, shape)]
    header = RequestHeader(model_name="m", inputs=specs)
    return InferRequest(header, [encode_bytes_elements(words)], Answers())


def test_strings_are_cut_between_rows() -> None:
    model = Model()
    words = [b"a", b"", b"long word", b"d", b"e", b"f"]
    request = request_of_strings(words, (3, 2))
    LargeRequest(request, 2, version="1", submit=model.submit, cancel=model.cancel).start()
    assert [list(decode_bytes_elements(part.data[0])) for part in model.parts] == [words[:4], words[4:]]


def test_too_many_strings_are_not_split() -> None:
    assert can_split(request_of_strings([b"a"], (MAX_STRINGS,)))
    assert not can_split(request_of_strings([b"a"], (MAX_STRINGS + 1,)))
