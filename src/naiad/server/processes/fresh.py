"""Answers that are as new as each who asks: equal questions at the same time are asked once."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

_Q = TypeVar("_Q", bound=Hashable)
_A = TypeVar("_A")


class FreshAnswers(Generic[_Q, _A]):
    """Asks, and joins those who ask the same.

    While a question is being asked further callers wait for the next time it is: what they want to know may have
    changed since. So each question is asked once at a time, and a flood of callers costs no flood of questions.
    """

    def __init__(self, ask: Callable[[_Q], Awaitable[_A]]) -> None:
        self._ask = ask
        self._asking: dict[_Q, asyncio.Task[_A]] = {}
        self._next: dict[_Q, asyncio.Task[_A]] = {}

    async def get(self, question: _Q) -> _A:
        """Return an answer that was begun after this call. Raises what asking raises."""
        task = self._next.get(question)
        if task is None:
            before = self._asking.get(question)
            task = asyncio.get_running_loop().create_task(self._run(question, before))
            self._next[question] = task
        # One caller that gives up must not take the answer from the others.
        return await asyncio.shield(task)

    async def _run(self, question: _Q, before: "asyncio.Task[_A] | None") -> _A:
        if before is not None:
            await asyncio.wait([before])
        task = self._asking[question] = self._next.pop(question)
        try:
            return await self._ask(question)
        finally:
            if self._asking.get(question) is task:
                del self._asking[question]
