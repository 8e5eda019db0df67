"""Addresses of queues."""

import pytest

from naiad.core.errors import InferError
from naiad.tools.consume.queue_address import QueueAddress, parse_queue_address


def test_an_address_has_host_port_stream_and_database() -> None:
    assert parse_queue_address("redis://queue/requests") == QueueAddress("redis", "queue", 6379, "requests")
    full = parse_queue_address("rediss://joe:p%40ss@[::1]:7000/a:b/c?db=3")
    assert full == QueueAddress("rediss", "::1", 7000, "a:b/c", 3, "joe", "p@ss")
    assert str(full) == "rediss://[::1]:7000/a:b/c?db=3"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("http://queue/a", "no known scheme"),
        ("requests", "no known scheme"),
        ("redis://queue", "has no stream"),
        ("redis:///requests", "has no host"),
        ("redis://queue:http/a", "cannot be read"),
        ("redis://joe:secret@queue/a?db=x", "db is 'x'"),
        ("redis://joe:secret@queue/a?dbs=1", "an option other than db"),
        ("redis://joe:secret@queue/a?db", "cannot be read"),
        ("joe:secret@queue/a", "no known scheme"),
        ("joe:secret://@queue/a", "no known scheme"),
        ("redis:/joe:secret@queue/a", "an @ after the host"),
        ("redis://joe:secret#1@queue/a", "cannot be read"),
        ("redis://joe:secret/1@queue/a", "cannot be read"),
        ("redis://joe:1234?secret@queue/a", "cannot be read"),
        ("redis://joe:12345/secret@queue/a", "an @ after the host"),
    ],
)
def test_errors_name_the_form_and_no_password(text: str, reason: str) -> None:
    with pytest.raises(InferError, match=reason) as raised:
        parse_queue_address(text)
    assert "redis://HOST[:PORT]/STREAM" in raised.value.message
    assert "secret" not in raised.value.message
