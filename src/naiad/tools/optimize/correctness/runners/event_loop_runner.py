"""A model that is asked on an event loop, as a runner: what those on a server and those in this process share."""

import abc
import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from naiad.client.loop_thread import LoopThread
from naiad.core.errors import InferError
from naiad.tools.optimize.correctness.runners.model_runner import Arrays, Runner, RunnerError

_Result = TypeVar("_Result")


class EventLoopRunner(Runner):
    """Asks a model on an event loop in a thread of its own."""

    def __init__(self, name: str) -> None:
        self._loop_thread = LoopThread(name)

    def infer(self, inputs: Arrays) -> Arrays:
        """Execute one request."""
        return self._await(self._infer(inputs))

    def infer_concurrently(self, requests: Sequence[Arrays]) -> Sequence[Arrays]:
        """Send all requests before the first answer; the scheduler may make batches of them."""
        return self._await(self._infer_all(requests))

    @abc.abstractmethod
    async def _infer(self, inputs: Arrays) -> Arrays:
        """Execute one request."""

    async def _infer_all(self, requests: Sequence[Arrays]) -> Sequence[Arrays]:
        return await asyncio.gather(*(self._infer(each) for each in requests))

    def _await(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        try:
            return self._loop_thread.run(work)
        except InferError as error:
            raise RunnerError(error.message.strip()) from error
