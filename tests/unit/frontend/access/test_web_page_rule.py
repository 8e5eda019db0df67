"""Requests of foreign web pages, and for foreign hosts, are refused by their head."""

from typing import Any

import pytest

from naiad.frontend.access.web_pages import PRIVATE, WebPageRule, allowed_hosts
from naiad.wire.http1 import HttpError

INFER, LOAD, LIVE = "/v2/models/m/infer", "/v2/repository/models/m/load", "/v2/health/live"
CATEGORIES: dict[str, Any] = {INFER: "inference", LOAD: "model-repository", LIVE: "health"}
OWN = "127.0.0.1:8000"
PAGE = "https://app.example"
FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0"


def refusal(rule: WebPageRule, method: str = "POST", path: str = LOAD, **fields: str) -> str:
    """Return the reason for which the rule refuses a request, empty if it accepts it."""
    given = {name.replace("_", "-").encode(): value.encode() for name, value in {"host": OWN, **fields}.items()}
    try:
        rule.check(method, path, given.get)
    except HttpError as error:
        return f"{error.status}: {error.message}"
    return ""


def rule(*origins: str, hosts: tuple[str, ...] | None = None) -> WebPageRule:
    return WebPageRule(lambda path: CATEGORIES.get(path, "unknown"), origins, hosts)


@pytest.mark.parametrize("path", [INFER, LOAD, "/nonesuch"])
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
@pytest.mark.parametrize(
    "fields",
    [
        {"origin": "http://evil.example"},
        {"origin": "http://evil.example", "sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site", "origin": "http://127.0.0.1:3000"},
        {"sec_fetch_site": "something-new"},
        {"sec_fetch_site": ""},
        {"origin": "null"},
        {"origin": ""},
        {"origin": "http://127.0.0.1"},
        {"origin": "http://127.0.0.1:80000"},
        {"origin": "http://127.0.0.1:8000.evil.example"},
        {"origin": "http://127.0.0.1:8000, http://evil.example"},
        {"origin": "http://localhost:8000"},
    ],
)
def test_changes_by_foreign_pages_are_refused(method: str, path: str, fields: dict[str, str]) -> None:
    assert refusal(rule(), method, path, **fields).startswith("403: requests of web pages of other origins")


def test_live_streams_are_for_own_pages() -> None:
    stream = "/v2/live"
    assert refusal(rule(), "GET", stream, sec_fetch_site="cross-site").startswith("403")
    assert refusal(rule("*"), "GET", stream, origin="http://evil.example").startswith("403")
    assert refusal(rule(PAGE), "GET", stream, origin=PAGE, sec_fetch_site="cross-site") == ""
    assert refusal(rule(), "GET", stream, sec_fetch_site="same-origin") == ""
    assert refusal(rule(), "GET", stream, user_agent=FIREFOX) == ""  # browsers mark no requests over plain HTTP


@pytest.mark.parametrize(
    "fields",
    [
        {},  # curl, tritonclient
        {"user_agent": FIREFOX},
        {"origin": "http://127.0.0.1:8000"},
        {"origin": "http://127.0.0.1:8000", "sec_fetch_site": "same-origin"},
        {"origin": "https://proxy.example", "sec_fetch_site": "same-origin"},  # a proxy that changes Host
        {"origin": "http://EXAMPLE.org", "host": "example.org:80"},
        {"origin": "https://example.org", "host": "example.org"},
        {"sec_fetch_site": "none"},
    ],
)
def test_own_pages_and_other_clients_are_served(fields: dict[str, str]) -> None:
    assert refusal(rule(), **fields) == ""
    assert refusal(rule(), path=INFER, **fields) == ""


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_pages_may_ask_what_changes_nothing(method: str) -> None:
    assert refusal(rule(), method, LIVE, origin="http://evil.example", sec_fetch_site="cross-site") == ""


def test_get_that_executes_a_model_obeys_too() -> None:
    assert refusal(rule(), "GET", INFER, origin="http://evil.example")
    assert refusal(rule(), "GET", INFER, sec_fetch_site="cross-site")
    # An image of a page over plain HTTP is not marked at all.
    assert refusal(rule(), "GET", INFER, user_agent=FIREFOX)
    assert refusal(rule(), "GET", INFER, user_agent=FIREFOX, sec_fetch_site="same-origin") == ""
    assert refusal(rule(), "GET", INFER, user_agent="curl/8.5") == ""


def test_named_origins_may_do_everything() -> None:
    listed = rule(PAGE, "null")
    for fields in ({"origin": PAGE, "sec_fetch_site": "cross-site"}, {"origin": PAGE}, {"origin": "null"}):
        assert refusal(listed, **fields) == ""
        assert refusal(listed, path=INFER, **fields) == ""
    assert "'http://app.example'" in refusal(listed, origin="http://app.example")


def test_any_origin_may_infer_but_change_nothing() -> None:
    open_to_all = rule("*")
    assert refusal(open_to_all, path=INFER, origin=PAGE, sec_fetch_site="cross-site") == ""
    assert "change this server" in refusal(open_to_all, origin=PAGE, sec_fetch_site="cross-site")
    assert refusal(rule("*", PAGE), origin=PAGE, sec_fetch_site="cross-site") == ""


def test_refusal_names_the_flag_that_allows_it() -> None:
    assert refusal(rule(), origin="http://localhost:3000").endswith("--http-cors-origin=http://localhost:3000")


HOSTS = ("localhost", "127.0.0.1", "[::1]")


@pytest.mark.parametrize(
    "host", ["localhost", "LocalHost:8000", "localhost.", "127.0.0.1:1", "[::1]", "[::1]:8000", ""]
)
def test_own_hosts_are_answered(host: str) -> None:
    assert refusal(rule(hosts=HOSTS), "GET", LIVE, host=host) == ""


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8000",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "[::2]",
        "127.0.0.2",
        "localhost, evil.example",
        "evil.example@localhost",
        ":8000",
        "0.0.0.0",
    ],
)
def test_foreign_hosts_are_refused_everywhere(host: str) -> None:
    for method, path in (("GET", LIVE), ("POST", INFER), ("POST", LOAD)):
        message = refusal(rule(PAGE, "*", hosts=HOSTS), method, path, host=host, sec_fetch_site="same-origin")
        assert "--http-allowed-hosts" in message


@pytest.mark.parametrize(
    ("address", "names", "hosts"),
    [
        ("127.0.0.1", (), {*HOSTS, PRIVATE}),
        ("::1", (), {*HOSTS, PRIVATE}),
        ("[::1]", (), {*HOSTS, PRIVATE}),
        ("localhost", (), {*HOSTS, PRIVATE}),
        ("127.0.0.5", (), {*HOSTS, "127.0.0.5", PRIVATE}),
        ("127.0.0.1", ("gpu.example", "[2001:DB8::1]"), {*HOSTS, "gpu.example", "[2001:db8::1]"}),
        ("127.0.0.1", ("*",), None),
        ("0.0.0.0", (), None),
        ("::", (), None),
        ("10.0.0.7", (), None),
        ("host.example", (), None),
        ("0.0.0.0", ("Gpu.Example",), {"gpu.example"}),
        ("unix:/run/naiad.sock", (), None),
    ],
)
def test_loopback_servers_have_a_list_of_hosts(address: str, names: tuple[str, ...], hosts: set[str] | None) -> None:
    found = allowed_hosts(address, names)
    assert (None if found is None else set(found)) == hosts


@pytest.mark.parametrize(
    ("host", "is_refused"),
    [
        ("test", False),
        ("triton:8000", False),
        ("10.0.0.7:8000", False),
        ("[fd00::7]:8000", False),
        ("app.localhost:8000", False),
        ("evil.example", True),
        ("evil.example.:8000", True),
        ("127.0.0.1.evil.example", True),
        ("127.0.0.1.nip.io", True),
        ("localhost.evil.example", True),
        ("0x7f.1", True),
        ("1.2.3", True),
    ],
)
def test_loopback_servers_refuse_names_of_public_dns(host: str, is_refused: bool) -> None:
    checked = rule(hosts=tuple(allowed_hosts("127.0.0.1", ()) or ()))
    for method, path in (("GET", LIVE), ("POST", INFER), ("POST", LOAD)):
        assert ("--http-allowed-hosts" in refusal(checked, method, path, host=host)) is is_refused


def test_grpc_calls_are_looked_at_only_when_marked() -> None:
    checked = rule(hosts=HOSTS)
    fields = {b"content-type": b"application/grpc"}
    checked.check_call("/inference.GRPCInferenceService/ModelInfer", "mesh.example", fields.get)
    for name, value in ((b"origin", b"http://evil.example"), (b"sec-fetch-site", b"cross-site")):
        with pytest.raises(HttpError, match="web pages"):
            checked.check_call("/a/B", "localhost:8001", {**fields, name: value}.get)
