"""The declaration of a rollout: what is read, and what each mistake is called."""

from typing import Any

import pytest

from naiad.config.rollout.rollout_declaration import Guard, Rollout, Steps, parse_toml, parse_tree

FULL = """
stable = 1
canary = 2
sticky = "user"
shadow = 5
rtol = 0.01

[aliases]
champion = 2

[steps]
weights = [5, 25, 50, 100]
every_s = 120

[guard]
min_requests = 200
max_error_rate = 0.01
max_p99_ms = 50
"""


def test_all_fields_are_read() -> None:
    rollout, problems = parse_toml(FULL)
    assert problems == []
    assert rollout == Rollout(
        1,
        2,
        sticky="user",
        shadow=5,
        rtol=0.01,
        aliases={"champion": 2},
        steps=Steps((5.0, 25.0, 50.0, 100.0), 120.0),
        guard=Guard(200, max_error_rate=0.01, max_p99_ms=50.0),
    )


def test_tree_of_a_declaration_reads_the_same() -> None:
    rollout, _ = parse_toml(FULL)
    assert rollout is not None
    assert parse_tree(rollout.as_tree()) == (rollout, [])


def test_versions_are_all_that_are_named() -> None:
    assert Rollout(1, 2, aliases={"old": 7}).versions == {1, 2, 7}


MISTAKES = [
    ("", "", 0, "stable is missing"),
    ("stable = 0", "stable", 1, "the number of a version, from 1"),
    ("stable = true", "stable", 1, "stable is true"),
    ('stable = "1"', "stable", 1, "stable is '1'"),
    ("stable = 1\ncanary = 1", "canary", 2, "another version"),
    ("stable = 1\nweight = 10", "weight", 2, "canary, the number"),
    ("stable = 1\nshadow = 10", "shadow", 2, "canary, the number"),
    ("stable = 1\ncanary = 2\nweight = 101", "weight", 3, "a number from 0 to 100"),
    ("stable = 1\ncanary = 2\nweight = -1", "weight", 3, "weight is -1"),
    ("stable = 1\ncanary = 2\nweight = nan", "weight", 3, "a number from 0 to 100"),
    ("stable = 1\ncanary = 2\natol = -1", "atol", 3, "a number from 0"),
    ("stable = 1\ncanery = 2", "canery", 2, "did you mean 'canary'?"),
    ("stable = 1\nsticky = 3", "sticky", 2, "the name of a request parameter"),
    ("stable = 1\naliases = 3", "aliases", 2, "a table"),
    ("stable = 1\n[aliases]\nlatest = 1", "aliases.latest", 3, "another name than stable, canary, latest"),
    ('stable = 1\n[aliases]\n"1x" = 1', "aliases.1x", 3, "a letter and up to 63"),
    ("stable = 1\n[aliases]\nold = 0", "aliases.old", 3, "the number of a version"),
    ("stable = 1\ncanary = 2\n[steps]\nweights = [5, 5]\nevery_s = 1", "steps.weights", 4, "ascending numbers"),
    ("stable = 1\ncanary = 2\n[steps]\nweights = []\nevery_s = 1", "steps.weights", 4, "1 to 64 ascending"),
    ("stable = 1\ncanary = 2\n[steps]\nweights = [5]\nevery_s = 0", "steps.every_s", 5, "a number above 0"),
    ("stable = 1\ncanary = 2\n[steps]\nweights = [5]", "steps.every_s", 0, "steps.every_s is not set"),
    ("stable = 1\ncanary = 2\nweight = 3\n[steps]\nweights = [5]\nevery_s = 1", "weight", 3, "steps set the weight"),
    ("stable = 1\n[steps]\nweights = [5]\nevery_s = 1", "steps", 2, "canary, the number"),
    ("stable = 1\n[guard]\nmin_requests = 3", "guard", 2, "at least one of max_error_rate"),
    ("stable = 1\n[guard]\nmax_error_rate = 2", "guard.max_error_rate", 3, "a number from 0 to 1"),
    ("stable = 1\n[guard]\nmax_p99_ms = 0", "guard.max_p99_ms", 3, "a number above 0"),
    ("stable = 1\n[guard]\nmin_requests = 0\nmax_p99_ms = 1", "guard.min_requests", 3, "a number of requests"),
    ("stable = 1\n[guard]\nmax_p99 = 1", "guard.max_p99", 3, "unknown field 'max_p99'"),
    (
        "stable = 1\ncanary = 2\n[guard]\nmax_different_share = 0.1",
        "guard.max_different_share",
        4,
        "shadow, the percentage",
    ),
    ("stable 1", "", 1, "not TOML"),
]


@pytest.mark.parametrize(("text", "path", "line", "words"), MISTAKES)
def test_mistake_has_field_line_and_expectation(text: str, path: str, line: int, words: str) -> None:
    rollout, problems = parse_toml(text, "m/rollout.toml")
    assert rollout is None
    found = [problem for problem in problems if words in problem.description]
    assert found, [problem.description for problem in problems]
    assert found[0].filename == "m/rollout.toml"
    if path:
        assert found[0].path == path
    assert found[0].line == line


def test_all_mistakes_are_reported_at_once() -> None:
    _, problems = parse_toml("stable = 0\nweight = 200\nsticky = 3")
    assert {problem.path for problem in problems} == {"stable", "weight", "sticky"}


@pytest.mark.parametrize("value", [None, [], {}, "x" * 500, True, 1e400, {"a": {"b": 1}}])
@pytest.mark.parametrize("name", ["stable", "canary", "weight", "sticky", "aliases", "steps", "guard", "rtol"])
def test_any_value_of_any_field_is_reported(name: str, value: Any) -> None:
    tree = {"stable": 1, "canary": 2, name: value}
    rollout, problems = parse_tree(tree)
    assert (rollout is None) == bool(problems)


def test_long_file_is_refused() -> None:
    rollout, problems = parse_toml("# " + "x" * (1 << 17))
    assert rollout is None
    assert "the most is" in problems[0].message
