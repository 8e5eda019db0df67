import logging
from typing import Any

import pytest

from naiad.frontend.context import UnreadRequest
from naiad.frontend.rest.cors import Cors

PAGE = "https://page.example"


class Exchange:
    query = ""
    body = b"body"
    arrival_ns = 7
    on_disconnect = None

    def __init__(self, method: str = "GET", **headers: str) -> None:
        self.method, self.path = method, "/v2"
        self.headers = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
        self.calls: list[Any] = []

    def respond(self, status: int, headers: Any, parts: Any) -> None:
        self.calls.append(("respond", status, dict(headers), b"".join(parts)))

    def start_stream(self, status: int, headers: Any) -> None:
        self.calls.append(("start_stream", status, dict(headers)))

    def send(self, parts: Any) -> None:
        self.calls.append(("send", b"".join(parts)))

    def end(self) -> None:
        self.calls.append(("end",))


def ask(context: Exchange, *origins: str) -> Any:
    """Return status and headers of the response; the route responds with the request's method and body."""

    def route(given: Any) -> None:
        given.respond(200, ((b"Content-Type", b"text/plain"),), (given.method.encode(), given.body))

    Cors(origins or (PAGE,), route, route).handle(context)  # type: ignore[arg-type]
    ((_, status, headers, body),) = context.calls
    return status, headers, body


def test_allowed_page_may_read_the_response() -> None:
    status, headers, body = ask(Exchange(origin=PAGE))
    assert (status, body) == (200, b"GETbody")
    assert headers[b"Access-Control-Allow-Origin"] == PAGE.encode()
    assert headers[b"Vary"] == b"Origin"
    assert b"Inference-Header-Content-Length" in headers[b"Access-Control-Expose-Headers"]
    assert headers[b"Content-Type"] == b"text/plain"


def test_preflight_is_answered_without_the_route() -> None:
    requested = "authorization,content-type,inference-header-content-length"
    context = Exchange(
        "OPTIONS", origin=PAGE, access_control_request_method="POST", access_control_request_headers=requested
    )
    status, headers, body = ask(context)
    assert (status, body) == (200, b"")
    assert headers[b"Access-Control-Allow-Origin"] == PAGE.encode()
    assert b"POST" in headers[b"Access-Control-Allow-Methods"]
    assert headers[b"Access-Control-Allow-Headers"] == requested.encode()
    assert b"Origin" in headers[b"Vary"]


def test_unknown_origin_gets_no_header_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="naiad"):
        status, headers, _ = ask(Exchange(origin="https://evil.example"))
    assert status == 200
    assert headers == {b"Content-Type": b"text/plain", b"Vary": b"Origin"}
    assert "evil.example" in caplog.text


def test_preflight_of_another_page_goes_to_the_route() -> None:
    context = Exchange("OPTIONS", origin="https://evil.example", access_control_request_method="POST")
    _, headers, body = ask(context)
    assert body == b"OPTIONSbody"
    assert b"Access-Control-Allow-Origin" not in headers


@pytest.mark.parametrize("origin", [PAGE + ".evil.example", PAGE + "/", PAGE.upper(), "https://page", "null", ""])
def test_origins_are_compared_as_a_whole(origin: str) -> None:
    assert b"Access-Control-Allow-Origin" not in ask(Exchange(origin=origin))[1]


def test_star_allows_every_page_with_one_response() -> None:
    headers = ask(Exchange(origin="https://any.example"), "*")[1]
    assert headers[b"Access-Control-Allow-Origin"] == b"*"
    assert b"Vary" not in headers
    assert ask(Exchange(), "*")[1] == {b"Content-Type": b"text/plain"}


def test_response_without_an_origin_varies_all_the_same() -> None:
    assert ask(Exchange())[1] == {b"Content-Type": b"text/plain", b"Vary": b"Origin"}


def test_long_list_of_requested_headers_is_not_repeated() -> None:
    context = Exchange(
        "OPTIONS", origin=PAGE, access_control_request_method="POST", access_control_request_headers="x" * 5000
    )
    assert b"Access-Control-Allow-Headers" not in ask(context)[1]


def test_streams_and_disconnects_pass_through() -> None:
    context = Exchange(origin=PAGE)

    def route(given: Any) -> None:
        given.on_disconnect = print
        assert given.on_disconnect is print
        given.start_stream(200, ())
        given.send((b"a", b"b"))
        given.end()

    Cors((PAGE,), route, route).handle(context)  # type: ignore[arg-type]
    assert context.on_disconnect is print
    assert [call[0] for call in context.calls] == ["start_stream", "send", "end"]
    assert b"Access-Control-Allow-Origin" in context.calls[0][2]


def test_only_named_origins_may_send_credentials() -> None:
    for origins, expected in ((("https://a.example",), b"true"), (("*",), None), (("*", "https://a.example"), None)):
        context = UnreadRequest("GET", "/v2", {b"origin": b"https://a.example"}, 0)
        Cors(origins, lambda inner: inner.respond(200, (), ()), lambda _: None).handle(context)  # type: ignore[arg-type]
        assert context.response is not None
        assert dict(context.response[1]).get(b"Access-Control-Allow-Credentials") == expected
