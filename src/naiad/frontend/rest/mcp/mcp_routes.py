"""`POST /mcp`: the messages of the Model Context Protocol, each answered on its own, without a session.

The server asks its clients nothing, so there is no stream for its questions: GET is not allowed. A client cancels a
call by closing its connection or stream; a message with the id of a request could come from any client.
"""

from collections.abc import Callable, Mapping

import orjson

from naiad.config.openai_mapping import OpenAiMapping
from naiad.core.errors import InferError, Rejection, invalid_argument
from naiad.engine.engine import Engine
from naiad.frontend import failed_requests
from naiad.frontend.access.peer import is_local
from naiad.frontend.context import HttpContext, announced_bytes
from naiad.frontend.reply_headers import JSON_HEADERS
from naiad.frontend.rest.generate import GenerateRoutes
from naiad.frontend.rest.mcp.served_tools import ServedTools, Tool
from naiad.frontend.rest.mcp.tool_call import ToolCall
from naiad.frontend.rest.mcp.tool_reply import ToolReply
from naiad.frontend.router import Action, Router, refuse
from naiad.operations.mcp import MCP
from naiad.operations.openai import CHAT_COMPLETIONS, COMPLETIONS, EMBEDDINGS, RERANK
from naiad.operations.operation import AnyOperation
from naiad.protocol.mcp.openai_tool import is_chat, openai_body, read_openai_answer
from naiad.protocol.mcp.rpc_messages import (
    INVALID_PARAMS,
    MAX_BODY_BYTES,
    METHOD_NOT_FOUND,
    UNCACHED,
    Call,
    Json,
    RpcError,
    discovered,
    encode_result,
    encode_rpc_error,
    initialized,
    read_call,
)
from naiad.protocol.mcp.sequence_arguments import takes_sequences
from naiad.telemetry.metrics.response_metrics import rejections

_LOCAL_ONLY = (
    "the Model Context Protocol is served to programs on the server's machine; start the server with --allow-mcp=true"
    " to serve it to all"
)
_ACCEPTED = 202
_FORBIDDEN = 403


class McpRoutes:
    """The endpoint."""

    def __init__(
        self,
        engine: Engine,
        generate: GenerateRoutes,
        openai: Mapping[AnyOperation, Action],
        *,
        local_only: bool = False,
    ) -> None:
        """Tools are executed by `generate` and the actions of the OpenAI API. With `local_only`, other machines are
        refused.
        """
        self._engine = engine
        self._generate = generate
        self._openai = openai
        self._local_only = local_only
        self._tools = ServedTools(engine)
        self.router: Router | None = None
        """The router, for its access rule; set once it exists."""
        self._handlers: Mapping[str, Callable[[HttpContext, Call], None]] = {
            "initialize": self._initialize,
            "ping": self._ping,
            "tools/list": self._list,
            "tools/call": self._call,
        }
        self._stateless_handlers: Mapping[str, Callable[[HttpContext, Call], None]] = {
            "server/discover": self._discover,
            "tools/list": self._list,
            "tools/call": self._call,
        }

    def actions(self) -> Mapping[AnyOperation, Action]:
        """Return the action by its operation."""
        return {MCP: self._handle}

    def checks(self) -> Mapping[AnyOperation, Action]:
        """Return what rejects requests by their headers."""
        return {MCP: self._check}

    def _check(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        if self._local_only and not is_local(context.client):
            refuse(context, _FORBIDDEN, _LOCAL_ONLY)
        elif announced_bytes(context.headers) > MAX_BODY_BYTES:
            raise invalid_argument(f"the body is too large; a message for /mcp has at most {MAX_BODY_BYTES} bytes")

    def _handle(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        if self._local_only and not is_local(context.client):
            refuse(context, _FORBIDDEN, _LOCAL_ONLY)
            return
        try:
            call = read_call(context.body, context.headers)
            if call is None:
                context.respond(_ACCEPTED, (), ())
                return
            handler = (self._stateless_handlers if call.is_stateless else self._handlers).get(call.method)
            if handler is None:
                raise call.error(METHOD_NOT_FOUND, f"there is no method '{call.method[:200]}'")
            handler(context, call)
        except RpcError as error:
            rejections.count(Rejection.INVALID)
            status, body = encode_rpc_error(error)
            context.respond(status, JSON_HEADERS, (body,))

    # --- methods ----------------------------------------------------------------------------------------------------

    def _initialize(self, context: HttpContext, call: Call) -> None:
        _respond(context, call, initialized(call, self._engine.views.server_metadata().version))

    def _discover(self, context: HttpContext, call: Call) -> None:
        _respond(context, call, discovered(self._engine.views.server_metadata().version))

    def _ping(self, context: HttpContext, call: Call) -> None:
        _respond(context, call, {})

    def _list(self, context: HttpContext, call: Call) -> None:
        rejection = None if self.router is None else self.router.rejection("metadata", context)
        if rejection is not None:
            # The list says what models take and return, as their metadata do.
            rejections.count(Rejection.UNAUTHORIZED)
            refuse(context, rejection.http_status, rejection.message, rejection.headers, rejection.key)
            return
        cursor = call.params.get("cursor")
        if cursor is not None and not isinstance(cursor, str):
            raise call.error(INVALID_PARAMS, "'cursor' is not a text")
        try:
            tools, following = self._tools.page(cursor)
        except ValueError as error:
            raise call.error(INVALID_PARAMS, str(error)) from None
        result: Json = {"tools": tools}
        if following is not None:
            result["nextCursor"] = following
        _respond(context, call, {**result, **UNCACHED} if call.is_stateless else result)

    def _call(self, context: HttpContext, call: Call) -> None:
        name, arguments = call.params.get("name"), call.params.get("arguments", {})
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise call.error(INVALID_PARAMS, "expected the members 'name', a text, and 'arguments', an object")
        tool = self._tools.find(name)
        if tool is None:
            raise call.error(INVALID_PARAMS, f"there is no tool '{name[:200]}': no ready model has this name")
        try:
            body = self._body_of(tool, arguments)
        except orjson.JSONEncodeError:
            raise call.error(INVALID_PARAMS, "'arguments' is nested too deeply") from None
        except InferError as error:
            failed_requests.respond(ToolReply(context, call, b""), "", tool.model, "", error)
            return
        self._execute(context, call, tool, body)

    @staticmethod
    def _body_of(tool: Tool, arguments: Json) -> bytes:
        return orjson.dumps(arguments) if tool.mapping is None else openai_body(tool.model, tool.mapping, arguments)

    def _execute(self, context: HttpContext, call: Call, tool: Tool, body: bytes) -> None:
        mapping = tool.mapping
        if mapping is None:
            reply = ToolReply(context, call, body)
            in_sequence = takes_sequences(tool.config)
            receiver = ToolCall(reply, self._engine, is_decoupled=tool.is_decoupled, in_sequence=in_sequence)
            self._generate.execute(reply, tool.model, receiver)
            return
        reply = ToolReply(context, call, body, lambda answer: read_openai_answer(mapping, answer))
        self._openai[_operation_of(mapping)](reply, {})


def _operation_of(mapping: OpenAiMapping) -> AnyOperation:
    """Return the operation of the OpenAI API that executes a model's tool."""
    if mapping.generates:
        return CHAT_COMPLETIONS if is_chat(mapping) else COMPLETIONS
    return RERANK if mapping.task == "rerank" else EMBEDDINGS


def _respond(context: HttpContext, call: Call, result: Json) -> None:
    context.respond(200, JSON_HEADERS, (encode_result(call, result),))
