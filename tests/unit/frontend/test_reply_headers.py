"""Dates are those that `email.utils` writes."""

from email.utils import formatdate

from hypothesis import given
from hypothesis import strategies as st

from naiad.frontend.reply_headers import http_date


def test_example_of_the_standard() -> None:
    assert http_date(784111777.9) == b"Sun, 06 Nov 1994 08:49:37 GMT"


@given(st.integers(0, 250_000_000_000))
def test_date_is_that_of_email(wall_s: int) -> None:
    assert http_date(wall_s) == formatdate(wall_s, usegmt=True).encode()
