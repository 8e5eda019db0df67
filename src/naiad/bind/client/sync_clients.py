"""Blocking clients. They may be used by several threads."""

import threading
from collections.abc import Coroutine, Iterator, Mapping
from typing import Any, TypeVar

from naiad.bind.client.client_session import Arguments
from naiad.bind.client.exceptions import PyTritonClientClosedError, PyTritonClientInferenceServerError
from naiad.bind.client.inference_calls import R, SessionCalls
from naiad.bind.model_config.triton_model_config import TritonModelConfig
from naiad.client.loop_thread import LoopClient
from naiad.core.tensor import Array

_T = TypeVar("_T")


class _BlockingCalls(SessionCalls[R], LoopClient):
    """The part that does not depend on the number of responses."""

    def _opened(self) -> None:
        LoopClient.__init__(self, self._session.options.model_name, self._session.close)
        if not self._lazy_init:
            try:
                self._run(self._session.config())
            except BaseException:
                self.close()
                raise

    def wait_for_server(self, timeout_s: float) -> None:
        """Wait until the server is ready. Raises PyTritonClientTimeoutError."""
        self._run(self._session.wait_for_server(timeout_s))

    def wait_for_model(self, timeout_s: float) -> None:
        """Wait until the model is ready. Raises PyTritonClientTimeoutError."""
        self._run(self._session.wait_for_model(timeout_s))

    @property
    def model_config(self) -> TritonModelConfig:
        """The configuration of the model; waits for the model when it is first asked for."""
        return self._run(self._session.config())

    @property
    def is_batching_supported(self) -> bool:
        """Whether the model batches."""
        return self.model_config.batching

    def load_model(self, config: str | None = None, files: Mapping[str, bytes] | None = None) -> None:
        """Load the model; `config` is JSON that replaces its configuration, `files` are files of the model."""
        self._run(self._session.load(config or "", files))

    def unload_model(self) -> None:
        """Unload the model."""
        self._run(self._session.unload())

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        try:
            return self._loop_thread.run(work)
        except RuntimeError:
            work.close()
            if self._loop_thread.is_open:
                raise
            raise PyTritonClientClosedError("ModelClient is closed") from None


class ModelClient(_BlockingCalls[dict[str, Array]]):
    """A blocking client of one model. Calls return the outputs by name.

    with ModelClient("localhost", "Linear") as client:
        outputs = client.infer_sample(np.array([1, 2], np.float32))
    """

    def _infer(self, arguments: Arguments) -> dict[str, Array]:
        return self._run(self._session.infer(arguments))


class DecoupledModelClient(_BlockingCalls[Iterator[dict[str, Array]]]):
    """A blocking client of a decoupled model: `for outputs in client.infer_sample(prompt)`. gRPC only.

    One request at a time; calls return an iterator of the outputs of each response. A loop that is left early cancels
    the request.
    """

    def _opened(self) -> None:
        self._in_use = threading.Lock()
        self._session.check_streams(type(self).__name__)
        super()._opened()

    def _infer(self, arguments: Arguments) -> Iterator[dict[str, Array]]:
        # Not before the first response is asked for: an iterator that is never used must not block the client.
        if not self._in_use.acquire(blocking=False):
            raise PyTritonClientInferenceServerError(
                "Inference is already in progress; read its responses to the end, or use another client"
            )
        results = self._session.stream(arguments)
        try:
            while True:
                try:
                    outputs = self._run(_next(results))
                except StopAsyncIteration:
                    return
                yield outputs
        finally:
            self._in_use.release()
            if self._loop_thread.is_open:
                self._run(results.aclose())


async def _next(results: Any) -> Any:
    return await anext(results)
