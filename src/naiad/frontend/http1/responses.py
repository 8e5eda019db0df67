"""Sends the responses of an HTTP/1.1 connection in the order of its requests."""

import asyncio
import logging
from collections import deque
from typing import Protocol

from naiad.core.tensor import Buffer
from naiad.frontend.http1.endpoint import Http1Endpoint, PhaseClock
from naiad.frontend.http1.exchange import CONTINUE, Http1Context

_log = logging.getLogger(__name__)


class Http1ResponsesOwner(Protocol):
    """The connection, as its responses use it."""

    is_reading: bool
    """False if there is no room for more requests."""

    def update_reading(self) -> None:
        """Resume reading if there is room: a response was sent."""

    def expect_no_more(self) -> None:
        """Expect the last requests: the server drains, and the response that begins now is the last one."""

    def end(self) -> None:
        """End the connection: the last response is sent."""

    def abort(self) -> None:
        """Drop the connection."""


class Http1Responses:
    """The requests without a complete response, oldest first; the `ResponseSink` of each."""

    __slots__ = (
        "_clock",
        "_endpoint",
        "_limits",
        "_most_exchanges",
        "_owner",
        "answer_heads",
        "budget",
        "exchanges",
        "is_gathering",
        "is_write_paused",
        "owes_continue",
        "response_sender",
        "transport",
    )

    def __init__(self, endpoint: Http1Endpoint, clock: PhaseClock, owner: Http1ResponsesOwner) -> None:
        self._endpoint = endpoint
        self._limits = endpoint.limits
        self._most_exchanges = endpoint.limits.pipelined_requests
        self._clock = clock
        self._owner = owner
        self.answer_heads = endpoint.answer_heads
        self.budget = endpoint.budget
        self.transport: asyncio.Transport = None  # type: ignore[assignment]  # set when the connection is made
        self.exchanges: deque[Http1Context] = deque()
        self.response_sender: list[Buffer] = []
        self.is_gathering = False
        """Set while input is consumed: responses are collected in `outbox` and written together at the end."""
        self.owes_continue = False
        self.is_write_paused = False

    def has_room(self) -> bool:
        """Return whether a further request may be read."""
        return not self.is_write_paused and len(self.exchanges) < self._most_exchanges

    def connection_option(self, exchange: Http1Context) -> bytes:
        """Return the Connection option of a response that begins now."""
        if exchange.keep_alive and self._endpoint.is_draining and self._is_last(exchange):
            exchange.keep_alive = False
            self._owner.expect_no_more()
        if not exchange.keep_alive:
            return b"close"
        return b"keep-alive" if exchange.is_http_1_0 else b""

    def _is_last(self, exchange: Http1Context) -> bool:
        """Return whether a draining server ends the connection with this response."""
        endpoint = self._endpoint
        was_in_flight = exchange.arrival_ns <= endpoint.last_arrival_ns or endpoint.is_finishing
        return was_in_flight and self.exchanges[-1] is exchange

    def emit(self, exchange: Http1Context, buffers: list[Buffer], *, done: bool) -> None:
        """Send a piece of a response, or keep it while earlier responses are incomplete."""
        # hot: bench/micro_http1.py
        exchanges = self.exchanges
        if exchanges[0] is not exchange:
            exchange.held += buffers
            return
        if self.is_gathering:
            self.response_sender += buffers
        else:
            self._write(buffers)
        if done:
            exchanges.popleft()
            if not exchange.keep_alive:
                self._owner.end()
                return
            if exchanges:
                self._release_held()
            if self.is_gathering:
                return  # a request has restarted the clock, and the caller checks for room
            if not exchanges:
                self._clock.start_ns = 0
                if self.owes_continue:
                    self.send_continue()
            if not self._owner.is_reading:
                self._owner.update_reading()

    def streamed(self, exchange: Http1Context, byte_count: int) -> None:
        """Pause a stream whose pieces accumulate; drop a peer with too much unread data."""
        if exchange is self.exchanges[0]:
            if not self.is_write_paused:
                return
            unsent_bytes = self.transport.get_write_buffer_size()
        else:
            exchange.held_bytes += byte_count
            exchange.set_paused(exchange.held_bytes > self._limits.write_buffer_bytes)
            unsent_bytes = sum([waiting.held_bytes for waiting in self.exchanges])
        if unsent_bytes > self._limits.streamed_bytes and not self.transport.is_closing():
            _log.warning("dropped a client with %d unread bytes of streamed responses", unsent_bytes)
            self._owner.abort()

    def send_continue(self) -> None:
        """Send 100 Continue to request a body, after the responses to earlier requests, which come first."""
        # RFC 9110 10.1.1
        self.owes_continue = bool(self.exchanges)
        if not self.owes_continue:
            self.send([CONTINUE])

    def set_write_paused(self, is_paused: bool) -> None:
        """Pause or resume: the peer does not read its responses, or reads again."""
        self.is_write_paused = is_paused
        if self.exchanges:
            self.exchanges[0].set_paused(is_paused)

    def send(self, buffers: list[Buffer]) -> None:
        """Write, or collect while input is consumed."""
        if self.is_gathering:
            self.response_sender += buffers
        else:
            self._write(buffers)

    def flush(self) -> None:
        """Write the collected output."""
        gathered, self.response_sender = self.response_sender, []
        self._write(gathered)

    def disconnect(self) -> None:
        """Cancel all requests of the connection."""
        exchanges, self.exchanges = self.exchanges, deque()
        for exchange in exchanges:
            exchange.disconnect()
        del self._owner  # frees the connection at once instead of with the next full collection

    def _release_held(self) -> None:
        """Send the responses that waited for the one just sent."""
        exchanges = self.exchanges
        while exchanges:
            exchange = exchanges[0]
            if exchange.held:
                self.send(exchange.held)
                exchange.held = []
                exchange.held_bytes = 0
            if not exchange.done:
                exchange.set_paused(self.is_write_paused)
                return
            exchanges.popleft()
            if not exchange.keep_alive:
                self._owner.end()
                return

    def _write(self, buffers: list[Buffer]) -> None:
        if self.transport.is_closing():
            # The connection was dropped, but the loop has not reported it yet.
            return
        if len(buffers) == 1:
            self.transport.write(buffers[0])
        else:
            self.transport.writelines(buffers)
