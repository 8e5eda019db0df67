"""Sends the responses of an HTTP/1.1 connection in the order of its requests."""

import asyncio
import logging
from collections import deque
from typing import Protocol

from naiad.core.tensor import Buffer
from naiad.frontend.http1.context import CONTINUE, Http1Context
from naiad.frontend.http1.endpoint import Http1Endpoint, PhaseClock

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
        "_max_contexts",
        "_owner",
        "budget",
        "contexts",
        "is_gathering",
        "is_write_paused",
        "output_buffers",
        "owes_continue",
        "response_headers",
        "transport",
    )

    def __init__(self, endpoint: Http1Endpoint, clock: PhaseClock, owner: Http1ResponsesOwner) -> None:
        self._endpoint = endpoint
        self._limits = endpoint.limits
        self._max_contexts = endpoint.limits.pipelined_requests
        self._clock = clock
        self._owner = owner
        self.response_headers = endpoint.response_headers
        self.budget = endpoint.budget
        self.transport: asyncio.Transport = None  # type: ignore[assignment]  # set when the connection is made
        self.contexts: deque[Http1Context] = deque()
        self.output_buffers: list[Buffer] = []
        self.is_gathering = False
        """Set while input is consumed: output is collected in `output_buffers` and written at the end."""
        self.owes_continue = False
        self.is_write_paused = False

    def has_room(self) -> bool:
        """Return whether a further request may be read."""
        return not self.is_write_paused and len(self.contexts) < self._max_contexts

    def connection_option(self, context: Http1Context) -> bytes:
        """Return the Connection option of a response that begins now."""
        if context.keep_alive and self._endpoint.is_draining and self._is_last(context):
            context.keep_alive = False
            self._owner.expect_no_more()
        if not context.keep_alive:
            return b"close"
        return b"keep-alive" if context.is_http_1_0 else b""

    def _is_last(self, context: Http1Context) -> bool:
        """Return whether a draining server ends the connection with this response."""
        endpoint = self._endpoint
        was_in_flight = context.arrival_ns <= endpoint.last_arrival_ns or endpoint.is_finishing
        return was_in_flight and self.contexts[-1] is context

    def emit(self, context: Http1Context, buffers: list[Buffer], *, done: bool) -> None:
        """Send a piece of a response, or keep it while earlier responses are incomplete."""
        # hot: bench/micro_http1.py
        contexts = self.contexts
        if contexts[0] is not context:
            context.waiting_buffers += buffers
            return
        if self.is_gathering:
            self.output_buffers += buffers
        else:
            self._write(buffers)
        if done:
            contexts.popleft()
            if not context.keep_alive:
                self._owner.end()
                return
            if contexts:
                self._send_waiting()
            if self.is_gathering:
                return  # a request has restarted the clock, and the caller checks for room
            if not contexts:
                self._clock.start_ns = 0
                if self.owes_continue:
                    self.send_continue()
            if not self._owner.is_reading:
                self._owner.update_reading()

    def streamed(self, context: Http1Context, byte_count: int) -> None:
        """Pause a stream whose pieces accumulate; drop a peer with too much unread data."""
        if context is self.contexts[0]:
            if not self.is_write_paused:
                return
            unsent_bytes = self.transport.get_write_buffer_size()
        else:
            context.waiting_bytes += byte_count
            context.set_paused(context.waiting_bytes > self._limits.write_buffer_bytes)
            unsent_bytes = sum([waiting.waiting_bytes for waiting in self.contexts])
        if unsent_bytes > self._limits.streamed_bytes and not self.transport.is_closing():
            _log.warning("dropped a client with %d unread bytes of streamed responses", unsent_bytes)
            self._owner.abort()

    def send_continue(self) -> None:
        """Send 100 Continue to request a body, after the responses to earlier requests, which come first."""
        # RFC 9110 10.1.1
        self.owes_continue = bool(self.contexts)
        if not self.owes_continue:
            self.send([CONTINUE])

    def set_write_paused(self, is_paused: bool) -> None:
        """Pause or resume: the peer does not read its responses, or reads again."""
        self.is_write_paused = is_paused
        if self.contexts:
            self.contexts[0].set_paused(is_paused)

    def send(self, buffers: list[Buffer]) -> None:
        """Write, or collect while input is consumed."""
        if self.is_gathering:
            self.output_buffers += buffers
        else:
            self._write(buffers)

    def flush(self) -> None:
        """Write the collected output."""
        gathered, self.output_buffers = self.output_buffers, []
        self._write(gathered)

    def disconnect(self) -> None:
        """Cancel all requests of the connection."""
        contexts, self.contexts = self.contexts, deque()
        for context in contexts:
            context.disconnect()
        del self._owner  # frees the connection at once instead of with the next full collection

    def _send_waiting(self) -> None:
        """Send the responses that waited for the one just sent."""
        contexts = self.contexts
        while contexts:
            context = contexts[0]
            if context.waiting_buffers:
                self.send(context.waiting_buffers)
                context.waiting_buffers = []
                context.waiting_bytes = 0
            if not context.done:
                context.set_paused(self.is_write_paused)
                return
            contexts.popleft()
            if not context.keep_alive:
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
