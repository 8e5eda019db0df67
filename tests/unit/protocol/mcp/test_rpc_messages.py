"""Messages of the Model Context Protocol: what is a call, what is none, and what is refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.protocol.mcp.rpc_messages import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    MAX_BODY_BYTES,
    PARSE_ERROR,
    UNSUPPORTED_VERSION,
    RpcError,
    encode_result,
    encode_rpc_error,
    initialized,
    read_call,
)

META = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
STATELESS = {b"mcp-protocol-version": b"2026-07-28", b"mcp-method": b"tools/call", b"mcp-name": b"m"}


def body(**members: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **members}).encode()


def refusal(message: bytes, headers: dict[bytes, bytes] | None = None) -> RpcError:
    with pytest.raises(RpcError) as raised:
        read_call(message, headers or {})
    return raised.value


def test_request_is_read_and_answered_with_its_id() -> None:
    call = read_call(body(id="7", method="ping", params={"_meta": {"progressToken": 3}}), {})
    assert call is not None
    assert (call.id, call.method, call.progress_token, call.is_stateless) == ("7", "ping", 3, False)
    assert json.loads(encode_result(call, {})) == {"jsonrpc": "2.0", "id": "7", "result": {}}


def test_notifications_and_answers_expect_no_result() -> None:
    assert read_call(body(method="notifications/initialized"), {}) is None
    assert read_call(body(id=1, result={}), {}) is None


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (b"{", PARSE_ERROR),
        (b"[" * 5000, PARSE_ERROR),
        (b"[]", INVALID_REQUEST),
        (b'{"id": 1, "method": "ping"}', INVALID_REQUEST),
        (body(id=1), INVALID_REQUEST),
        (body(id=1, method=2), INVALID_REQUEST),
        (body(id=None, method="ping"), INVALID_REQUEST),
        (body(id=True, method="ping"), INVALID_REQUEST),
        (body(id="x" * 1025, method="ping"), INVALID_REQUEST),
        (body(id=1, method="ping", params=[]), INVALID_PARAMS),
        (b" " * (MAX_BODY_BYTES + 1), INVALID_REQUEST),
    ],
)
def test_message_of_another_form_is_refused(message: bytes, code: int) -> None:
    error = refusal(message)
    assert error.code == code
    status, answer = encode_rpc_error(error)
    assert status == 400
    assert json.loads(answer)["error"]["code"] == code


def test_unknown_revision_is_refused_with_the_known_ones() -> None:
    error = refusal(body(id=1, method="ping"), {b"mcp-protocol-version": b"1999-01-01"})
    assert error.code == UNSUPPORTED_VERSION
    assert error.data is not None
    assert error.data["supported"][0] == "2026-07-28"


def test_initialize_agrees_on_a_known_revision() -> None:
    for asked, agreed in (("2025-06-18", "2025-06-18"), ("2026-07-28", "2025-11-25"), (None, "2025-11-25")):
        call = read_call(body(id=1, method="initialize", params={"protocolVersion": asked}), {})
        assert call is not None
        assert initialized(call, "1.0")["protocolVersion"] == agreed


def test_stateless_request_says_the_same_twice() -> None:
    message = body(id=1, method="tools/call", params={"name": "m", "_meta": META})
    call = read_call(message, STATELESS)
    assert call is not None
    assert json.loads(encode_result(call, {}))["result"] == {"resultType": "complete"}
    encoded = {**STATELESS, b"mcp-name": b"=?base64?bQ==?="}
    assert read_call(message, encoded) is not None
    for field, value in ((b"mcp-method", b"ping"), (b"mcp-name", b"other"), (b"mcp-name", b"=?base64?*?=")):
        assert refusal(message, {**STATELESS, field: value}).code == HEADER_MISMATCH
    assert refusal(message, {b"mcp-protocol-version": b"2026-07-28"}).code == HEADER_MISMATCH
    assert refusal(body(id=1, method="tools/call", params={"name": "m"}), STATELESS).code == INVALID_PARAMS


@given(
    st.binary(max_size=64)
    | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps).map(str.encode)
)
def test_any_body_is_read_or_refused(message: bytes) -> None:
    try:
        read_call(message, {})
    except RpcError as error:
        encode_rpc_error(error)  # any other exception is a defect


def test_body_of_many_small_values_is_refused() -> None:
    error = refusal(b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":[' + b"{}," * 70_000 + b"{}]}}")
    assert (error.code, error.id) == (INVALID_REQUEST, None)
    assert "at most 65536 are read" in error.message
