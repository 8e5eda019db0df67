"""Padded requests: what an instance executes, and what each client gets back."""

import time
from collections.abc import Sequence

import numpy as np
import pytest

from naiad.backend.api import InstanceDiedError
from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.tensors.padding import read_padding
from naiad.core.batch import Batch
from naiad.core.datatype import DataType
from naiad.core.errors import ErrorCode, FailureReason, InferError, internal
from naiad.core.request import InferRequest, RequestedOutput, RequestHeader, SharedMemoryRegion
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.tensor import Array, TensorSpec, to_array, to_buffer
from naiad.engine.transforms.padding import PaddedRequests
from support.engine_parts import Answers, ScriptedInstance, Serve, StepLoop


def padded_config(
    parameters: dict[str, str], dims: Sequence[int] = (-1,), data_type: str = "TYPE_INT32"
) -> ModelConfig:
    config = ModelConfig(name="m", backend="scripted", max_batch_size=8, dynamic_batching={})
    config.input.add(name="IN", data_type=data_type, dims=dims)
    config.output.add(name="OUT", data_type=data_type, dims=dims)
    for key, text in parameters.items():
        config.parameters[key].string_value = text
    return config


class Padded(PaddedRequests):
    """Keeps the counts of the last batch."""

    counts = (0, 0)

    def keep(self, data_count: int, padding_count: int) -> None:
        self.counts = (data_count, padding_count)


def padded_requests(config: ModelConfig) -> Padded:
    padding = read_padding(config)
    assert padding is not None
    made = Padded(config, padding)
    made._record = made.keep
    return made


def request_of(array: Array, datatype: DataType = DataType.INT32, *, answers: Answers | None = None) -> InferRequest:
    header = RequestHeader(model_name="m", inputs=[TensorSpec("IN", datatype, array.shape)])
    arrived_ns = time.monotonic_ns()
    # Answers that are still empty are false.
    answered = Answers() if answers is None else answers
    return InferRequest(header, [to_buffer(array)], answered, arrival_ns=arrived_ns)


def inputs_of(request: InferRequest) -> dict[str, list[object]]:
    pairs = zip(request.header.inputs, request.data, strict=True)
    return {spec.name: to_array(spec, data).tolist() for spec, data in pairs}


def echo(batch: Batch) -> Sequence[InferResponse]:
    """Answer with the first input as it is executed."""
    return [
        InferResponse(
            ResponseHeader("m", "1", [TensorSpec("OUT", r.header.inputs[0].datatype, r.shape_of(0))]), [r.data[0]]
        )
        for r in batch.requests
    ]


def answer_of(response: InferResponse) -> list[object]:
    (spec,) = response.header.outputs
    return list(to_array(spec, response.data[0]).tolist())


IDENTITY = {"pad_input.IN": "multiple_of=4 value=-1", "cut_output.OUT": "IN"}


def test_short_request_is_padded_and_its_response_cut() -> None:
    padded = padded_requests(padded_config(IDENTITY))
    one, other = request_of(np.array([[1, 2, 3]], np.int32)), request_of(np.array([[4, 5], [6, 7]], np.int32))
    headers = [one.header, other.header]
    batch = Batch([one, other], 3)
    padded.prepare(batch)
    assert padded.counts == (7, 5)
    assert inputs_of(one) == {"IN": [[1, 2, 3, -1]]}
    assert inputs_of(other) == {"IN": [[4, 5, -1, -1], [6, 7, -1, -1]]}
    responses = padded.settle(batch, echo(batch))
    assert [answer_of(response) for response in responses] == [[[1, 2, 3]], [[4, 5], [6, 7]]]
    assert [one.header, other.header] == headers


def test_lengths_that_are_padded_alike_are_executed_alike() -> None:
    padded = padded_requests(padded_config(IDENTITY))
    requests = [request_of(np.zeros((1, length), np.int32)) for length in (1, 2, 3, 1)]
    padded.prepare(Batch(requests, 4))
    assert len({id(request.header.layout) for request in requests}) == 1


def test_request_of_full_length_is_unchanged() -> None:
    padded = padded_requests(padded_config(IDENTITY))
    request = request_of(np.array([[1, 2, 3, 4]], np.int32))
    header, data = request.header, request.data[0]
    batch = Batch([request], 1)
    padded.prepare(batch)
    assert padded.counts == (4, 0)
    assert request.header is header
    assert request.data[0] is data
    made = echo(batch)
    assert padded.settle(batch, made)[0] is made[0]


def test_mask_and_lengths_count_client_elements() -> None:
    text = "buckets=4 mask=MASK:TYPE_INT64 lengths=COUNT"
    padded = padded_requests(padded_config({"pad_input.IN": text, "cut_output.OUT": "IN"}))
    short, full = request_of(np.array([[1], [2]], np.int32)), request_of(np.array([[1, 2, 3, 4]], np.int32))
    padded.prepare(Batch([short, full], 3))
    assert inputs_of(short) == {
        "IN": [[1, 0, 0, 0], [2, 0, 0, 0]],
        "MASK": [[1, 0, 0, 0], [1, 0, 0, 0]],
        "COUNT": [1, 1],
    }
    assert inputs_of(full) == {"IN": [[1, 2, 3, 4]], "MASK": [[1, 1, 1, 1]], "COUNT": [4]}
    assert [spec.datatype for spec in short.header.inputs] == [DataType.INT32, DataType.INT64, DataType.INT32]


def test_several_variable_dimensions() -> None:
    text = "multiple_of=2 mask=MASK:TYPE_BOOL lengths=SIZE:TYPE_INT64"
    config = padded_config({"pad_input.IN": text, "cut_output.OUT": "IN"}, dims=(-1, 2, -1))
    padded = padded_requests(config)
    array = np.arange(1, 19, dtype=np.int32).reshape(1, 3, 2, 3)
    request = request_of(array)
    batch = Batch([request], 1)
    padded.prepare(batch)
    found = inputs_of(request)
    assert np.array(found["IN"]).shape == (1, 4, 2, 4)
    assert np.array_equal(np.array(found["IN"])[:, :3, :, :3], array)
    assert np.array(found["IN"]).sum() == array.sum()
    assert found["MASK"] == [[[True, True, True, False]] * 3 + [[False] * 4]]
    assert found["SIZE"] == [[3, 3]]
    assert np.array_equal(answer_of(padded.settle(batch, echo(batch))[0]), array)


@pytest.mark.parametrize("rows", [1, 2])
def test_strings(rows: int) -> None:
    parameters = {"pad_input.IN": "buckets=3 value=[PAD]", "cut_output.OUT": "IN"}
    padded = padded_requests(padded_config(parameters, data_type="TYPE_STRING"))
    request = request_of(np.array([[b"a", b""]] * rows, np.object_), DataType.BYTES)
    batch = Batch([request], rows)
    padded.prepare(batch)
    assert inputs_of(request) == {"IN": [[b"a", b"", b"[PAD]"]] * rows}
    assert answer_of(padded.settle(batch, echo(batch))[0]) == [[b"a", b""]] * rows


def test_nothing_to_send_is_all_padding() -> None:
    padded = padded_requests(padded_config({"pad_input.IN": "buckets=2 lengths=COUNT", "cut_output.OUT": "IN"}))
    request = request_of(np.zeros((1, 0), np.int32))
    batch = Batch([request], 1)
    padded.prepare(batch)
    assert inputs_of(request) == {"IN": [[0, 0]], "COUNT": [0]}
    assert answer_of(padded.settle(batch, echo(batch))[0]) == [[]]


def test_outputs_in_client_memory_are_written_after_cutting() -> None:
    padded = padded_requests(padded_config(IDENTITY))
    request = request_of(np.array([[1, 2, 3]], np.int32))
    wanted = RequestedOutput("OUT", shared_memory=SharedMemoryRegion("region", 0, 12))
    request.header = RequestHeader(model_name="m", inputs=request.header.inputs, outputs=[wanted])
    padded.prepare(Batch([request], 1))
    assert [output.name for output in request.header.outputs] == ["OUT"]
    assert request.header.outputs[0].shared_memory is None


def test_output_of_wrong_length_is_a_clear_error() -> None:
    padded = padded_requests(padded_config(IDENTITY))
    batch = Batch([request_of(np.array([[1, 2, 3]], np.int32))], 1)
    padded.prepare(batch)
    short = InferResponse(ResponseHeader("m", "1", [TensorSpec("OUT", DataType.INT32, (1, 2))]), [bytes(8)])
    with pytest.raises(InferError, match=r"returned output 'OUT' with shape \[1, 2\].*should be \[4\]") as caught:
        padded.settle(batch, [short])
    assert caught.value.code is ErrorCode.INTERNAL


def test_an_answer_that_is_an_error_stays_one() -> None:
    padded = padded_requests(padded_config(IDENTITY))
    batch = Batch([request_of(np.array([[1]], np.int32))], 1)
    padded.prepare(batch)
    failed = InferResponse(ResponseHeader("m", "1", ()), error=internal("no"))
    assert padded.settle(batch, [failed]) == [failed]


def test_batch_is_padded_with_rows_without_responses() -> None:
    padded = padded_requests(padded_config({**IDENTITY, "pad_batch": "4,8"}))
    one, other = request_of(np.array([[1, 2, 3]], np.int32)), request_of(np.array([[4], [5]], np.int32))
    batch = Batch([one, other], 3)
    padded.prepare(batch)
    assert padded.counts == (5, 7 + 4)
    assert [request.shape_of(0) for request in batch.requests] == [(1, 4), (2, 4), (1, 4)]
    assert inputs_of(batch.requests[2]) == {"IN": [[0, 0, 0, 0]]}
    responses = padded.settle(batch, echo(batch))
    assert [answer_of(response) for response in responses] == [[[1, 2, 3]], [[4], [5]]]
    assert batch.requests == [one, other]


def test_a_full_batch_is_left_alone() -> None:
    padded = padded_requests(padded_config({"pad_batch": "1,8"}, dims=(2,)))
    request = request_of(np.array([[1, 2]], np.int32))
    batch = Batch([request], 1)
    padded.prepare(batch)
    assert padded.counts == (2, 0)
    assert list(batch.requests) == [request]
    assert [answer_of(response) for response in padded.settle(batch, echo(batch))] == [[[1, 2]]]


def test_rows_of_strings_that_fill_up_are_empty() -> None:
    padded = padded_requests(padded_config({"pad_batch": "8"}, dims=(2,), data_type="TYPE_STRING"))
    batch = Batch([request_of(np.array([[b"a", b"b"]], np.object_), DataType.BYTES)], 1)
    padded.prepare(batch)
    assert batch.requests[1].shape_of(0) == (7, 2)
    assert inputs_of(batch.requests[1]) == {"IN": [[b"", b""]] * 7}


def test_what_fails_is_not_the_filler() -> None:
    padded = padded_requests(padded_config({"pad_batch": "8"}, dims=(2,)))
    request = request_of(np.array([[1, 2]], np.int32))
    batch = Batch([request], 1)
    padded.prepare(batch)
    padded.restore(batch)
    assert list(batch.requests) == [request]


# --- in a served model ----------------------------------------------------------------------------------------------


def test_a_served_model_pads_cuts_and_counts(serve: Serve, loop: StepLoop) -> None:
    executed: list[tuple[int, ...]] = []

    def script(batch: Batch) -> Sequence[InferResponse]:
        executed.extend(request.shape_of(0) for request in batch.requests)
        return echo(batch)

    answers = Answers()
    model = serve([ScriptedInstance(script)], padded_config(IDENTITY))
    for length in (1, 2, 5):
        model.submit(request_of(np.arange(length, dtype=np.int32).reshape(1, length), answers=answers))
    loop.run_until(lambda: len(answers) == 3)
    assert sorted(executed) == [(1, 4), (1, 4), (1, 8)]
    assert sorted(answer_of(response) for _, response in answers.received) == [[[0]], [[0, 1]], [[0, 1, 2, 3, 4]]]
    assert model.statistics.snapshot().padding == {"data": 8, "padding": 8}


def test_failed_batch_restores_its_requests(serve: Serve, loop: StepLoop) -> None:
    def fail(batch: Batch) -> Sequence[InferResponse]:
        raise RuntimeError("boom")

    answers = Answers()
    model = serve([ScriptedInstance(fail)], padded_config(IDENTITY))
    request = request_of(np.array([[1, 2]], np.int32), answers=answers)
    header = request.header
    model.submit(request)
    loop.run_until(lambda: len(answers) == 1)
    error = answers.received[0][1].error
    assert error is not None
    assert "boom" in error.message
    assert request.header is header


def test_a_served_model_fills_its_batches_up(serve: Serve, loop: StepLoop) -> None:
    executed: list[int] = []

    def script(batch: Batch) -> Sequence[InferResponse]:
        executed.append(sum(request.shape_of(0)[0] for request in batch.requests))
        return echo(batch)

    answers = Answers()
    model = serve([ScriptedInstance(script)], padded_config({"pad_batch": "8"}, dims=(2,)))
    for number in range(3):
        model.submit(request_of(np.array([[number, number]], np.int32), answers=answers))
    loop.run_until(lambda: len(answers) == 3)
    assert set(executed) == {8}
    assert sorted(answer_of(response) for _, response in answers.received) == [[[n, n]] for n in range(3)]
    assert model.statistics.snapshot().inference_count == 3


def test_an_output_of_another_length_fails_its_requests(serve: Serve, loop: StepLoop) -> None:
    def shorten(batch: Batch) -> Sequence[InferResponse]:
        header = ResponseHeader("m", "1", [TensorSpec("OUT", DataType.INT32, (1, 1))])
        return [InferResponse(header, [bytes(4)]) for _ in batch.requests]

    answers = Answers()
    model = serve([ScriptedInstance(shorten)], padded_config(IDENTITY))
    model.submit(request_of(np.array([[1, 2]], np.int32), answers=answers))
    loop.run_until(lambda: len(answers) == 1)
    error = answers.received[0][1].error
    assert error is not None
    assert "cut as input 'IN'" in error.message


@pytest.mark.parametrize("has_begun", [False, True])
def test_dead_workers_leave_padded_requests_their_data(serve: Serve, loop: StepLoop, has_begun: bool) -> None:
    def script(batch: Batch) -> Sequence[InferResponse]:
        if len(instance.batches) > (2 if has_begun else 1):
            return echo(batch)
        error = InstanceDiedError(ErrorCode.UNAVAILABLE, "the worker died", reason=FailureReason.BACKEND)
        error.has_begun = has_begun
        raise error

    instance, answers = ScriptedInstance(script), Answers()
    model = serve([instance], padded_config(IDENTITY))
    numbers = np.array([[1, 2, 3]], np.int32)
    model.submit(request_of(numbers, answers=answers))
    loop.run_until(lambda: len(answers) == 1)
    if not has_begun:  # it was queued again
        assert answer_of(answers.received[0][1]) == [[1, 2, 3]]
        return
    model.submit(request_of(numbers, answers=answers))
    loop.run_until(lambda: len(answers) == 2)
    with pytest.raises(InferError, match="is rejected: each time"):
        model.submit(request_of(numbers, answers=answers))
