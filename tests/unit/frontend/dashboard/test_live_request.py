"""The query of the live stream: what it may ask for, and errors that name parameter, value and fix."""

import pytest

from naiad.core.errors import InferError
from naiad.frontend.dashboard.live_request import LiveRequest, parse_live_query


def test_parameters_are_decoded() -> None:
    assert parse_live_query("") == LiveRequest()
    query = "interval_ms=250&model=a%2Fb%20%3Cc%3E&version=3&log=true"
    assert parse_live_query(query) == LiveRequest(0.25, "a/b <c>", "3", has_log=True)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("interval_ms=249", "'interval_ms' is '249'; expected a number from 250 to 60000"),
        ("interval_ms=60001", "expected a number from 250 to 60000"),
        ("interval_ms=1e3", "'interval_ms' is '1e3'"),
        ("interval_ms=", "'interval_ms' is ''"),
        ("log=yes", "'log' is 'yes'; expected true or false"),
        ("modle=m", "unknown parameter 'modle'; known are interval_ms, model, version, log"),
        ("log=true&log=false", "'log' occurs twice"),
        ("version=1", "needs 'model'"),
        ("model=%ff", "cannot be parsed"),
        ("&".join(["a=b"] * 20), "cannot be parsed"),
        ("model=" + "m" * 5000, "at most 4096"),
    ],
)
def test_mistakes_are_named(query: str, message: str) -> None:
    with pytest.raises(InferError, match=message.replace("(", r"\(")):
        parse_live_query(query)
