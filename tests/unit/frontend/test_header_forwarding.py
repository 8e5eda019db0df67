"""Forwarded fields become parameters of one request, not of other requests with the same header."""

import pytest

from naiad.core.errors import ErrorCode, InferError
from naiad.core.request import RequestHeader
from naiad.frontend.header_forwarding import GRPC_FIELDS, HeaderForwarding
from naiad.options.network.access_options import compile_header_pattern


def forwarding(pattern: str, hidden: frozenset[bytes] = frozenset()) -> HeaderForwarding:
    compiled = compile_header_pattern(pattern)
    assert compiled is not None
    return HeaderForwarding(compiled, hidden)


def header(**parameters: object) -> RequestHeader:
    return RequestHeader(model_name="m", parameters=parameters, priority=3)  # type: ignore[arg-type]


def test_matching_fields_become_string_parameters() -> None:
    fields = [(b"X-User", b"ada"), (b"Host", b"h"), (b"x-user-id", b"7")]
    derived = forwarding("X-USER").apply(header(own=1), fields)
    assert derived.parameters == {"own": 1, "X-User": "ada", "x-user-id": "7"}
    assert (derived.model_name, derived.priority) == ("m", 3)


def test_match_may_be_anywhere_in_the_name() -> None:
    assert forwarding("ser").apply(header(), [(b"x-user", b"1")]).parameters == {"x-user": "1"}


def test_case_matters_when_the_pattern_says_so() -> None:
    fields = [(b"prefix_a", b"1"), (b"PREFIX_B", b"2")]
    assert forwarding("(?-i)PREFIX_.*").apply(header(), fields).parameters == {"PREFIX_B": "2"}


def test_empty_pattern_forwards_nothing() -> None:
    assert compile_header_pattern("") is None


def test_values_do_not_leak_between_requests_sharing_header() -> None:
    shared = header()
    forward = forwarding("x-user")
    ada = forward.apply(shared, [(b"x-user", b"ada")])
    bob = forward.apply(shared, [(b"x-user", b"bob")])
    unchanged = forward.apply(shared, [(b"host", b"h")])
    assert (ada.parameters, bob.parameters) == ({"x-user": "ada"}, {"x-user": "bob"})
    assert unchanged is shared
    assert shared.parameters == {}


def test_equal_requests_share_header_and_derived_values() -> None:
    shared = header()
    shared.admission = object()
    forward = forwarding("x-user")
    first = forward.apply(shared, [(b"x-user", b"ada")])
    assert first.admission is None  # a memo of the shared header, whose parameters differ
    assert forward.apply(shared, [(b"x-user", b"ada")]) is first
    assert forward.apply(header(), [(b"x-user", b"ada")]) is not first


def test_memory_is_bounded() -> None:
    forward = forwarding(".*")
    for number in range(3000):
        text = b"%d" % number
        assert forward.apply(header(), [(b"n" + text, text)]).parameters == {f"n{number}": str(number)}
    assert len(forward._derived) <= 512
    assert len(forward._names) <= 1024
    before = len(forward._derived)
    large = forward.apply(header(), [(b"x", b"v" * 5000)])
    assert large.parameters == {"x": "v" * 5000}
    assert len(forward._derived) == before


@pytest.mark.parametrize("name", ["timeout", "headers", "priority", "sequence_id", "triton_x"])
def test_reserved_names_are_rejected(name: str) -> None:
    with pytest.raises(InferError) as rejected:
        forwarding(".*").apply(header(), [(name.encode(), b"1")])
    assert rejected.value.code is ErrorCode.INVALID_ARG
    assert rejected.value.message == f"Header '{name}' is reserved for Triton usage and cannot be forwarded."


def test_what_grpc_keeps_to_itself_is_not_metadata() -> None:
    fields = [(b"te", b"trailers"), (b"content-type", b"application/grpc"), (b"user-agent", b"x"), (b"my", b"1")]
    assert forwarding(".*", GRPC_FIELDS).apply(header(), fields).parameters == {"user-agent": "x", "my": "1"}


def test_values_that_are_no_text_are_replaced() -> None:
    assert forwarding("b").apply(header(), [(b"b", b"\xff")]).parameters == {"b": "\ufffd"}
