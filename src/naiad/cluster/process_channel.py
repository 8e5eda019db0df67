"""Messages between two processes of one server over a private socket pair.

Either side sends messages and queries. A message is its length (8 bytes), its kind (1), a number that matches an
answer to its query (8), and a pickled value: both ends are this program, started by the same user from the same
files.
"""

import asyncio
import itertools
import pickle
import socket
import struct
from typing import Protocol

from naiad.core.errors import cause_of
from naiad.telemetry.last_resort import begin_task, report

_HEAD = struct.Struct("!QBQ")
_NOTICE, _ASK, _ANSWER, _FAILURE = range(4)


class ClusterChannelError(Exception):
    """A query without an answer: the other side failed or has exited."""


class Peer(Protocol):
    """Receives the messages and queries of a channel."""

    def on_message(self, message: object) -> None:
        """Handle a message."""

    async def on_query(self, query: object) -> object:
        """Return the answer to a query."""

    def on_lost(self) -> None:
        """Handle the end of the other side."""


class ClusterChannel(asyncio.Protocol):
    """One end of the connection."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._transport: asyncio.Transport | None = None
        self._is_over = False
        self._waiting_bytes: list[bytes] = []
        """Written at the end of this turn of the loop, or once connected."""
        self._received = bytearray()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[object]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def connect(self, connected: socket.socket) -> None:
        """Start over a connected socket, which it owns from now on; messages sent earlier go first."""
        connected.setblocking(False)
        await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=connected)

    # --- sending ----------------------------------------------------------------------------------------------------

    def send(self, message: object) -> None:
        """Send a message; no effect when the other side has exited."""
        self._send(_NOTICE, 0, message)

    async def ask(self, query: object, timeout_s: float | None = None) -> object:
        """Send a query and return its answer. Raises ChannelError."""
        if self._is_over:
            raise ClusterChannelError("the other process has exited")
        number = next(self._numbers)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._send(_ASK, number, query)
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            raise ClusterChannelError(f"no answer within {timeout_s:g} s") from None
        finally:
            del self._waiting[number]

    def _send(self, kind: int, number: int, value: object) -> None:
        if self._is_over:
            return
        if not self._waiting_bytes and self._transport is not None:
            asyncio.get_running_loop().call_soon(self._flush)
        payload = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        self._waiting_bytes += (_HEAD.pack(len(payload), kind, number), payload)

    def _flush(self) -> None:
        if self._transport is not None and self._waiting_bytes:
            waiting, self._waiting_bytes = self._waiting_bytes, []
            self._transport.writelines(waiting)

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the other side has not read yet."""
        buffered = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return buffered + sum(map(len, self._waiting_bytes))

    def close(self) -> None:
        """Close this end once everything is sent; `on_lost` of this side is not called."""
        self._flush()
        self._is_over = True
        if self._transport is not None:
            self._transport.close()
            self._transport = None

    # --- called by the transport ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start."""
        self._transport = transport  # type: ignore[assignment]  # that of a stream
        self._flush()

    def data_received(self, data: bytes) -> None:
        """Receive bytes, and handle the messages that they complete."""
        received = self._received
        received += data
        start = 0
        while len(received) - start >= _HEAD.size:
            length, kind, number = _HEAD.unpack_from(received, start)
            end = start + _HEAD.size + length
            if len(received) < end:
                break
            with memoryview(received) as view:
                value = pickle.loads(view[start + _HEAD.size : end])
            self._take(kind, number, value)
            start = end
        del received[:start]

    def connection_lost(self, error: Exception | None) -> None:
        """End: queries fail, and the peer is notified."""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(ClusterChannelError("the other process has exited"))
        for task in self._tasks:
            task.cancel()
        self._transport = None
        self._waiting_bytes.clear()
        if not self._is_over:
            self._is_over = True
            self._peer.on_lost()

    # --- receiving --------------------------------------------------------------------------------------------------

    def _take(self, kind: int, number: int, value: object) -> None:
        if kind == _NOTICE:
            self._peer.on_message(value)
        elif kind == _ASK:
            begin_task("answering another process", self._answer(number, value), self._tasks)
        else:
            future = self._waiting.get(number)
            if future is None or future.done():
                return
            if kind == _ANSWER:
                future.set_result(value)
            else:
                future.set_exception(ClusterChannelError(str(value)))

    async def _answer(self, number: int, query: object) -> None:
        try:
            answer = await self._peer.on_query(query)
        except BaseException as error:
            # The other process waits for an answer, also after any exception here.
            if not isinstance(error, ClusterChannelError | asyncio.CancelledError):
                report(f"answering {type(query).__name__}", error)
            if not self._is_over:
                self._send(_FAILURE, number, cause_of(error))
        else:
            self._send(_ANSWER, number, answer)


def send_first(connected: socket.socket, message: object) -> None:
    """Send a message before the channel is open, blocking; `receive_first` reads it. Raises OSError."""
    payload = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    connected.sendall(_HEAD.pack(len(payload), _NOTICE, 0) + payload)


def receive_first(connected: socket.socket) -> object:
    """Return the message of `send_first`, blocking. Raises EOFError when the other side has exited."""
    length, _, _ = _HEAD.unpack(_read(connected, _HEAD.size))
    return pickle.loads(_read(connected, length))


def _read(connected: socket.socket, count: int) -> bytes:
    received = bytearray()
    while len(received) < count:
        data = connected.recv(count - len(received))
        if not data:
            raise EOFError("the other process has exited")
        received += data
    return bytes(received)
