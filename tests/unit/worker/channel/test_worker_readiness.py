"""What a model says of its own readiness, and what the server makes of it."""

import os
import time
from collections.abc import Iterator

import pytest

from naiad.worker.channel.flags_page import READY_LIMIT_S, FlagsPage, create_board
from naiad.worker.model_class import Readiness

LIMIT_NS = int(READY_LIMIT_S * 1e9)


@pytest.fixture
def board() -> Iterator[FlagsPage]:
    made, descriptor = create_board()
    os.close(descriptor)
    yield made
    made.close()


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr("naiad.worker.api.logger._sink", lambda level, file, line, text: lines.append(text))
    return lines


class Model:
    answer: object = True

    def is_ready(self) -> object:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class AsyncModel(Model):
    async def is_ready(self) -> object:  # type: ignore[override]
        return self.answer


@pytest.mark.parametrize("kind", [Model, AsyncModel])
def test_the_answer_is_on_the_board(board: FlagsPage, log: list[str], kind: type[Model]) -> None:
    model = kind()
    readiness = Readiness(model, board)
    for answer in (True, False, False, True):
        model.answer = answer
        readiness.ask()
        assert board.says_ready(time.monotonic_ns()) is answer
    assert log == ["the model is not ready: is_ready returned False"], "once, not with every answer"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (RuntimeError("no database"), "is_ready has raised RuntimeError: no database"),
        (None, "not NoneType"),
        (1, "not int"),
    ],
)
def test_what_is_no_answer_is_not_ready(board: FlagsPage, log: list[str], answer: object, words: str) -> None:
    model = Model()
    model.answer = answer
    Readiness(model, board).ask()
    assert not board.says_ready(time.monotonic_ns())
    assert words in log[0]


def test_slow_readiness_check_means_not_ready(board: FlagsPage) -> None:
    board.begin_question()
    asked_ns = time.monotonic_ns()
    assert board.says_ready(asked_ns + LIMIT_NS - 1_000_000_000)
    assert not board.says_ready(asked_ns + LIMIT_NS + 1)
    board.say_ready(True)
    assert board.says_ready(asked_ns + LIMIT_NS + 1)


def test_a_model_without_the_method_is_ready(board: FlagsPage) -> None:
    Readiness(object(), board).start()
    assert board.says_ready(time.monotonic_ns())
