"""Points in time."""

from datetime import datetime

import pytest

from naiad.core.errors import InferError
from naiad.tools.predict.since_time import is_since, since_ns

TEN = int(datetime.fromisoformat("2026-03-01T10:00:00Z").timestamp()) * 10**9


@pytest.mark.parametrize(
    ("text", "offset_ns"),
    [
        ("2026-03-01T10:00:00Z", 0),
        ("2026-03-01T12:00:00+02:00", 0),
        ("2026-03-01 10:00:00.000001Z", 1000),
        ("2026-03-01T11:00Z", 3600 * 10**9),
    ],
)
def test_times_have_a_zone(text: str, offset_ns: int) -> None:
    assert since_ns(text) == TEN + offset_ns


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("2026-03-01T10:00:00", "without a zone; write 2026-03-01T10:00:00Z for UTC"),
        ("2026-03-01", "without a zone; write 2026-03-01T00:00:00Z for UTC"),
        ("yesterday", "since is 'yesterday'; expected last, or a date and time with its zone"),
        ("1767225600", "expected last, or a date and time with its zone"),
    ],
)
def test_other_texts_are_refused(text: str, fix: str) -> None:
    with pytest.raises(InferError, match=fix):
        since_ns(text)


def test_equal_times_count() -> None:
    assert is_since(TEN, TEN, is_rounded=False)
    assert not is_since(TEN - 1, TEN, is_rounded=False)
    assert not is_since(TEN, TEN + 1, is_rounded=False)
    assert is_since(TEN, TEN + 999_999_999, is_rounded=True), "the time of the object has lost its fraction"
    assert not is_since(TEN, TEN + 10**9, is_rounded=True)
