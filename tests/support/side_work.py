"""Work for side threads that is done when a test says so."""

from typing import Any

from naiad.frontend.side_threads import run_here


class Aside:
    """Keeps the work until the test says that a thread does it."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Any, ...]] = []

    def __call__(self, *work: Any) -> None:
        self.waiting.append(work)

    def go(self) -> None:
        run_here(*self.waiting.pop(0))
