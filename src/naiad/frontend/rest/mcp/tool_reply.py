"""The answer to `tools/call`: what a route responds becomes the result of the tool, and an error one too.

A tool is executed by the routes that execute models over REST. They get this context in place of the client's; it
ends a call that takes too long, and sends progress as events if the client asks for it.
"""

import asyncio
from collections.abc import Callable, Sequence

import orjson

from naiad.core.tensor import Buffer
from naiad.frontend.context import CancelReason, HttpContext, HttpContextLayer, OnCancel
from naiad.frontend.reply_headers import JSON_HEADERS
from naiad.frontend.rest.stream import EVENTS
from naiad.protocol.json.response import as_event
from naiad.protocol.mcp.rpc_messages import Call, Json, encode_progress, encode_result
from naiad.protocol.mcp.tool_result import MAX_RESULT_BYTES, tool_error
from naiad.wire.header_fields import Headers

CALL_LIMIT_S = 600.0
"""A call that takes longer ends with an error."""
_UNREAD_BYTES = 64 * 1024
"""A client that has not read this much gets no more messages about progress."""
_OK = 200
_LESS = "send fewer or shorter texts, or ask for fewer 'dimensions'"

ReadBody = Callable[[bytes], Json]
"""Returns the result for the body of a successful response."""


class ToolReply(HttpContextLayer):
    """The context of one call."""

    __slots__ = ("_call", "_has_begun", "_is_over", "_on_leave", "_read_body", "_timer")

    def __init__(self, context: HttpContext, call: Call, body: bytes, read_body: ReadBody | None = None) -> None:
        """`body` is that of the request for the route, and `read_body` reads the route's response."""
        super().__init__(context)
        self.body = body
        self._call = call
        self._read_body = read_body
        self._on_leave: OnCancel | None = None
        self._is_over = False
        self._has_begun = False
        self._timer = asyncio.get_running_loop().call_later(CALL_LIMIT_S, self._expire)

    @property
    def on_disconnect(self) -> OnCancel | None:
        """Called when the client disconnects, or the call takes too long."""
        return self._on_leave

    @on_disconnect.setter
    def on_disconnect(self, callback: OnCancel | None) -> None:
        self._on_leave = callback
        if not self._is_over:
            self._context.on_disconnect = self._leave

    def respond(self, status: int, headers: Headers, parts: Sequence[Buffer]) -> None:
        """Send the response of a route as the result."""
        if self._is_over:
            return
        body = b"".join(parts)
        if len(body) > MAX_RESULT_BYTES:  # It would be parsed on the event loop.
            self.finish(
                tool_error(f"the answer has {len(body)} bytes; a call returns at most {MAX_RESULT_BYTES}: {_LESS}")
            )
        elif status == _OK and self._read_body is not None:
            self.finish(self._read_body(body))
        else:
            self.finish(tool_error(_message_of(body)))

    def finish(self, result: Json) -> None:
        """Send the result."""
        if self._is_over:
            return
        self._close()
        message = encode_result(self._call, result)
        if self._has_begun:
            self._context.send(as_event((message,)))
            self._context.end()
        else:
            self._context.respond(_OK, JSON_HEADERS, (message,))

    def show_progress(self, done: int, text: str) -> None:
        """Show a client that asks for it that `done` responses have arrived, the last one with `text`."""
        token = self._call.progress_token
        if token is None or self._is_over or b"text/event-stream" not in self.headers.get(b"accept", b"").lower():
            return
        if not self._has_begun:
            self._has_begun = True
            self._context.start_stream(_OK, EVENTS.headers)
        if self._context.unread_bytes < _UNREAD_BYTES:
            self._context.send(as_event((encode_progress(token, done, text),)))

    def _leave(self, why: CancelReason) -> None:
        """Pass on that the client has gone."""
        callback = self._on_leave
        self._close()
        if callback is not None:
            callback(why)

    def _expire(self) -> None:
        callback, self._on_leave = self._on_leave, None
        if callback is not None:
            callback(CancelReason.DEADLINE)
        self.finish(tool_error(f"the call has taken more than {CALL_LIMIT_S:.0f} s and was ended"))

    def _close(self) -> None:
        self._is_over = True
        self._timer.cancel()
        self._on_leave = None
        self._context.on_disconnect = None


def _message_of(body: bytes) -> str:
    """Return the message in the body of an error."""
    try:
        message = orjson.loads(body)["error"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return body.decode("utf-8", "replace")
    return str(message)
