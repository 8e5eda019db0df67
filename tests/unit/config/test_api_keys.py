import hashlib

import pytest

from naiad.options.network.access import digest_of, format_line, parse_api_keys

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
