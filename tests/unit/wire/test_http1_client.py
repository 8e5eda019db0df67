import pytest

from naiad.wire.http1 import HeadCache, Http1Limits
from naiad.wire.http1_client import (
    Http1ClientConnection,
    Http1ClientLimits,
    ResponseError,
    ResponseHeads,
    encode_request,
)

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: 1\r\nx-a: 2\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\nX-T: 1\r\n\r\n"
UNTIL_EOF = b"HTTP/1.1 200 OK\r\n\r\nhello"


def receive(data, limits=None):
    connection = Http1ClientConnection(limits)
    connection.expect()
    return connection, connection.receive_data(data)


def in_pieces(data, size):
    connection = Http1ClientConnection()
    connection.expect()
    responses = [connection.receive_data(data[i : i + size]) for i in range(0, len(data), size)]
    return connection, [response for response in responses if response is not None]


def test_request_is_read_by_the_server_parser():
    head, *body = encode_request("POST", "/v2/models/m/infer", [("Host", "h"), ("X-A", "b c")], (b"12", b"345"))
    parsed = HeadCache(Http1Limits()).parse(bytes(head))
    assert (parsed.method, parsed.target, parsed.content_length) == ("POST", "/v2/models/m/infer", 5)
    assert (parsed.headers[b"host"], parsed.headers[b"x-a"]) == (b"h", b"b c")
    assert body == [b"12", b"345"]


def test_get_has_no_length():
    assert encode_request("GET", "/v2", [("Host", "h")]) == [b"GET /v2 HTTP/1.1\r\nHost: h\r\n\r\n"]


@pytest.mark.parametrize(
    "headers", [[("A\r\nB", "1")], [("A", "1\r\nB: 2")], [("", "1")], [("Ä", "1")], [("A", "€")]]
)
def test_fields_cannot_be_injected(headers):
    with pytest.raises(ValueError, match="header field"):
        encode_request("GET", "/", headers)


@pytest.mark.parametrize("target", ["", "/a b", "/a\r\nX: 1", "/ä"])
def test_targets_must_be_encoded(target):
    with pytest.raises(ValueError, match="target"):
        encode_request("GET", target, [])


@pytest.mark.parametrize("data", [OK, CHUNKED])
@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_responses_in_any_pieces(data, size):
    connection, responses = in_pieces(data, size)
    assert [(each.status, bytes(each.body)) for each in responses] == [(200, b"hello")]
    assert connection.can_send


def test_repeated_fields_are_joined():
    _, response = receive(OK)
    assert response.headers[b"x-a"] == b"1, 2"


def test_connection_serves_one_request_after_another():
    connection, _ = receive(OK)
    connection.expect()
    assert not connection.can_send
    with pytest.raises(RuntimeError, match="can_send"):
        connection.expect()
    assert bytes(connection.receive_data(CHUNKED).body) == b"hello"


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\nConnection: close\r\n", b"HTTP/1.0 200 OK\r\n"])
def test_connection_that_closes_is_not_reused(head):
    connection, response = receive(head + b"Content-Length: 0\r\n\r\n")
    assert response.status == 200
    assert not connection.can_send


def test_body_without_length_ends_with_the_connection():
    connection, response = receive(UNTIL_EOF)
    assert response is None
    assert bytes(connection.receive_eof().body) == b"hello"
    assert not connection.can_send


def test_interim_responses_are_skipped():
    connection, response = receive(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nA: b\r\n\r\n" + OK)
    assert (response.status, bytes(response.body)) == (200, b"hello")
    assert b"a" not in response.headers
    assert connection.can_send


def test_large_body_is_aligned_behind_its_header():
    size = 200_000
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\nInference-Header-Content-Length: 77\r\n\r\n".encode()
    _, responses = in_pieces(head + bytes(range(200)) * 1000, 60_000)
    assert bytes(responses[0].body) == bytes(range(200)) * 1000


@pytest.mark.parametrize("data", [b"", OK[:20], OK[:-1], CHUNKED[:-1]])
def test_cut_responses_are_errors(data):
    connection, response = receive(data)
    assert response is None
    with pytest.raises(ResponseError, match="closed the connection"):
        connection.receive_eof()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"SSH-2.0-x\r\n\r\n", "malformed"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", "malformed"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", "malformed"),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n", "switched"),
        (OK + OK, "more than one response"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n", "exceeds the limit of 10"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nf\r\n" + bytes(15) + b"\r\n",
            "exceeds the limit of 10",
        ),
        (b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 9 + b"\r\n", "more than 8 header fields"),
        (b"HTTP/1.1 200 OK\r\nA: " + b"b" * 300, "more than 200 bytes"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 20, "more than 200 bytes"),
    ],
)
def test_bad_responses_are_errors(data, words):
    connection = Http1ClientConnection(Http1ClientLimits(head_bytes=200, header_count=8, body_bytes=10))
    connection.expect()
    with pytest.raises(ResponseError, match=words):
        connection.receive_data(data)
    assert not connection.can_send


def test_bytes_without_a_request_are_an_error():
    connection = Http1ClientConnection()
    with pytest.raises(ResponseError, match="no request"):
        connection.receive_data(OK)
    assert not connection.can_send


def test_repeated_heads_are_read_once():
    connection = Http1ClientConnection()
    bodies = [b"hello", b"HELLO", b"later"]
    for body in bodies:
        connection.expect()
        response = connection.receive_data(OK[:-5] + body)
        assert (response.status, bytes(response.body), response.headers[b"x-a"]) == (200, body, b"1, 2")
        assert connection.can_send
    connection.expect()
    assert connection.receive_data(OK[:-1]) is None
    assert bytes(connection.receive_data(OK[-1:]).body) == b"hello"


@pytest.mark.parametrize(
    "first", [CHUNKED, OK.replace(b"X-A: 1", b"Connection: close"), b"HTTP/1.1 100 Continue\r\n\r\n" + OK]
)
def test_heads_with_other_forms_are_read_again(first):
    heads = ResponseHeads()
    for _ in range(2):
        connection = Http1ClientConnection(heads=heads)
        connection.expect()
        assert bytes(connection.receive_data(first).body) == b"hello"
        assert connection.can_send is (b"close" not in first)


def test_bytes_after_a_known_head_are_an_error():
    connection = Http1ClientConnection()
    connection.expect()
    connection.receive_data(OK)
    connection.expect()
    with pytest.raises(ResponseError):
        connection.receive_data(OK + OK)
