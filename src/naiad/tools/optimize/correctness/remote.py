"""A model on a running server, as a runner: naiad, or any other server of KServe v2."""

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from naiad.client import Client
from naiad.core.errors import InferError
from naiad.tools.optimize.correctness.runner import Arrays, RunnerError

_Result = TypeVar("_Result")


class RemoteRunner:
    """Sends requests to a server. `close` closes the connections."""

    def __init__(self, url: str, model: str, version: str = "", *, call_s: float = 60.0) -> None:
        """Ask for the model's tensors. Raises RunnerError if the server or the model does not answer."""
        self._model, self._version = model, version
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="naiad-remote-runner", daemon=True)
        self._thread.start()
        try:
            self._client = self._await(self._open(url, call_s))
            metadata = self._await(self._client.model_metadata(model, version))
            config = self._await(self._client.model_config(model, version))
        except BaseException:
            self._stop()
            raise
        self.inputs, self.outputs = metadata.inputs, metadata.outputs
        self.max_batch = int(config.max_batch_size)
        """The most rows of a request; 0 if there is no limit."""

    def infer(self, inputs: Arrays) -> Arrays:
        """Execute one request."""
        return self._await(self._infer(inputs))

    def infer_concurrently(self, requests: Sequence[Arrays]) -> Sequence[Arrays]:
        """Execute requests at the same time."""
        return self._await(self._infer_all(requests))

    def close(self) -> None:
        """Close the connections."""
        self._loop.call_soon_threadsafe(self._client.close)
        self._stop()

    async def _open(self, url: str, call_s: float) -> Client:
        return Client(url, timeout_s=call_s)

    async def _infer(self, inputs: Arrays) -> Arrays:
        found = await self._client.infer(self._model, inputs, version=self._version)
        return {name: found[name] for name in found}

    async def _infer_all(self, requests: Sequence[Arrays]) -> Sequence[Arrays]:
        return await asyncio.gather(*(self._infer(each) for each in requests))

    def _await(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except InferError as error:
            raise RunnerError(error.message.strip()) from error

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
