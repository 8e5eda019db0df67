"""Limits of API keys: token buckets, requests in flight, shares of processes, and changes of the key file."""

import pytest

from naiad.frontend.accounting.key_usage import KeyTable, KeyUsage, TokenBucket
from naiad.options.network.access_options import ApiKey, KeyLimits

S = 1_000_000_000


def usage(share=1, **limits):
    return KeyUsage("ci", KeyLimits(**limits), share)


def admitted(key, now_ns, size=0):
    exceeded = key.exceeded(now_ns)
    if exceeded is None:
        key.receive(size)
    return exceeded is None


def test_bucket_holds_a_second_and_refills():
    bucket = TokenBucket(4.0)
    for _ in range(4):
        assert bucket.wait_s(1.0, 1) == 0
        bucket.take(1.0)
    assert bucket.wait_s(1.0, 1) == 0.25
    assert bucket.wait_s(1.0, 1 + S // 4) == 0
    assert bucket.wait_s(5.0, 1 + 100 * S) == 0.25, "never more than a second allows"


def test_rates_below_one_admit_one():
    key = usage(requests_per_s=0.5)
    assert admitted(key, 1)
    assert not admitted(key, 1 + S)
    assert admitted(key, 1 + 2 * S)


def test_requests_per_second():
    key = usage(requests_per_s=10)
    assert [admitted(key, 1) for _ in range(12)] == [True] * 10 + [False] * 2
    assert key.limited_counts == {"requests-per-second": 2, "bytes-per-second": 0, "in-flight": 0}
    assert (key.request_count, key.bytes_in) == (10, 0)
    assert sum(admitted(key, 1 + S // 2) for _ in range(10)) == 5


def test_bytes_of_responses_are_debt():
    key = usage(bytes_per_s=1000)
    assert admitted(key, 1, 400)
    key.send(2600)
    exceeded = key.exceeded(1)
    assert exceeded is not None
    assert exceeded.retry_after_s == 3
    assert exceeded.message == "API key 'ci' has reached its limit of 1000 bytes per second; try again in 3 s"
    assert not admitted(key, 1 + 2 * S)
    assert admitted(key, 1 + 3 * S)
    assert (key.bytes_in, key.bytes_out) == (400, 2600)


def test_requests_in_flight():
    key = usage(in_flight=2)
    key.in_flight = 1
    assert key.exceeded(1) is None
    key.in_flight = 2
    exceeded = key.exceeded(1)
    assert exceeded is not None
    assert (exceeded.limit, exceeded.retry_after_s) == ("in-flight", 1)
    assert key.exceeded(1, is_new=False) is None, "a further message of a stream"


@pytest.mark.parametrize(("share", "in_flight", "requests"), [(1, 3, 8), (2, 2, 4), (4, 1, 2)])
def test_processes_share_limits(share, in_flight, requests):
    key = usage(share, in_flight=3, requests_per_s=8)
    assert sum(admitted(key, 1) for _ in range(10)) == requests
    key.in_flight = in_flight - 1
    assert key.exceeded(1 + S) is None
    key.in_flight = in_flight
    assert key.exceeded(1 + S) is not None


def key_of(name, **limits):
    return ApiKey(name, frozenset(("inference",)), b"", KeyLimits(**limits))


def test_changed_files_keep_counts():
    table = KeyTable([key_of("a", requests_per_s=1), key_of("b")])
    known = table.usage(key_of("a"))
    assert known is not None
    assert admitted(known, 1)
    assert not admitted(known, 1)
    table.replace([key_of("a", requests_per_s=5), key_of("c")])
    assert table.usage(key_of("a")) is known
    assert known.request_count == 1
    assert admitted(known, 1), "the new limit counts from now"
    assert table.usage(key_of("b")) is None
    assert [each.name for each in table.usages()] == ["a", "c"]


def test_unchanged_limits_keep_their_level():
    table = KeyTable([key_of("a", requests_per_s=1)])
    known = table.usage(key_of("a"))
    assert admitted(known, 1)
    table.replace([key_of("a", requests_per_s=1)])
    assert not admitted(known, 1)


def test_without_limits_all_is_admitted():
    key = usage()
    assert not key.has_limits
    assert all(admitted(key, 1, 10**9) for _ in range(1000))
