import hashlib
import re

import pytest

from naiad.options.network.access_options import KeyLimits, digest_of, format_line, parse_api_keys

HASH = hashlib.sha256(b"secret").hexdigest()


def test_a_line_is_name_categories_and_hash() -> None:
    keys = parse_api_keys(f"# keys\n\n  ci inference,health {HASH.upper()}  \nadmin all {digest_of('other').hex()}\n")
    ci, admin = keys.keys
    assert (ci.name, ci.digest) == ("ci", hashlib.sha256(b"secret").digest())
    assert ci.opens("inference")
    assert not ci.opens("metrics")
    assert admin.opens("metrics")
    assert keys.open_categories == frozenset()


def test_dash_opens_categories_to_all_clients() -> None:
    keys = parse_api_keys("public health,metadata -\npublic metrics -\n")
    assert keys.keys == ()
    assert keys.open_categories == {"health", "metadata", "metrics"}
    assert "inference" in parse_api_keys("public all -").open_categories


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ci inference", "line 1: expected .* got 2 words"),
        (f"\nci infer {HASH}", "line 2: unknown category 'infer'"),
        (f"ci inference, {HASH}", "unknown category ''"),
        ("ci inference secret", "line 1: key 'ci': not a SHA-256"),
        (f"ci health {HASH}\nci trace {HASH}", "line 2: duplicate key 'ci'"),
    ],
)
def test_malformed_lines_are_named(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_api_keys(text)


def test_what_might_be_a_key_is_not_shown() -> None:
    with pytest.raises(ValueError, match="not a SHA-256") as refused:
        parse_api_keys("ci inference naiad_very-secret")
    assert "very-secret" not in str(refused.value)
    assert HASH not in repr(parse_api_keys(f"ci all {HASH}"))


def test_number_of_keys_is_bounded() -> None:
    lines = [format_line(f"k{number}", ["health"], str(number)) for number in range(1025)]
    with pytest.raises(ValueError, match="1025 keys"):
        parse_api_keys("\n".join(lines))
    assert len(parse_api_keys("\n".join(lines[1:])).keys) == 1024


def test_limits_follow_the_hash() -> None:
    keys = parse_api_keys(f"a all {HASH} requests-per-second=2.5 bytes-per-second=1000 in-flight=4\n")
    assert keys.keys[0].limits == KeyLimits(2.5, 1000, 4)
    assert parse_api_keys(f"a all {HASH}").keys[0].limits == KeyLimits()
    line = format_line("a", ["all"], "key", ["in-flight=4"])
    assert parse_api_keys(line).keys[0].limits.in_flight == 4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("rps=1", "line 1: key 'a': unknown limit 'rps'; known are requests-per-second, bytes-per-second, in-flight"),
        ("in-flight=0", "limit 'in-flight' is '0'; use a whole number above 0, or leave it out for no limit"),
        ("in-flight=1.5", "limit 'in-flight' is '1.5'; use a whole number above 0"),
        ("requests-per-second=-1", "limit 'requests-per-second' is '-1'; use a number above 0"),
        ("requests-per-second=inf", "limit 'requests-per-second' is 'inf'"),
        ("bytes-per-second=1e9", "limit 'bytes-per-second' is '1e9'"),
        ("bytes-per-second", "limit 'bytes-per-second' is ''"),
        ("in-flight=1 in-flight=2", "limit 'in-flight' is given twice"),
    ],
)
def test_malformed_limits_are_named(words: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        parse_api_keys(f"a all {HASH} {words}")
    with pytest.raises(ValueError, match="limits no key"):
        parse_api_keys(f"a all - {words}")
