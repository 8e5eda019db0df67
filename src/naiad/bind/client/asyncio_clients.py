"""Clients for programs with asyncio."""

from collections.abc import AsyncGenerator, Mapping
from types import TracebackType
from typing import Any, Self

from naiad.bind.client.client_session import Arguments, ModelSession, SessionOptions
from naiad.bind.model_config.triton_model_config import TritonModelConfig
from naiad.core.parameters import ParameterValue
from naiad.core.tensor import Array


class _AsyncioBase:
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
        """Make a client; see `ModelClient`. With `lazy_init` False, `async with` waits for the model."""
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

    @classmethod
    def from_existing_client(cls, existing_client: "_AsyncioBase") -> Self:
        """Return another client with the configuration that `existing_client` has read."""
        return cls(**vars(existing_client._session.copied()))

    async def __aenter__(self) -> Self:
        """Return the client, with `lazy_init` False once the model is ready."""
        if not self._lazy_init:
            await self._session.config()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the client."""
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        self._session.close()

    async def wait_for_model(self, timeout_s: float) -> None:
        """Wait until the model is ready. Raises PyTritonClientTimeoutError."""
        await self._session.wait_for_model(timeout_s)

    @property
    async def model_config(self) -> TritonModelConfig:
        """The configuration of the model: `await client.model_config`."""
        return await self._session.config()


class AsyncioModelClient(_AsyncioBase):
    """A client of one model; its calls may run concurrently."""

    async def infer_sample(
        self,
        *inputs: Array,
        parameters: Mapping[str, ParameterValue] | None = None,
        headers: Mapping[str, ParameterValue] | None = None,
        **named_inputs: Array,
    ) -> dict[str, Array]:
        """Return the outputs for one sample, given without batch dimension; see `ModelClient.infer_sample`."""
        return await self._session.infer(Arguments(inputs, named_inputs, parameters, headers, is_sample=True))

    async def infer_batch(
        self,
        *inputs: Array,
        parameters: Mapping[str, ParameterValue] | None = None,
        headers: Mapping[str, ParameterValue] | None = None,
        **named_inputs: Array,
    ) -> dict[str, Array]:
        """Return the outputs for a batch; see `ModelClient.infer_batch`."""
        return await self._session.infer(Arguments(inputs, named_inputs, parameters, headers, is_sample=False))


class AsyncioDecoupledModelClient(_AsyncioBase):
    """A client of a decoupled model: `async for outputs in client.infer_sample(prompt)`. gRPC only."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Make a client; see `ModelClient`. Raises PyTritonClientValueError for an HTTP URL."""
        super().__init__(*arguments, **options)
        self._session.check_streams(type(self).__name__)

    def infer_sample(
        self,
        *inputs: Array,
        parameters: Mapping[str, ParameterValue] | None = None,
        headers: Mapping[str, ParameterValue] | None = None,
        **named_inputs: Array,
    ) -> AsyncGenerator[dict[str, Array], None]:
        """Yield the outputs of each response to one sample; leaving the loop cancels the request."""
        return self._session.stream(Arguments(inputs, named_inputs, parameters, headers, is_sample=True))

    def infer_batch(
        self,
        *inputs: Array,
        parameters: Mapping[str, ParameterValue] | None = None,
        headers: Mapping[str, ParameterValue] | None = None,
        **named_inputs: Array,
    ) -> AsyncGenerator[dict[str, Array], None]:
        """Yield the outputs of each response to a batch."""
        return self._session.stream(Arguments(inputs, named_inputs, parameters, headers, is_sample=False))
