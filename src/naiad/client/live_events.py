"""The live stream of a server: its events, as they arrive over a connection of their own."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlencode

from naiad.client.connecting import ConnectionFailedError, Connector
from naiad.core.errors import InferError, excerpt, internal
from naiad.protocol.json import client as bodies
from naiad.protocol.status_table import code_of_http
from naiad.wire.event_stream import EventStreamResponse
from naiad.wire.http1_client import ResponseError, encode_request

_READ_BYTES = 256 * 1024
_SILENCE_S = 30.0
"""The server sends a heartbeat more often."""
_OK = 200


class LiveEvent(NamedTuple):
    """An event of the live stream, see docs/dashboard.md."""

    name: str
    data: dict[str, Any]


class LiveConnection(asyncio.StreamReaderProtocol):
    """A connection with the stream that is read from it."""

    def __init__(self) -> None:
        self.reader = asyncio.StreamReader()
        self.transport: asyncio.Transport | None = None
        super().__init__(self.reader)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        super().connection_made(transport)
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self.transport = transport  # type: ignore[assignment]  # uvloop's has the methods without being one


def live_target(query: Mapping[str, str]) -> str:
    """Return the target of the request for the live stream."""
    return "/v2/live" + (f"?{urlencode(query)}" if query else "")


async def live_events(
    connector: Connector, headers: Sequence[tuple[str, str]], query: Mapping[str, str]
) -> AsyncGenerator[LiveEvent, None]:
    """Yield the events of the live stream until it ends.

    Raises ConnectionFailedError if the connection fails or is silent, InferError if the server refuses.
    """
    connection = await connector.open(LiveConnection)
    transport = connection.transport
    assert transport is not None
    try:
        transport.writelines(encode_request("GET", live_target(query), headers))
        async for event in _events(connection.reader):
            yield event
    finally:
        transport.abort()


async def _events(reader: asyncio.StreamReader) -> AsyncGenerator[LiveEvent, None]:
    response = EventStreamResponse()
    while not response.is_complete:
        try:
            data = await asyncio.wait_for(reader.read(_READ_BYTES), _SILENCE_S)
        except TimeoutError:
            raise ConnectionFailedError(f"the server has sent nothing for {_SILENCE_S:g} s") from None
        except OSError as error:
            raise ConnectionFailedError(f"the connection was lost: {error}") from error
        if not data:
            raise ConnectionFailedError("the connection was closed by the server")
        try:
            found = response.feed(data)
        except ResponseError as error:
            raise ConnectionFailedError(str(error)) from None
        for event in found:
            yield LiveEvent(event.name, bodies.decode_object(event.data))
    if response.status != _OK:
        message = bodies.decode_error(bytes(response.error_body))
        raise InferError(
            code_of_http(response.status), message or f"the server answered with HTTP status {response.status}"
        )
    kind = response.headers.get(b"content-type", b"").decode("latin-1") or "no type"
    if not kind.startswith("text/event-stream"):
        raise internal(f"the server answered with {excerpt(kind)}, which is no live stream; is this a naiad server?")
