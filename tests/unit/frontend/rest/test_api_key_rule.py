import json
from typing import Any

import pytest

from naiad.frontend.access.access import ApiKeyRule
from naiad.frontend.rest.metrics_port import metrics_route, respond_metrics
from naiad.options.network.access_options import format_line, parse_api_keys
from naiad.wire.grpc import GrpcStatus

FILE = "\n".join(
    [
        format_line("ci", ["inference", "metadata"], "ci-key"),
        format_line("admin", ["all"], "admin-key"),
        "public health -",
    ]
)


@pytest.fixture
def rule() -> ApiKeyRule:
    return ApiKeyRule(parse_api_keys(FILE))


def fields(authorization: str) -> Any:
    return {b"authorization": authorization.encode()}.get


def test_open_category_needs_no_key(rule: ApiKeyRule) -> None:
    assert rule.rejection("health", {}.get) is None


def test_missing_key_is_asked_for(rule: ApiKeyRule) -> None:
    rejection = rule.rejection("inference", {}.get)
    assert rejection is not None
    assert (rejection.http_status, rejection.grpc_status) == (401, GrpcStatus.UNAUTHENTICATED)
    assert rejection.headers == ((b"WWW-Authenticate", b'Bearer realm="naiad"'),)


@pytest.mark.parametrize(
    "authorization", ["Bearer wrong", "Bearer ", "Bearer", "", "Basic ci-key", "ci-key", "Bearer " + "x" * 10000]
)
def test_wrong_key_is_rejected(rule: ApiKeyRule, authorization: str) -> None:
    rejection = rule.rejection("inference", fields(authorization))
    assert rejection is not None
    assert (rejection.http_status, rejection.grpc_status) == (401, GrpcStatus.UNAUTHENTICATED)
    assert dict(rejection.headers)[b"WWW-Authenticate"].startswith(b"Bearer ")


@pytest.mark.parametrize("authorization", ["Bearer ci-key", "bearer ci-key", "BEARER  ci-key "])
def test_right_key_opens_its_categories(rule: ApiKeyRule, authorization: str) -> None:
    assert rule.rejection("inference", fields(authorization)) is None
    assert rule.rejection("metadata", fields(authorization)) is None


def test_key_of_another_category_is_rejected_by_name(rule: ApiKeyRule) -> None:
    rejection = rule.rejection("model-repository", fields("Bearer ci-key"))
    assert rejection is not None
    assert (rejection.http_status, rejection.grpc_status) == (403, GrpcStatus.PERMISSION_DENIED)
    assert rejection.message == "the API key 'ci' is not for 'model-repository'"


def test_key_for_all_opens_everything(rule: ApiKeyRule) -> None:
    for category in ("inference", "metrics", "other"):
        assert rule.rejection(category, fields("Bearer admin-key")) is None


def test_replaced_keys_apply_at_once(rule: ApiKeyRule) -> None:
    rule.keys = parse_api_keys(format_line("new", ["all"], "new-key"))
    assert rule.rejection("inference", fields("Bearer ci-key")) is not None
    assert rule.rejection("inference", fields("Bearer new-key")) is None
    assert rule.rejection("health", {}.get) is not None


class Exchange:
    method, path = "GET", "/metrics"

    def __init__(self, **headers: str) -> None:
        self.headers = {name.encode(): value.encode() for name, value in headers.items()}

    client = None

    def respond(self, status: int, headers: Any, parts: Any) -> None:
        self.status, self.sent, self.body = status, dict(headers), b"".join(parts)


def test_metrics_need_a_key_for_metrics(rule: ApiKeyRule) -> None:
    route = metrics_route(lambda context: respond_metrics(context, b"up 1\n"), rule)
    rejected, opened = Exchange(authorization="Bearer ci-key"), Exchange(authorization="Bearer admin-key")
    route(rejected)  # type: ignore[arg-type]
    route(opened)  # type: ignore[arg-type]
    assert rejected.status == 403
    assert "error" in json.loads(rejected.body)
    assert b"WWW-Authenticate" in rejected.sent
    assert (opened.status, opened.body) == (200, b"up 1\n")


def test_any_key_shows_what_does_not_exist(rule: ApiKeyRule) -> None:
    assert rule.rejection("unknown", {}.get) is not None
    assert rule.rejection("unknown", fields("Bearer wrong")) is not None
    assert rule.rejection("unknown", fields("Bearer ci-key")) is None


def test_unknown_paths_are_open_where_everything_is_open() -> None:
    assert ApiKeyRule(parse_api_keys("public all -")).rejection("unknown", {}.get) is None


@pytest.mark.parametrize(("length", "is_accepted"), [(512, True), (513, False), (100_000, False)])
def test_longer_tokens_are_not_hashed(length: int, is_accepted: bool) -> None:
    # The file lists the key, so only its length can be the reason.
    key = "k" * length
    rule = ApiKeyRule(parse_api_keys(format_line("long", ["all"], key)))
    assert (rule.rejection("inference", fields(f"Bearer {key}")) is None) is is_accepted
