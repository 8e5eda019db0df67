"""Messages of the Model Context Protocol over HTTP: JSON-RPC requests, results and errors.

Two kinds of revisions are read. Until 2025-11-25 a client begins with `initialize`; since 2026-07-28 every request
says all about itself, in its header fields and in `_meta`. Neither needs a session here: each request stands alone.
"""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from naiad.core.errors import excerpt
from naiad.core.limits.value_limits import excess_of_values
from naiad.core.tensor import Buffer

HANDSHAKE_VERSIONS = ("2025-03-26", "2025-06-18", "2025-11-25")
"""Revisions that begin with `initialize`, the oldest first."""
STATELESS_VERSIONS = ("2026-07-28",)
MAX_BODY_BYTES = 4 << 20
"""Limit of a body: it is parsed on the event loop, in some ten milliseconds, because its values are bounded too."""

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
HEADER_MISMATCH = -32020
UNSUPPORTED_VERSION = -32022
_STATUSES = {METHOD_NOT_FOUND: 404}
_META = "_meta"
_VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
_CAPABILITIES_KEY = "io.modelcontextprotocol/clientCapabilities"
_SERVER_KEY = "io.modelcontextprotocol/serverInfo"
_NAMED = ("tools/call",)
"""Methods whose `name` is repeated in the field Mcp-Name."""
_MAX_ID_CHARACTERS = 1024
_BASE64 = ("=?base64?", "?=")

Id = str | int
Json = dict[str, Any]


class RpcError(Exception):
    """An error of the protocol. What a tool says of its failure is a result instead."""

    def __init__(self, code: int, message: str, *, data: Json | None = None, call_id: Id | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data
        self.id = call_id


@dataclass(frozen=True, slots=True)
class Call:
    """A request that expects a result."""

    id: Id
    method: str
    params: Mapping[str, Any]
    is_stateless: bool
    """It is of a revision without `initialize`."""

    @property
    def progress_token(self) -> Id | None:
        """The token with which the client asks for messages about progress; None if it does not ask."""
        meta = self.params.get(_META)
        token = meta.get("progressToken") if isinstance(meta, dict) else None
        return token if _is_id(token) else None

    def error(self, code: int, message: str) -> RpcError:
        """Return an error as the answer to this call."""
        return RpcError(code, message, call_id=self.id)


def read_call(body: Buffer, headers: Mapping[bytes, bytes]) -> Call | None:
    """Return the request of a body; None for a message that expects no result. Raises RpcError."""
    message = _read_object(body)
    is_stateless = _read_version(headers)
    if "method" not in message and ("result" in message or "error" in message):
        return None  # the answer to a question, which this server never asks
    method = message.get("method")
    if message.get("jsonrpc") != "2.0" or not isinstance(method, str):
        raise RpcError(INVALID_REQUEST, 'expected {"jsonrpc": "2.0", "id": ..., "method": ..., "params": {...}}')
    if "id" not in message:
        return None  # a notification
    call_id, params = message["id"], message.get("params", {})
    if not _is_id(call_id):
        raise RpcError(INVALID_REQUEST, f"'id' is not a whole number or a text of up to {_MAX_ID_CHARACTERS} letters")
    if not isinstance(params, dict):
        raise RpcError(INVALID_PARAMS, "'params' is not an object", call_id=call_id)
    call = Call(call_id, method, params, is_stateless)
    if is_stateless:
        _check_stateless(call, headers)
    return call


def _read_object(body: Buffer) -> Json:
    if len(body) > MAX_BODY_BYTES:
        raise RpcError(INVALID_REQUEST, f"the body has {len(body)} bytes; a message has at most {MAX_BODY_BYTES}")
    excess = excess_of_values(body)
    if excess:
        raise RpcError(INVALID_REQUEST, f"the body has {excess}; send several messages")
    try:
        message = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RpcError(PARSE_ERROR, f"the body is not JSON: {excerpt(str(error))}") from None
    if not isinstance(message, dict):
        raise RpcError(INVALID_REQUEST, "the body is not one JSON object; send each message of its own")
    return message


def _is_id(value: object) -> bool:
    return type(value) is int or (isinstance(value, str) and len(value) <= _MAX_ID_CHARACTERS)


def _read_version(headers: Mapping[bytes, bytes]) -> bool:
    """Return whether the request is of a revision without `initialize`. Raises RpcError for an unknown revision."""
    version = headers.get(b"mcp-protocol-version", b"").decode("latin-1")
    if version and version not in (*HANDSHAKE_VERSIONS, *STATELESS_VERSIONS):
        supported = [*STATELESS_VERSIONS, *reversed(HANDSHAKE_VERSIONS)]
        raise RpcError(
            UNSUPPORTED_VERSION,
            f"the field MCP-Protocol-Version is '{excerpt(version)}'; supported are {', '.join(supported)}",
            data={"supported": supported, "requested": excerpt(version)},
        )
    return version in STATELESS_VERSIONS


def _check_stateless(call: Call, headers: Mapping[bytes, bytes]) -> None:
    """Check that `_meta` and header fields say the same: proxies look at the fields alone. Raises RpcError."""
    meta = call.params.get(_META)
    missing = [key for key in (_VERSION_KEY, _CAPABILITIES_KEY) if not isinstance(meta, dict) or key not in meta]
    if missing:
        raise call.error(INVALID_PARAMS, f"params._meta has no {' and no '.join(missing)}")
    assert isinstance(meta, dict)
    written: dict[str, object] = {"MCP-Protocol-Version": meta[_VERSION_KEY], "Mcp-Method": call.method}
    if call.method in _NAMED:
        written["Mcp-Name"] = call.params.get("name")
    for name, value in written.items():
        if _read_field(headers.get(name.lower().encode())) != value:
            raise call.error(HEADER_MISMATCH, f"the field {name} does not say the same as the body")


def _read_field(field: bytes | None) -> str | None:
    """Return the text of a field, which is in base64 where a field could not hold it."""
    if field is None:
        return None
    text, (begin, end) = field.decode("latin-1"), _BASE64
    if not (text.startswith(begin) and text.endswith(end)):
        return text
    try:
        return base64.b64decode(text.removeprefix(begin).removesuffix(end), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None


# --- answers --------------------------------------------------------------------------------------------------------


def encode_result(call: Call, result: Json) -> bytes:
    """Return the response with a result."""
    if call.is_stateless:
        result = {"resultType": "complete", **result}
    return orjson.dumps({"jsonrpc": "2.0", "id": call.id, "result": result})


def encode_rpc_error(error: RpcError) -> tuple[int, bytes]:
    """Return status and body of the response with an error of the protocol."""
    members: Json = {"code": error.code, "message": error.message}
    if error.data is not None:
        members["data"] = error.data
    body = orjson.dumps({"jsonrpc": "2.0", "id": error.id, "error": members})
    return _STATUSES.get(error.code, 400), body


def encode_progress(token: Id, done: int, message: str) -> bytes:
    """Return the notification that a call has made progress."""
    params: Json = {"progressToken": token, "progress": done}
    if message:
        params["message"] = message
    return orjson.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})


def initialized(call: Call, server_version: str) -> Json:
    """Return the result of `initialize`: the revision of the client if it is known, otherwise the newest one."""
    asked = call.params.get("protocolVersion")
    return {
        "protocolVersion": asked if asked in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[-1],
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "naiad", "version": server_version},
        "instructions": _INSTRUCTIONS,
    }


def discovered(server_version: str) -> Json:
    """Return the result of `server/discover`."""
    return {
        "supportedVersions": list(STATELESS_VERSIONS),
        "capabilities": {"tools": {}},
        "instructions": _INSTRUCTIONS,
        _META: {_SERVER_KEY: {"name": "naiad", "version": server_version}},
        **UNCACHED,
    }


_INSTRUCTIONS = "Each tool executes one machine-learning model of this inference server on the given inputs."
UNCACHED: Json = {"ttlMs": 0, "cacheScope": "private"}
"""For results of revisions without `initialize`: models come and go, and clients have different rights."""
