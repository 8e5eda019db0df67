"""Another server over gRPC: how a model of `backend: "remote"` reaches it."""

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from naiad.client.connecting import Connector, NotConnectedError, default_tls, parse_address
from naiad.client.transport.grpc import NO_HEADERS, GrpcCalls
from naiad.client.transport.http2 import Http2Pool
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import ErrorCode, InferError, cause_of, internal
from naiad.core.request import RequestHeader
from naiad.core.response import InferResponse
from naiad.core.tensor import Buffer
from naiad.engine.remote.remote_port import OnRemote, OnStream, RemoteFailure
from naiad.protocol.grpc.infer import FINAL_RESPONSE
from naiad.telemetry.last_resort import report
from naiad.wire.http2.connection_limits import INT32_MAX, Http2Limits

_CONNECT_S = 2.0
"""To open a connection; then another server gets the request."""
_DESCRIBE_S = 10.0
_MAX_CONNECTIONS = 8
"""To one server; calls share a connection up to its limit of streams."""
_MAX_UNREAD_BYTES = 1 << 20
"""Responses of a decoupled model that wait here for one client; then the other server waits."""
_AT_ONCE = 32
"""Responses that are taken in one turn of the loop."""
_END_S = 1.0
"""For the end of a stream after its final response."""
_PAUSE_S, _LONGEST_PAUSE_S = 0.005, 0.1
"""Between two looks whether a client that did not read does; doubled after each, as thousands may be waited for."""
_STRICT = {"triton_grpc_error": "true"}
"""Triton: an error ends the stream with its status, in place of a message without a code."""

_T = TypeVar("_T")


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
        return self._start(self._infer(header, request_id, data, timeout_s, traceparent, on_done))

    def stream(
        self,
        header: RequestHeader,
        request_id: str,
        data: Sequence[Buffer],
        *,
        timeout_s: float,
        deadline_s: float | None,
        traceparent: str,
        is_paused: Callable[[], bool],
        on_stream: OnStream,
    ) -> "asyncio.Task[None]":
        """Send a request of a decoupled model in a task, which can be cancelled."""

        async def receive() -> None:
            fields = _STRICT | ({"traceparent": traceparent} if traceparent else {})
            stream = self._calls.infer_stream(header, request_id, data, fields, _MAX_UNREAD_BYTES)
            limit_s, count = timeout_s, 0
            async with asyncio.timeout(deadline_s), contextlib.aclosing(stream) as responses:
                while True:
                    try:
                        async with asyncio.timeout(limit_s):
                            _, response, _ = await anext(responses)
                    except StopAsyncIteration:
                        return
                    found = _marked(response)
                    on_stream(found)
                    if found.final:
                        limit_s = min(limit_s, _END_S)
                    count += 1
                    if not count % _AT_ONCE:
                        await asyncio.sleep(0)  # other work of the loop has its turn
                    if is_paused():
                        await _end_of_pause(is_paused)

        async def run() -> None:
            on_stream(await _caught(receive(), timeout_s if deadline_s is None else min(timeout_s, deadline_s)))

        return self._start(run())

    def _start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = self._loop.create_task(work)
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

        async def receive() -> InferResponse:
            async with asyncio.timeout(timeout_s):
                return await self._calls.infer_again(header, request_id, data, timeout_s, fields)

        on_done(await _caught(receive(), timeout_s))

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


async def _end_of_pause(is_paused: Callable[[], bool]) -> None:
    """Wait until a client reads again. It is answered late by no more than the time that it did not read."""
    pause_s = _PAUSE_S
    while is_paused():
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


async def _caught(work: Coroutine[Any, Any, _T], timeout_s: float) -> _T | RemoteFailure:
    """Return the result of a request, or why it has none."""
    try:
        return await work
    except TimeoutError:
        return RemoteFailure(InferError(ErrorCode.DEADLINE_EXCEEDED, f"no response within {timeout_s:g} s"))
    except NotConnectedError as error:
        return RemoteFailure(error, has_begun=False, is_away=True)
    except InferError as error:
        return RemoteFailure(error, has_begun=error.has_begun)
    except Exception as error:  # the request gets its response in any case
        report("a request to another server", error)
        return RemoteFailure(internal(cause_of(error)))


def _marked(response: InferResponse) -> InferResponse:
    """Return a response of a stream with what its parameters say about its place."""
    parameters = {name: value for name, value in response.parameters.items() if name != FINAL_RESPONSE}
    return InferResponse(
        response.header,
        response.data,
        parameters=parameters,
        final=bool(response.parameters.get(FINAL_RESPONSE)),
        empty_final=not response.header.outputs,
    )
