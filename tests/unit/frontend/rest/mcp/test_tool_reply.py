"""The context in which the routes execute tools: what they respond becomes results, within a time."""

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from naiad.frontend.context import CancelReason
from naiad.frontend.rest.mcp import tool_reply
from naiad.frontend.rest.mcp.tool_reply import ToolReply
from naiad.protocol.mcp.rpc_messages import Call
from naiad.protocol.mcp.tool_result import MAX_RESULT_BYTES
from support.waiting import until


class Context:
    """The client's context."""

    method, path, query, arrival_ns, client = "POST", "/mcp", "", 1, None
    body = b""

    def __init__(self, accept: bytes = b"application/json, text/event-stream") -> None:
        self.headers = {b"accept": accept}
        self.on_disconnect: Callable[[CancelReason], object] | None = None
        self.unread_bytes = 0
        self.sent: list[bytes] = []
        self.status = 0
        self.has_ended = False

    def respond(self, status: int, headers: object, parts: Sequence[bytes]) -> None:
        assert not self.has_ended
        self.status, self.has_ended = status, True
        self.sent.append(b"".join(parts))

    def start_stream(self, status: int, headers: object) -> None:
        self.status = status

    def send(self, parts: Sequence[bytes]) -> None:
        assert not self.has_ended
        self.sent.append(b"".join(parts))

    def end(self) -> None:
        self.has_ended = True


def call(**params: Any) -> Call:
    return Call(1, "tools/call", params, False)


def result(context: Context) -> Any:
    return json.loads(context.sent[-1].removeprefix(b"data: "))["result"]


def run(scene: Callable[[], Any]) -> None:
    async def within_loop() -> None:
        found = scene()
        if found is not None:
            await found

    asyncio.run(within_loop())


def test_body_of_a_route_becomes_the_result() -> None:
    def scene() -> None:
        context = Context()
        ToolReply(context, call(), b"", lambda body: {"content": [], "read": body.decode()}).respond(200, (), [b"a"])
        assert (context.status, result(context)) == (200, {"content": [], "read": "a"})

    run(scene)


@pytest.mark.parametrize(("body", "text"), [(b'{"error": "no room"}', "no room"), (b"plain", "plain"), (b"[]", "[]")])
def test_error_of_a_route_becomes_a_failed_result(body: bytes, text: str) -> None:
    def scene() -> None:
        context = Context()
        reply = ToolReply(context, call(), b"", lambda _: {})
        reply.respond(503, (), [body])
        reply.respond(503, (), [body])  # the second answer has no receiver
        assert context.status == 200
        assert result(context) == {"content": [{"type": "text", "text": text}], "isError": True}

    run(scene)


def test_large_body_of_a_route_is_not_read() -> None:
    def scene() -> None:
        context, read = Context(), []
        reply = ToolReply(context, call(), b"", lambda body: {"content": [], "read": read.append(body)})
        reply.respond(200, (), [b" " * MAX_RESULT_BYTES, b"{}"])
        (content,) = result(context)["content"]
        assert "the answer has 4194306 bytes; a call returns at most 4194304" in content["text"]
        assert result(context)["isError"]
        assert read == []

    run(scene)


def test_long_call_is_cancelled_and_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_reply, "CALL_LIMIT_S", 0.0)

    async def scene() -> None:
        context, reasons = Context(), []
        ToolReply(context, call(), b"").on_disconnect = reasons.append
        await until(lambda: context.has_ended)
        assert reasons == [CancelReason.DEADLINE]
        assert result(context)["isError"]
        assert context.on_disconnect is None

    run(scene)


def test_client_that_leaves_gets_nothing() -> None:
    def scene() -> None:
        context, reasons = Context(), []
        reply = ToolReply(context, call(), b"")
        reply.on_disconnect = reasons.append
        assert context.on_disconnect is not None
        context.on_disconnect(CancelReason.DISCONNECTED)
        reply.finish({})
        assert (reasons, context.sent) == ([CancelReason.DISCONNECTED], [])

    run(scene)


def test_progress_is_sent_to_clients_that_read() -> None:
    def scene() -> None:
        context = Context()
        reply = ToolReply(context, call(_meta={"progressToken": "t"}), b"")
        reply.show_progress(1, "a")
        context.unread_bytes = 1 << 20
        reply.show_progress(2, "b")
        reply.finish({"content": []})
        (first, last) = context.sent
        assert json.loads(first.removeprefix(b"data: "))["params"] == {
            "progressToken": "t",
            "progress": 1,
            "message": "a",
        }
        assert b'"result"' in last
        assert context.has_ended

    run(scene)


@pytest.mark.parametrize(
    ("accept", "meta"), [(b"application/json", {"progressToken": 1}), (b"text/event-stream", {})]
)
def test_other_clients_get_one_answer(accept: bytes, meta: Any) -> None:
    def scene() -> None:
        context = Context(accept)
        reply = ToolReply(context, call(_meta=meta), b"")
        reply.show_progress(1, "a")
        assert context.sent == []
        reply.finish({})
        assert len(context.sent) == 1

    run(scene)
