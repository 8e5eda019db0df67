"""Restricted categories: Triton's texts and codes, on both protocols, before all other checks."""

import json
from typing import Any

import pytest

from naiad.frontend.access.access import UNKNOWN, AllOf, Restrictions
from naiad.frontend.http2.plan import make_plan
from naiad.frontend.router import Route, Router
from naiad.options.network.access_options import RequiredHeader
from naiad.wire.http2.headers import RequestHead, encode_fields

ADMIN = RequiredHeader("Admin-Key", "s3cret")


class Exchange:
    def __init__(self, method: str, path: str, **headers: str) -> None:
        self.method, self.path = method, path
        self.headers = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
        self.answer: tuple[int, Any] | None = None

    client = None

    def respond(self, status: int, headers: Any, parts: Any) -> None:
        assert self.answer is None
        body = b"".join(parts)
        self.answer = (status, json.loads(body) if body else None)


def restricted_router(*categories: str) -> tuple[Router, list[str]]:
    reached: list[str] = []

    def act(context: Any, arguments: Any) -> None:
        reached.append(context.path)
        context.respond(200, (), ())

    router = Router(
        [
            Route(r"/v2/models/(?P<model>[^/]+)/infer", "inference", {"POST": act}),
            Route(r"/v2/models/(?P<model>[^/]+)/config", "model-config", {"GET": act}),
        ]
    )
    router.restrict(Restrictions(dict.fromkeys(categories, ADMIN), "API"))
    return router, reached


def ask(router: Router, context: Exchange) -> tuple[int, Any]:
    router.handle(context)  # type: ignore[arg-type]
    assert context.answer is not None
    return context.answer


def test_restricted_route_names_the_header_it_expects() -> None:
    router, reached = restricted_router("model-config")
    rejected = (403, {"error": "This API is restricted, expecting header 'Admin-Key'"})
    assert ask(router, Exchange("GET", "/v2/models/m/config")) == rejected
    assert ask(router, Exchange("GET", "/v2/models/m/config", admin_key="wrong")) == rejected
    assert ask(router, Exchange("GET", "/v2/models/m/config", admin_key="")) == rejected
    assert ask(router, Exchange("GET", "/v2/models/m/config", admin_key="s3cret ")) == rejected
    assert reached == []


def test_right_header_opens_a_restricted_route() -> None:
    router, reached = restricted_router("model-config")
    assert ask(router, Exchange("GET", "/v2/models/m/config", admin_key="s3cret")) == (200, None)
    assert ask(router, Exchange("HEAD", "/v2/models/m/config", admin_key="s3cret")) == (200, None)
    assert len(reached) == 2


def test_other_categories_stay_open() -> None:
    router, reached = restricted_router("model-config")
    assert ask(router, Exchange("POST", "/v2/models/m/infer")) == (200, None)
    assert reached == ["/v2/models/m/infer"]


def test_restriction_comes_before_the_method() -> None:
    router, _ = restricted_router("model-config")
    assert ask(router, Exchange("PUT", "/v2/models/m/config"))[0] == 403
    assert ask(router, Exchange("PUT", "/v2/models/m/config", admin_key="s3cret"))[0] == 405


def test_restriction_holds_for_paths_that_were_met_before() -> None:
    router, reached = restricted_router()
    ask(router, Exchange("GET", "/v2/models/m/config"))
    router.restrict(Restrictions({"model-config": ADMIN}, "API"))
    assert ask(router, Exchange("GET", "/v2/models/m/config"))[0] == 403
    assert len(reached) == 1


class Service:
    def message_began(self, call: object, beginning: object) -> None:
        """Reject nothing."""

    def rejection(self, path: str) -> None:
        """Respond to every path."""

    def is_streaming(self, path: str) -> bool:
        return path.endswith("StreamInfer")


def plan(method: str, **metadata: str) -> Any:
    pseudo = {
        b":method": b"POST",
        b":scheme": b"http",
        b":path": b"/inference.GRPCInferenceService/" + method.encode(),
    }
    fields = [(b"content-type", b"application/grpc")]
    fields += [(name.replace("_", "-").encode(), value.encode()) for name, value in metadata.items()]
    head = RequestHead(pseudo, tuple(fields), -1, "", False)
    key = RequiredHeader("triton-grpc-protocol-admin", "s3cret")
    rule = Restrictions({"inference": key, "model-repository": key}, "protocol")
    return make_plan(head, Service(), rule)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer", "RepositoryModelLoad"])
def test_restricted_call_ends_unavailable(method: str) -> None:
    for metadata in ({}, {"triton_grpc_protocol_admin": "wrong"}, {"admin": "s3cret"}):
        block = plan(method, **metadata).rejection_block
        assert encode_fields([(b"grpc-status", b"14")]) in block
        assert b"This protocol is restricted, expecting header 'triton-grpc-protocol-admin'" in block


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer", "RepositoryModelLoad"])
def test_right_metadata_opens_a_restricted_call(method: str) -> None:
    assert plan(method, triton_grpc_protocol_admin="s3cret").rejection_block is None


def test_unrestricted_call_is_answered() -> None:
    assert plan("ServerLive").rejection_block is None


def test_value_is_not_shown_where_options_are_printed() -> None:
    assert "s3cret" not in repr(ADMIN)


def test_first_rejection_counts() -> None:
    first = Restrictions({"health": RequiredHeader("a", "1")}, "API")
    second = Restrictions({"health": RequiredHeader("b", "2"), "trace": RequiredHeader("c", "3")}, "API")
    both = AllOf(first, second)
    assert both.concerns("trace")
    assert not both.concerns("logging")
    rejection = both.rejection("health", {b"b": b"2"}.get)
    assert rejection is not None
    assert "'a'" in rejection.message
    assert both.rejection("health", {b"a": b"1", b"b": b"2"}.get) is None


def test_unknown_paths_and_methods_look_restricted() -> None:
    router, _ = restricted_router("model-config")
    for path in ("/v2/models/m/labels", "/favicon.ico", "/v2/models/" + "m" * 600):
        status, body = ask(router, Exchange("GET", path))
        assert status == 403
        assert body["error"].startswith("This API is restricted, expecting header 'Admin-Key'")
        assert ask(router, Exchange("GET", path, admin_key="s3cret"))[0] == 404
    assert b"This protocol is restricted" in plan("ModelLabels").rejection_block
    assert plan("ModelLabels", triton_grpc_protocol_admin="s3cret").rejection_block is None  # the service refuses it


def test_open_servers_report_unknown_paths() -> None:
    router, _ = restricted_router()
    assert ask(router, Exchange("GET", "/v2/models/m/labels"))[0] == 404


def test_any_required_header_shows_unknown_paths() -> None:
    rule = Restrictions({"trace": RequiredHeader("a", "1"), "logging": RequiredHeader("b", "2")}, "API")
    rejection = rule.rejection(UNKNOWN, {}.get)
    assert rejection is not None
    assert "'a' or 'b'" in rejection.message
    assert rule.rejection(UNKNOWN, {b"a": b"1"}.get) is None
    assert rule.rejection(UNKNOWN, {b"b": b"2"}.get) is None
    assert rule.rejection(UNKNOWN, {b"b": b"1"}.get) is not None
