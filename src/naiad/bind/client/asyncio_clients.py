"""Clients for programs with asyncio."""

from collections.abc import AsyncGenerator, Coroutine
from types import TracebackType
from typing import Any, Self

from naiad.bind.client.client_session import Arguments
from naiad.bind.client.inference_calls import R, SessionCalls
from naiad.bind.model_config.triton_model_config import TritonModelConfig
from naiad.core.tensor import Array


class _AsyncioCalls(SessionCalls[R]):
    """The part that does not depend on the number of responses."""

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


class AsyncioModelClient(_AsyncioCalls[Coroutine[Any, Any, dict[str, Array]]]):
    """A client of one model; its calls, which return the outputs by name, may run concurrently."""

    async def _infer(self, arguments: Arguments) -> dict[str, Array]:
        return await self._session.infer(arguments)


class AsyncioDecoupledModelClient(_AsyncioCalls[AsyncGenerator[dict[str, Array], None]]):
    """A client of a decoupled model: `async for outputs in client.infer_sample(prompt)`. gRPC only.

    Calls yield the outputs of each response; leaving the loop cancels the request.
    """

    def _opened(self) -> None:
        self._session.check_streams(type(self).__name__)

    def _infer(self, arguments: Arguments) -> AsyncGenerator[dict[str, Array], None]:
        return self._session.stream(arguments)
