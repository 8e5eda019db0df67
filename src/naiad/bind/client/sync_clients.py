"""Blocking clients. They may be used by several threads."""

import threading
from collections.abc import Coroutine, Iterator, Mapping
from typing import Any, Self, TypeVar

from naiad.bind.client.client_session import Arguments, ModelSession, SessionOptions
from naiad.bind.client.exceptions import PyTritonClientClosedError, PyTritonClientInferenceServerError
from naiad.bind.model_config.triton_model_config import TritonModelConfig
from naiad.client.loop_thread import LoopClient
from naiad.core.parameters import ParameterValue
from naiad.core.tensor import Array

_T = TypeVar("_T")


class _SyncBase(LoopClient):
    """The part that does not depend on the number of responses."""

    def __init__(  # noqa: PLR0913 - PyTriton's arguments
        self,
        url: str,
        model_name: str,
        model_version: str | None = None,
        *,
        lazy_init: bool = True,
        init_timeout_s: float | None = None,
        inference_timeout_s: float | None = None,
        model_config: TritonModelConfig | None = None,
        ensure_model_is_ready: bool = True,
        access_token: str | None = None,
    ) -> None:
        """Make a client of a model on the server at `url`: `localhost`, `http://host:8000` or `grpc://host:8001`.

        The first call waits up to `init_timeout_s` (300 s) for the model; with `lazy_init` False this does. Each call
        has `inference_timeout_s` (60 s). With `model_config` the server is not asked for it.

        Raises PyTritonClientInvalidUrlError, and without `lazy_init` PyTritonClientTimeoutError.
        """
        self._session = ModelSession(
            SessionOptions(
                url,
                model_name,
                model_version,
                init_timeout_s,
                inference_timeout_s,
                model_config,
                ensure_model_is_ready,
                access_token,
            )
        )
        super().__init__(model_name, self._session.close)
        if not lazy_init:
            try:
                self._run(self._session.config())
            except BaseException:
                self.close()
                raise

    @classmethod
    def from_existing_client(cls, existing_client: "_SyncBase") -> Self:
        """Return another client with the configuration that `existing_client` has read."""
        return cls(**vars(existing_client._session.copied()))

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


class ModelClient(_SyncBase):
    """A blocking client of one model.

    with ModelClient("localhost", "Linear") as client:
        outputs = client.infer_sample(np.array([1, 2], np.float32))
    """

    def infer_sample(
        self,
        *inputs: Array,
        parameters: Mapping[str, ParameterValue] | None = None,
        headers: Mapping[str, ParameterValue] | None = None,
        **named_inputs: Array,
    ) -> dict[str, Array]:
        """Return the outputs for one sample, by name; inputs and outputs have no batch dimension.

        Inputs are given in the order of the model or by name. Raises PyTritonClientValueError for wrong arguments,
        PyTritonClientTimeoutError, PyTritonClientModelUnavailableError and PyTritonClientInferenceServerError.
        """
        return self._run(self._session.infer(Arguments(inputs, named_inputs, parameters, headers, is_sample=True)))

    def infer_batch(
        self,
        *inputs: Array,
        parameters: Mapping[str, ParameterValue] | None = None,
        headers: Mapping[str, ParameterValue] | None = None,
        **named_inputs: Array,
    ) -> dict[str, Array]:
        """Return the outputs for a batch: the first dimension of all arrays counts its rows.

        Raises as `infer_sample`, and PyTritonClientModelDoesntSupportBatchingError.
        """
        return self._run(self._session.infer(Arguments(inputs, named_inputs, parameters, headers, is_sample=False)))


class DecoupledModelClient(_SyncBase):
    """A blocking client of a decoupled model: `for outputs in client.infer_sample(prompt)`. gRPC only.

    One request at a time. A loop that is left early cancels the request.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Make a client; see `ModelClient`. Raises PyTritonClientValueError for an HTTP URL."""
        super().__init__(*arguments, **options)
        self._in_use = threading.Lock()
        try:
            self._session.check_streams(type(self).__name__)
        except BaseException:
            self.close()
            raise

    def infer_sample(
        self,
        *inputs: Array,
        parameters: Mapping[str, ParameterValue] | None = None,
        headers: Mapping[str, ParameterValue] | None = None,
        **named_inputs: Array,
    ) -> Iterator[dict[str, Array]]:
        """Return an iterator of the outputs of each response to one sample; raises as `ModelClient.infer_sample`."""
        return self._iterate(Arguments(inputs, named_inputs, parameters, headers, is_sample=True))

    def infer_batch(
        self,
        *inputs: Array,
        parameters: Mapping[str, ParameterValue] | None = None,
        headers: Mapping[str, ParameterValue] | None = None,
        **named_inputs: Array,
    ) -> Iterator[dict[str, Array]]:
        """Return an iterator of the outputs of each response to a batch; raises as `ModelClient.infer_batch`."""
        return self._iterate(Arguments(inputs, named_inputs, parameters, headers, is_sample=False))

    def _iterate(self, arguments: Arguments) -> Iterator[dict[str, Array]]:
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
