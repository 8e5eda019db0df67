"""Rows as requests: sizes, order, failures of rows and of servers."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from naiad.core.datatype import DataType
from naiad.core.errors import ErrorCode, InferError, not_found, unavailable
from naiad.tools.predict import row_requests as requests_module
from naiad.tools.predict.row_requests import ChunkRequests
from naiad.tools.predict.rows.chunk import Chunk, FileRows
from naiad.tools.predict.rows.row_outputs import to_block
from naiad.tools.predict.rows.row_tensors import to_chunk
from support.batch_parts import Doubling, Tensors, metadata, signature
from support.uvloop_run import run


def executed(model: Doubling, rows: int, *, timeout_s: float = 5.0, shared: bool = True, **fields) -> Chunk:
    """Return a chunk with the rows 0, 1, 2 ... whose requests have ended. Raises their error."""
    described = signature(model.inputs, model.outputs, max_batch_size=model.max_batch_size, **fields)
    object.__setattr__(described, "may_share_batches", shared)
    values = np.arange(rows, dtype=np.float32).repeat(2).reshape(rows, 2)
    chunk = to_chunk(FileRows("f", 0, rows, {"X": values}), described.inputs)

    async def body() -> None:
        sender = ChunkRequests(model, described, timeout_s)
        async with asyncio.TaskGroup() as tasks:
            await sender.start(chunk, tasks)

    run(body)
    return chunk


def doubled(chunk: Chunk) -> list[float]:
    block = to_block(chunk, 0, ["Y", "NAME"])
    found = block.columns["Y"].whole
    return [] if found is None else [row[0] for row in found.tolist()]


def test_rows_go_in_requests_of_the_batch_size() -> None:
    model = Doubling()
    assert doubled(executed(model, 10)) == [2 * row for row in range(10)]
    assert model.requests == [4, 4, 2]
    model = Doubling()
    executed(model, 10, rows_per_request=3)
    assert model.requests == [3, 3, 3, 1]


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("concurrency", [1, 3])
def test_bad_rows_fail_alone(shared: bool, concurrency: int) -> None:
    chunk = executed(Doubling(bad=[1, 2, 7]), 10, shared=shared, concurrency=concurrency)
    assert chunk.failures == dict.fromkeys((1, 2, 7), "the row is bad")
    assert doubled(chunk) == [0 if row in (1, 2, 7) else 2 * row for row in range(10)]


def test_bad_rows_of_other_requests_do_no_harm() -> None:
    class Shared(Doubling):
        """Fails requests that are outstanding together with a bad one, as one batch does."""

        outstanding = 0

        async def infer(self, inputs, outputs):
            self.outstanding += 1
            try:
                await asyncio.sleep(0.001)
                found = await super().infer(inputs, outputs)
                if self.outstanding > 1:
                    raise InferError(ErrorCode.INTERNAL, "the batch is bad")
                return found
            finally:
                self.outstanding -= 1

    chunk = executed(Shared(bad=[3]), 12, concurrency=4)
    assert chunk.failures == {3: "the row is bad"}
    assert [row for row in doubled(chunk) if row] == [2 * row for row in range(1, 12) if row != 3]


def test_an_unavailable_server_is_tried_again(monkeypatch) -> None:
    monkeypatch.setattr(requests_module, "_FIRST_DELAY_S", 0.0)
    model = Doubling()
    model.failures = [unavailable("the queue is full"), unavailable("the queue is full")]
    assert doubled(executed(model, 4, concurrency=1)) == [0, 2, 4, 6]
    assert model.requests == [4, 4, 4]


@pytest.mark.parametrize(
    "code",
    [ErrorCode.UNAVAILABLE, ErrorCode.DEADLINE_EXCEEDED, ErrorCode.PERMISSION_DENIED, ErrorCode.CANCELLED],
)
def test_failures_of_the_server_end_the_job(code: ErrorCode) -> None:
    model = Doubling()
    model.failures = [InferError(code, "no") for _ in range(9)]
    with pytest.raises(ExceptionGroup) as caught:
        executed(model, 4, timeout_s=0.01)
    assert {error.code for error in caught.value.exceptions} == {code}


def test_a_model_that_is_gone_ends_the_job() -> None:
    class Gone(Doubling):
        async def metadata(self):
            raise not_found("unknown model")

    model = Gone()
    model.failures = [not_found("unknown model")]
    with pytest.raises(ExceptionGroup) as caught:
        executed(model, 4)
    assert caught.value.exceptions[0].code is ErrorCode.NOT_FOUND
    model = Doubling()
    model.failures = [not_found("unknown user")]
    assert not executed(model, 4).failures


def test_a_request_without_response_ends_the_job() -> None:
    class Silent(Doubling):
        async def infer(self, inputs, outputs):
            await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup) as caught:
        executed(Silent(), 1, timeout_s=0.01)
    assert caught.value.exceptions[0].code is ErrorCode.DEADLINE_EXCEEDED
    assert "--timeout" in caught.value.exceptions[0].message


def test_outputs_of_the_wrong_length_fail(tmp_path: Path) -> None:
    class Short(Doubling):
        async def infer(self, inputs, outputs):
            found = await super().infer(inputs, outputs)
            return {name: array[:0] for name, array in found.items()}

    chunk = executed(Short(), 2)
    assert "for 1 rows; expected [1, ...]" in chunk.failures[0]


def test_outputs_of_another_shape_fail() -> None:
    class Wide(Doubling):
        async def infer(self, inputs, outputs):
            found = await super().infer(inputs, outputs)
            return {name: np.repeat(array, 2, 1) for name, array in found.items()}

    chunk = executed(Wide(), 2)
    assert set(chunk.failures) == {0, 1}
    assert "output 'Y' has shape [4] in a row, and the model declares [2]" in chunk.failures[0]


@pytest.mark.parametrize(
    ("outputs", "text"),
    [
        ({"Y": (DataType.FP32, (3,))}, "output 'Y' was FP32 [-1, 2] and is FP32 [-1, 3]"),
        ({"Z": (DataType.FP32, (2,))}, "output 'Y' is gone"),
    ],
)
def test_a_reload_with_other_tensors_ends_the_job(outputs: Tensors, text: str) -> None:
    class Reloaded(Doubling):
        async def metadata(self):
            return metadata(self.inputs, outputs)[0]

    with pytest.raises(ExceptionGroup) as caught:
        executed(Reloaded(bad=[1]), 4)
    assert text in caught.value.exceptions[0].message


def test_models_without_batches_get_single_rows() -> None:
    class Single(Doubling):
        async def infer(self, inputs, outputs):
            assert inputs["X"].shape == (2,)
            found = await super().infer({"X": inputs["X"][None]}, outputs)
            return {name: array[0] for name, array in found.items()}

    model = Single(max_batch_size=0)
    assert doubled(executed(model, 3)) == [0, 2, 4]
    assert model.requests == [1, 1, 1]


def test_concurrency_is_a_limit() -> None:
    class Counting(Doubling):
        now = most = 0

        async def infer(self, inputs, outputs):
            self.now += 1
            self.most = max(self.most, self.now)
            await asyncio.sleep(0)
            self.now -= 1
            return await super().infer(inputs, outputs)

    model = Counting()
    executed(model, 40, concurrency=3)
    assert model.most == 3
