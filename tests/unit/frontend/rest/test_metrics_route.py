"""The metrics port, rendering in slices."""

from collections.abc import Callable, Generator, Sequence

import pytest

from naiad.frontend.rest.metrics_port import in_slices, metrics_route


class Exchange:
    method, path, headers = "GET", "/metrics", {}

    def __init__(self) -> None:
        self.answers: list[tuple[int, bytes]] = []

    def respond(self, status: int, headers: object, parts: Sequence[bytes]) -> None:
        self.answers.append((status, b"".join(parts)))


def test_the_loop_gets_its_turn_between_slices() -> None:
    def slices() -> Generator[None, None, Sequence[bytes]]:
        yield
        yield
        return [b"a 1\n", b"b 2\n"]

    waiting: list[Callable[[], object]] = []
    context = Exchange()
    metrics_route(in_slices(slices, waiting.append))(context)  # type: ignore[arg-type]
    turns = 0
    while waiting:
        assert context.answers == []
        waiting.pop(0)()
        turns += 1
    assert turns == 2
    assert context.answers == [(200, b"a 1\nb 2\n")]


def test_a_failure_in_a_later_slice_is_answered(caplog: pytest.LogCaptureFixture) -> None:
    def slices() -> Generator[None, None, Sequence[bytes]]:
        yield
        raise ValueError("unreadable")

    waiting: list[Callable[[], object]] = []
    context = Exchange()
    metrics_route(in_slices(slices, waiting.append))(context)  # type: ignore[arg-type]
    waiting.pop()()
    ((status, body),) = context.answers
    assert (status, waiting) == (500, [])
    assert b"internal error" in body
    assert "rendering the metrics failed" in caplog.text
