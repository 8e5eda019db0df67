"""The calls that all clients have, with PyTriton's names and arguments; what a call returns is the client's."""

import abc
from collections.abc import Mapping
from typing import Generic, Self, TypeVar

from naiad.bind.client.client_session import Arguments, ModelSession, SessionOptions
from naiad.bind.model_config.triton_model_config import TritonModelConfig
from naiad.core.parameters import ParameterValue
from naiad.core.tensor import Array

R = TypeVar("R")


class InferenceCalls(abc.ABC, Generic[R]):
    """The calls that execute the model."""

    def infer_sample(
        self,
        *inputs: Array,
        parameters: Mapping[str, ParameterValue] | None = None,
        headers: Mapping[str, ParameterValue] | None = None,
        **named_inputs: Array,
    ) -> R:
        """Execute the model for one sample; inputs and outputs have no batch dimension.

        Inputs are given in the order of the model or by name. Raises PyTritonClientValueError for wrong arguments,
        PyTritonClientTimeoutError, PyTritonClientModelUnavailableError and PyTritonClientInferenceServerError.
        """
        return self._infer(Arguments(inputs, named_inputs, parameters, headers, is_sample=True))

    def infer_batch(
        self,
        *inputs: Array,
        parameters: Mapping[str, ParameterValue] | None = None,
        headers: Mapping[str, ParameterValue] | None = None,
        **named_inputs: Array,
    ) -> R:
        """Execute the model for a batch: the first dimension of all arrays counts its rows.

        Raises as `infer_sample`, and PyTritonClientModelDoesntSupportBatchingError.
        """
        return self._infer(Arguments(inputs, named_inputs, parameters, headers, is_sample=False))

    @abc.abstractmethod
    def _infer(self, arguments: Arguments) -> R:
        """Begin one call."""


class SessionCalls(InferenceCalls[R]):
    """A client with one session."""

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

        The first call waits up to `init_timeout_s` (300 s) for the model; with `lazy_init` False this does, with
        asyncio `async with`. Each call has `inference_timeout_s` (60 s). With `model_config` the server is not asked
        for it.

        Raises PyTritonClientInvalidUrlError, PyTritonClientValueError for an HTTP URL of a decoupled model, and
        without `lazy_init` PyTritonClientTimeoutError.
        """
        self._lazy_init = lazy_init
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
        self._opened()

    def _opened(self) -> None:
        """Check and complete the client when it has its session."""

    @classmethod
    def from_existing_client(cls, existing_client: "SessionCalls[R]") -> Self:
        """Return another client with the configuration that `existing_client` has read."""
        return cls(**vars(existing_client._session.copied()))
