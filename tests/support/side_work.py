"""Work for side threads that is done when a test says so."""

from typing import Any

from naiad.frontend.long_work.thread_pool import run_at_once


class Aside:
    """Keeps the work until the test says that a thread does it."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Any, ...]] = []

    def __call__(self, *work: Any) -> None:
        self.waiting.append(work)

    def go(self) -> None:
        run_at_once(*self.waiting.pop(0))
