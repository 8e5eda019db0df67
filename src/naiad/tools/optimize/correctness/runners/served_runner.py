"""Models as naiad serves them: scheduler, batching and backend in this process, without ports."""

from pathlib import Path

import numpy as np

from naiad.server.embedded import EmbeddedServer
from naiad.tools.optimize.correctness.runners.event_loop_runner import EventLoopRunner
from naiad.tools.optimize.correctness.runners.model_runner import Arrays


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
        self.inputs = metadata.inputs
        self.outputs = metadata.outputs

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
        found = await self._server.infer(self._model, inputs)
        return {name: np.array(found[name]) for name in found}
