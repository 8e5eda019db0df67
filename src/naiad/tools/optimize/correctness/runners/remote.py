"""A model on a running server, as a runner: naiad, or any other server of KServe v2."""

from naiad.client import Client
from naiad.tools.optimize.correctness.runners.event_loop_runner import EventLoopRunner
from naiad.tools.optimize.correctness.runners.model_runner import Arrays


class RemoteRunner(EventLoopRunner):
    """Sends requests to a server. `close` closes the connections."""

    def __init__(self, url: str, model: str, version: str = "", *, call_s: float = 60.0) -> None:
        """Ask for the model's tensors. Raises RunnerError if the server or the model does not answer."""
        super().__init__("naiad-remote-runner")
        self._model, self._version = model, version
        try:
            self._client = self._await(self._open(url, call_s))
            metadata = self._await(self._client.model_metadata(model, version))
            config = self._await(self._client.model_config(model, version))
        except BaseException:
            self._loop_thread.close()
            raise
        self.inputs, self.outputs = metadata.inputs, metadata.outputs
        self.max_batch = int(config.max_batch_size)
        """The most rows of a request; 0 if there is no limit."""

    def close(self) -> None:
        """Close the connections."""
        self._loop_thread.call_soon(self._client.close)
        self._loop_thread.close()

    async def _open(self, url: str, call_s: float) -> Client:
        return Client(url, timeout_s=call_s)

    async def _infer(self, inputs: Arrays) -> Arrays:
        found = await self._client.infer(self._model, inputs, version=self._version)
        return {name: found[name] for name in found}
