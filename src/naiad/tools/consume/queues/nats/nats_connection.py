"""A connection to a server of NATS, whose errors say what they mean for a queue."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from naiad.core.errors import InferError, invalid_argument
from naiad.tools.consume.queues.message_queue import QueueAwayError, QueueLostError
from naiad.tools.consume.queues.queue_address import QueueAddress

TIMEOUT_S = 5.0
"""For a call."""
_PING_S = 10
"""Between two checks of a silent connection; two without an answer end it."""
_CONSUMER_IS_MISSING, _STREAM_IS_MISSING, _STREAM_IS_FULL = 10014, 10059, 10077
_T = TypeVar("_T")


class NatsConnection:
    """A client of one server, whose errors name it. A connection that broke is replaced by the next call."""

    def __init__(self, address: QueueAddress) -> None:
        """Raises InferError(INVALID_ARG) without the `nats` package."""
        try:
            import nats.aio.client
            import nats.errors
            import nats.js.api
            import nats.js.errors
        except ImportError:
            raise invalid_argument(f"{address} needs the 'nats-py' package: pip install 'naiad[nats]'") from None
        self.address = address
        self.api = nats.js.api
        self._new_client = nats.aio.client.Client
        self._errors = (nats.errors.Error, OSError)
        self._missing = nats.js.errors.NotFoundError
        self._api_error = nats.js.errors.APIError
        self._for_now = (nats.js.errors.ServiceUnavailableError, nats.js.errors.ServerError)
        self._denied = nats.errors.AuthorizationError
        self._client: Any = None
        self._lock = asyncio.Lock()
        self._last_error: Exception | None = None

    async def client(self) -> Any:
        """Return a client that is connected. Raises InferError."""
        async with self._lock:
            if self._client is None or not self._client.is_connected:
                await self.close()
                self._client = await self._connected()
            return self._client

    async def jetstream(self) -> Any:
        """Return the interface of JetStream of a client that is connected. Raises InferError."""
        return (await self.client()).jetstream(timeout=TIMEOUT_S)

    async def _connected(self) -> Any:
        address, client = self.address, self._new_client()
        is_token = address.user and not address.password
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await client.connect(
                    [f"{'tls' if address.is_tls else 'nats'}://{address.server}"],
                    error_cb=self._note_error,
                    # The caller repeats calls with pauses, each over a new connection if it has to be.
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                    connect_timeout=int(TIMEOUT_S),
                    ping_interval=_PING_S,
                    tls=ssl.create_default_context() if address.is_tls else None,
                    token=address.user if is_token else None,
                    user=None if is_token else address.user or None,
                    password=address.password or None,
                )
        except (*self._errors, TimeoutError) as error:
            last = self._last_error if type(error).__name__ == "NoServersError" else None
            raise self._named(last or error) from None
        return client

    async def _note_error(self, error: Exception) -> None:
        self._last_error = error

    async def call(self, command: Callable[[], Awaitable[_T]]) -> _T:
        """Return the result of a command. Raises InferError."""
        try:
            return await command()
        except (*self._errors, TimeoutError) as error:
            raise self._named(error) from None

    async def stream(self) -> Any:
        """Return the state of the stream, or None if there is none. Raises InferError."""
        jetstream = await self.jetstream()
        try:
            return await jetstream.stream_info(self.address.name)
        except self._missing:
            return None
        except (*self._errors, TimeoutError) as error:
            raise self._named(error) from None

    async def make_stream(self, most: int | None = None) -> None:
        """Make the stream, with its name as subject, unless it exists. Raises InferError."""
        if await self.stream() is None:
            config = self.api.StreamConfig(name=self.address.name, subjects=[self.address.name], max_msgs=most)
            jetstream = await self.jetstream()
            await self.call(lambda: jetstream.add_stream(config))

    async def place(self) -> tuple[object, ...]:
        """Return what the stream has alone: when it was made, or which server would make it."""
        found, client = await self.stream(), await self.client()
        if found is not None:
            return str(found.created), self.address.name
        server = client._server_info
        return server.get("cluster") or server.get("server_id"), server.get("domain"), self.address.name

    async def close(self) -> None:
        """Close the connection."""
        if self._client is not None and not self._client.is_closed:
            await self._client.close()
        self._client = None

    def _named(self, error: Exception) -> InferError:
        address = self.address
        text = getattr(error, "description", None) or str(error).removeprefix("nats: ") or type(error).__name__
        if isinstance(error, self._denied) or "Authorization Violation" in text:
            return invalid_argument(f"{address}: {text}; write {address.scheme}://USER:PASSWORD@HOST/STREAM")
        code = getattr(error, "err_code", None)
        if code in (_CONSUMER_IS_MISSING, _STREAM_IS_MISSING):
            return QueueLostError(
                f"the stream '{address.name}' at {address.server}, or the group of this consumer, was deleted; "
                "a new start makes them"
            )
        if isinstance(error, self._api_error) and not isinstance(error, self._for_now) and code != _STREAM_IS_FULL:
            return invalid_argument(f"{address}: {text}")
        if isinstance(error, self._for_now) and not getattr(error, "description", None):
            text = "JetStream does not answer; is it enabled?"
        return QueueAwayError(f"NATS at {address.server}: {text.rstrip('.')}")
