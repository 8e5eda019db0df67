"""Models as naiad serves them: scheduler, batching and backend in this process, without ports."""

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from naiad.core.datatype import DataType, from_numpy
from naiad.core.errors import InferError
from naiad.core.request import InferRequest, RequestHeader
from naiad.core.response import InferResponse
from naiad.core.tensor import Array, TensorSpec, to_array, to_buffer
from naiad.server.embedded import EmbeddedServer
from naiad.tools.optimize.correctness.runner import Arrays, RunnerError

_Result = TypeVar("_Result")


class ServedRunner:
    """A model of a repository. `close` unloads it."""

    def __init__(self, repository: Path, model: str, *, may_unpickle: bool = False) -> None:
        """Load the model. Raises RunnerError if a server would refuse it."""
        self._model = model
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="naiad-runner", daemon=True)
        self._thread.start()
        self._server = EmbeddedServer(str(repository), [model], may_unpickle=may_unpickle)
        try:
            self._await(self._server.start())
        except BaseException:
            self._stop()
            raise
        self.max_batch = self._max_batch()
        """The most rows of a request; 0 if there is no limit."""
        metadata = self._server.model_metadata(model)
        self.inputs: Sequence[TensorSpec] = metadata.inputs
        self.outputs: Sequence[TensorSpec] = metadata.outputs

    def infer(self, inputs: Arrays) -> Arrays:
        """Execute one request."""
        return self._await(self._infer(inputs))

    def infer_concurrently(self, requests: Sequence[Arrays]) -> Sequence[Arrays]:
        """Submit all requests before the first answer; the scheduler may make batches of them."""
        return self._await(self._infer_all(requests))

    def close(self) -> None:
        """Unload the model."""
        self._await(self._server.close())
        self._stop()

    def _max_batch(self) -> int:
        limit: int = self._server.model_config(self._model).max_batch_size
        if limit:
            return limit
        rows = [spec.shape[0] for spec in self._server.model_metadata(self._model).inputs if spec.shape]
        return max(0, *rows) if rows else 0

    async def _infer_all(self, requests: Sequence[Arrays]) -> Sequence[Arrays]:
        return await asyncio.gather(*(self._infer(inputs) for inputs in requests))

    async def _infer(self, inputs: Arrays) -> Arrays:
        answer: asyncio.Future[InferResponse] = self._loop.create_future()

        def respond(request: InferRequest, response: InferResponse) -> None:
            if not answer.done():
                answer.set_result(response)

        specs = [TensorSpec(name, _datatype(name, array), array.shape) for name, array in inputs.items()]
        header = RequestHeader(model_name=self._model, inputs=specs)
        self._server.submit(InferRequest(header, [to_buffer(array) for array in inputs.values()], respond))
        response = await answer
        if response.error is not None:
            raise response.error
        pairs = zip(response.header.outputs, response.data, strict=True)
        return {spec.name: np.array(to_array(spec, data)) for spec, data in pairs}

    def _await(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except InferError as error:
            raise RunnerError(error.message.strip()) from error

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _datatype(name: str, array: Array) -> DataType:
    datatype = DataType.BYTES if array.dtype.kind in "OSU" else from_numpy(array.dtype)
    if datatype is None:
        raise RunnerError(f"input '{name}' has dtype {array.dtype}, which no tensor of a server has")
    return datatype
