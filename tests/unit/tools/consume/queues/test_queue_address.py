"""Addresses of queues."""

import pytest

from naiad.core.errors import InferError
from naiad.tools.consume.queues.queue_address import QueueAddress, parse_queue_address


def test_an_address_has_host_port_stream_and_database() -> None:
    assert parse_queue_address("redis://queue/requests") == QueueAddress("redis", "queue", 6379, "requests")
    full = parse_queue_address("rediss://joe:p%40ss@[::1]:7000/a:b/c?db=3")
    assert full == QueueAddress("rediss", "::1", 7000, "a:b/c", "joe", "p@ss", {"db": "3"})
    assert str(full) == "rediss://[::1]:7000/a:b/c?db=3"


def test_each_broker_has_its_port_and_names() -> None:
    nats, kafka = (
        parse_queue_address("nats+tls://token@queue/in?subject=in.new"),
        parse_queue_address("kafka://queue/in"),
    )
    assert (nats.port, nats.is_tls, nats.user, nats.options) == (4222, True, "token", {"subject": "in.new"})
    assert (kafka.port, kafka.is_tls) == (9092, False)
    assert str(nats.dead_letters) == "nats+tls://queue:4222/in-dead"
    assert str(kafka.dead_letters) == "kafka://queue:9092/in-dead"
    assert str(parse_queue_address("redis://queue/in").dead_letters) == "redis://queue:6379/in:dead"


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
        ("nats://joe:secret@queue/a?db=1", "an option other than subject"),
        ("kafka://joe:secret@queue/a?mechanism=MD5", "mechanism is 'MD5'"),
    ],
)
def test_errors_name_the_form_and_no_password(text: str, reason: str) -> None:
    with pytest.raises(InferError, match=reason) as raised:
        parse_queue_address(text)
    assert "redis://HOST[:PORT]/STREAM" in raised.value.message
    assert "secret" not in raised.value.message


@pytest.mark.parametrize(
    "text", ["nats://queue/a.b", "nats://queue/a%20b", "kafka://queue/a%3Ab", "kafka://queue/a/b"]
)
def test_names_that_no_broker_takes_are_refused(text: str) -> None:
    with pytest.raises(InferError, match=r"is no name of a (stream|topic)"):
        parse_queue_address(text)
