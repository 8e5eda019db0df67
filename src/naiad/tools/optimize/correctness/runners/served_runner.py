"""Models as naiad serves them: scheduler, batching and backend in this process, without ports."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from naiad.core.datatype import DataType, conversion_hint, from_numpy
from naiad.core.request import InferRequest, RequestHeader
from naiad.core.response import InferResponse
from naiad.core.tensor import Array, TensorSpec, to_array, to_buffer
from naiad.server.embedded import EmbeddedServer
from naiad.tools.optimize.correctness.runners.event_loop_runner import EventLoopRunner
from naiad.tools.optimize.correctness.runners.model_runner import Arrays, RunnerError


class ServedRunner(EventLoopRunner):
    """A model of a repository. `close` unloads it."""

    def __init__(self, repository: Path, model: str, *, may_unpickle: bool = False) -> None:
        """Load the model. Raises RunnerError if a server would refuse it."""
        super().__init__("naiad-runner")
        self._model = model
        self._server = EmbeddedServer(str(repository), [model], may_unpickle=may_unpickle)
        try:
            self._await(self._server.start())
        except BaseException:
            self._loop_thread.close()
            raise
        self.max_batch = self._max_batch()
        metadata = self._server.model_metadata(model)
        self.inputs: Sequence[TensorSpec] = metadata.inputs
        self.outputs: Sequence[TensorSpec] = metadata.outputs

    def close(self) -> None:
        """Unload the model."""
        self._await(self._server.close())
        self._loop_thread.close()

    def _max_batch(self) -> int:
        limit: int = self._server.model_config(self._model).max_batch_size
        if limit:
            return limit
        rows = [spec.shape[0] for spec in self._server.model_metadata(self._model).inputs if spec.shape]
        return max(0, *rows) if rows else 0

    async def _infer(self, inputs: Arrays) -> Arrays:
        answer: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()

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


def _datatype(name: str, array: Array) -> DataType:
    datatype = from_numpy(array.dtype)
    if datatype is None:
        hint = conversion_hint(array.dtype)
        raise RunnerError(f"input '{name}' has dtype {array.dtype}, which no tensor of a server has: {hint}")
    return datatype
