"""No failure ends a runner: after any exception of an instance, or of the runner itself, requests are answered."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from contract.test_instance_runners import Anywhere, Blocking, Remote, echo, make, run
from naiad.core.batch import Batch
from naiad.core.response import InferResponse
from naiad.engine.serving.served_model import ServedModel
from support.engine_parts import Answers
from support.waiting import until


class Unreadable(BaseException):
    """An exception whose text cannot be read either."""

    def __str__(self) -> str:
        raise KeyboardInterrupt


RAISED = [
    KeyboardInterrupt("k"),
    SystemExit(3),
    GeneratorExit("g"),
    asyncio.CancelledError("c"),
    MemoryError("m"),
    RecursionError("r"),
    StopIteration("s"),
    Unreadable(),
]


@pytest.fixture(params=[Blocking, Anywhere, Remote])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(params=[1, 1 << 18], ids=["small", "large"])
def rows(request: pytest.FixtureRequest) -> Any:
    """A thread sends a large batch to a worker."""
    return request.param


async def _outcome(model: ServedModel, rows: int = 1) -> str:
    """Return the error text of one request, empty for success."""
    answers = Answers()
    model.submit(make(answers, "r", rows))
    await until(lambda: len(answers) == 1)
    error = answers.received[0][1].error
    return "" if error is None else error.message


@pytest.mark.parametrize("raised", RAISED, ids=lambda raised: type(raised).__name__)
def test_any_exception_of_an_execution_fails_its_request(kind: Any, rows: int, raised: BaseException) -> None:
    fails = [True, True, False]

    def script(batch: Batch) -> Sequence[InferResponse]:
        if fails.pop(0):
            raise raised
        return echo(batch)

    async def steps(model: ServedModel) -> None:
        for _ in range(2):
            assert type(raised).__name__ in await _outcome(model, rows)
        assert not await _outcome(model, rows)

    run(steps, [kind(script)], max_batch_size=1 << 18)


@pytest.mark.parametrize(
    "raised", [KeyboardInterrupt("k"), MemoryError("m")], ids=lambda raised: type(raised).__name__
)
@pytest.mark.parametrize("part", ["record_batch", "record_batch_failure"])
def test_failing_runner_answers_and_goes_on(
    kind: Any, rows: int, raised: BaseException, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A defect after an execution: the request of the batch has an error, and the model is not ready for a moment."""
    fails_itself = part == "record_batch_failure"

    def script(batch: Batch) -> Sequence[InferResponse]:
        if fails_itself and original:
            raise ValueError("of the model")
        return echo(batch)

    original: list[Any] = []

    async def steps(model: ServedModel) -> None:
        assert not await _outcome(model, rows)
        statistics = model.statistics
        original.append(getattr(statistics, part))

        def fail(*_: Any, **__: Any) -> None:
            monkeypatch.setattr(statistics, part, original.pop())
            raise raised

        monkeypatch.setattr(statistics, part, fail)
        # On the loop a batch is counted after its responses were sent.
        await _outcome(model, rows)
        await until(lambda: not original)
        await until(lambda: not model.health)
        assert not await _outcome(model, rows)
        assert model.in_flight_count == 0

    run(steps, [kind(script)], max_batch_size=1 << 18)


def test_model_whose_runner_fails_is_not_ready(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(model: ServedModel) -> None:
        assert not await _outcome(model)
        source = model._dispatcher._source
        take, is_broken = source.take, True

        def fail(*arguments: Any) -> Any:
            if is_broken:
                raise KeyboardInterrupt
            return take(*arguments)

        monkeypatch.setattr(source, "take", fail)
        answers = Answers()
        model.submit(make(answers, "waits"))
        await until(lambda: "KeyboardInterrupt" in model.health)
        await until(lambda: len(answers) == 1)  # refused, since no instance can execute it
        assert answers.received[0][1].error is not None
        is_broken = False
        await until(lambda: not model.health)
        assert not await _outcome(model)

    run(steps, [kind()])
