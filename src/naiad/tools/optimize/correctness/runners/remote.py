"""A model on a running server, as a runner: naiad, or any other server of KServe v2."""

from collections.abc import Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from naiad.client import Client, ConnectionFailedError, InferError
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import ErrorCode
from naiad.tools.optimize.correctness.runners.event_loop_runner import EventLoopRunner
from naiad.tools.optimize.correctness.runners.model_runner import Arrays, RunnerError

if TYPE_CHECKING:
    from naiad.core.tensor import TensorSpec

_Result = TypeVar("_Result")


class RemoteModelLostError(Exception):
    """There is no connection to the server any more: what it would have answered is not known."""


class RemoteRunner(EventLoopRunner):
    """Sends requests to a server. `close` closes the connections.

    Methods raise RemoteModelLostError where the server does not answer any more.
    """

    def __init__(
        self,
        url: str,
        model: str,
        version: str = "",
        *,
        headers: Mapping[str, str] | None = None,
        call_s: float = 60.0,
    ) -> None:
        """Ask for the model's tensors.

        Raises RunnerError if the server or the model does not answer, or if the model does not answer each request
        alone with one response.
        """
        super().__init__("naiad-remote-runner")
        self._url, self._model, self._version = url, model, version
        try:
            self._client = self._await(self._open(url, headers, call_s))
            metadata = self._await(self._client.model_metadata(model, version))
            config = self._config()
            _check_kind(config, f"{url}/{model}")
        except RemoteModelLostError as error:
            self._loop_thread.close()
            raise RunnerError(str(error)) from error
        except BaseException:
            self._loop_thread.close()
            raise
        self.inputs: Sequence[TensorSpec] = metadata.inputs
        self.outputs: Sequence[TensorSpec] = metadata.outputs
        self.optional_inputs = frozenset(each.name for each in config.input if each.optional)
        # Shapes of a model without a batch limit may have a first dimension that does not vary.
        rows = [spec.shape[0] for spec in metadata.inputs if spec.shape]
        self.max_batch = int(config.max_batch_size) or max(0, *rows, 0)

    def close(self) -> None:
        """Close the connections."""
        self._loop_thread.call_soon(self._client.close)
        self._loop_thread.close()

    async def _open(self, url: str, headers: Mapping[str, str] | None, call_s: float) -> Client:
        return Client(url, headers=headers, timeout_s=call_s)

    def _config(self) -> ModelConfig:
        """Return the configuration; an empty one from servers that have none: it is an extension of KServe v2."""
        try:
            return self._loop_thread.run(self._client.model_config(self._model, self._version))
        except ConnectionFailedError as error:
            raise RunnerError(error.message) from error
        except InferError as error:
            if error.code in (ErrorCode.NOT_FOUND, ErrorCode.UNSUPPORTED, ErrorCode.INVALID_ARG):
                return ModelConfig()
            raise RunnerError(error.message) from error

    async def _infer(self, inputs: Arrays) -> Arrays:
        found = await self._client.infer(self._model, inputs, version=self._version)
        return {name: found[name] for name in found}

    def _await(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        try:
            return super()._await(work)
        except RunnerError as error:
            if isinstance(error.__cause__, ConnectionFailedError):
                raise RemoteModelLostError(f"{self._url}: {error}") from error
            raise


def _check_kind(config: ModelConfig, place: str) -> None:
    if config.model_transaction_policy.decoupled:
        raise RunnerError(f"{place} is decoupled, with any number of responses; compare models with one response")
    if config.HasField("sequence_batching"):
        raise RunnerError(
            f"{place} takes sequences, whose answers depend on earlier requests; compare models without them"
        )
