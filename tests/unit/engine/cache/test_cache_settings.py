"""What `--cache-config` may say, and the errors for all else, before a store is made."""

import pytest

from naiad.core.errors import ErrorCode, InferError
from naiad.engine.cache.factory import open_store
from naiad.engine.cache.response_store import LocalCache

HOST = {"host": "127.0.0.1", "port": "1"}


@pytest.mark.parametrize("ttl", ["0", "0.5", "3600"])
def test_a_ttl_is_seconds(ttl: str) -> None:
    assert isinstance(open_store({"local": {"size": "1000", "ttl": ttl}}), LocalCache)


@pytest.mark.parametrize(
    ("cache", "settings", "said"),
    [
        # A negative time would keep nothing, and one that is no number would keep without limit.
        ("local", {"size": "1000", "ttl": "-1"}, "ttl is '-1', expected seconds, 0 for no limit"),
        ("local", {"size": "1000", "ttl": "nan"}, "ttl is 'nan', expected seconds"),
        ("local", {"size": "1000", "ttl": "inf"}, "ttl is 'inf', expected seconds"),
        ("local", {"size": "1000", "ttl": "soon"}, "ttl is 'soon', expected seconds"),
        ("local", {}, "size is '', expected a number of bytes"),
        ("redis", {**HOST, "timeout_ms": "0"}, "timeout_ms is 0, expected at least 1"),
        ("redis", {**HOST, "timeout_ms": "1.5"}, "timeout_ms is '1.5', expected a number"),
        ("redis", {**HOST, "tls": "yes please"}, "tls is 'yes please', expected true or false"),
        ("redis", {**HOST, "tsl": "true"}, "unknown setting 'tsl'"),
    ],
)
def test_invalid_settings_are_reported(cache: str, settings: dict[str, str], said: str) -> None:
    with pytest.raises(InferError) as caught:
        open_store({cache: settings})
    assert caught.value.code is ErrorCode.INVALID_ARG
    assert said in caught.value.message
