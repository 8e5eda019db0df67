"""Another server over gRPC: how a model of `backend: "remote"` reaches it."""

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

from naiad.client.connecting import Connector, NotConnectedError, default_tls, parse_address
from naiad.client.transport.grpc import NO_HEADERS, GrpcCalls
from naiad.client.transport.http2 import Http2Pool
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import ErrorCode, InferError, cause_of, internal
from naiad.core.request import RequestHeader
from naiad.core.tensor import Buffer
from naiad.engine.remote.remote_port import OnRemote, RemoteFailure
from naiad.telemetry.last_resort import report
from naiad.wire.http2.connection_limits import INT32_MAX, Http2Limits

if TYPE_CHECKING:
    from naiad.core.response import InferResponse

_CONNECT_S = 2.0
"""To open a connection; then another server gets the request."""
_DESCRIBE_S = 10.0
_MAX_CONNECTIONS = 8
"""To one server; calls share a connection up to its limit of streams."""


class GrpcServer:
    """One other server."""

    def __init__(
        self,
        url: str,
        loop: asyncio.AbstractEventLoop,
        tls: ssl.SSLContext | None = None,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> None:
        address = parse_address(url)
        self.url = url
        self._loop = loop
        self._tasks: set[asyncio.Task[None]] = set()
        connector = Connector(address, default_tls(address, tls), _CONNECT_S)
        pool = Http2Pool(connector, _MAX_CONNECTIONS, Http2Limits(message_bytes=INT32_MAX))
        self._calls = GrpcCalls(pool, address, headers)

    def submit(
        self,
        header: RequestHeader,
        request_id: str,
        data: Sequence[Buffer],
        *,
        timeout_s: float,
        traceparent: str,
        on_done: OnRemote,
    ) -> "asyncio.Task[None]":
        """Send a request in a task, which can be cancelled."""
        task = self._loop.create_task(self._infer(header, request_id, data, timeout_s, traceparent, on_done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _infer(
        self,
        header: RequestHeader,
        request_id: str,
        data: Sequence[Buffer],
        timeout_s: float,
        traceparent: str,
        on_done: OnRemote,
    ) -> None:
        fields = {"traceparent": traceparent} if traceparent else NO_HEADERS
        result: InferResponse | RemoteFailure
        try:
            async with asyncio.timeout(timeout_s):
                result = await self._calls.infer_again(header, request_id, data, timeout_s, fields)
        except TimeoutError:
            result = RemoteFailure(InferError(ErrorCode.DEADLINE_EXCEEDED, f"no response within {timeout_s:g} s"))
        except NotConnectedError as error:
            result = RemoteFailure(error, has_begun=False, is_away=True)
        except InferError as error:
            result = RemoteFailure(error, has_begun=error.has_begun)
        except Exception as error:  # the request gets its response in any case
            report("a request to another server", error)
            result = RemoteFailure(internal(cause_of(error)))
        on_done(result)

    def describe(self, model: str, version: str) -> "Future[ModelConfig]":
        """Begin to ask for the configuration of a model that is ready."""
        return asyncio.run_coroutine_threadsafe(self._describe(model, version), self._loop)

    async def _describe(self, model: str, version: str) -> ModelConfig:
        try:
            async with asyncio.timeout(_DESCRIBE_S):
                config = await self._calls.model_config(model, version)
                if not await self._calls.is_model_ready(model, version):
                    raise InferError(ErrorCode.UNAVAILABLE, f"model '{model}' is not ready there")
        except TimeoutError:
            # A router or a proxy may have lost a connection without a word; a new one may work.
            self._calls.renew()
            raise InferError(ErrorCode.UNAVAILABLE, f"no answer within {_DESCRIBE_S:g} s") from None
        return config

    def close(self) -> None:
        """Close the connections."""
        self._calls.close()
