"""Every rule of docs/scheduling-rules.md has a test that names it in a comment, and no comment names another rule."""

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
RULE = re.compile(r"^(?:- \*\*|\| )([A-Z]\d+)(?:\*\*| \|) ", re.MULTILINE)
NAMED = re.compile(r"# ((?:[BPQOSTCIERKW]\d+(?:, )?)+)")


@cache
def named_in(directory: str) -> dict[str, set[str]]:
    """Return the rules that comments name in the test functions below a directory, with the functions."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / "tests" / directory).rglob("test_*.py"):
        text = path.read_text()
        lines = text.splitlines()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                source = "\n".join(lines[node.lineno - 1 : node.end_lineno])
                for rules in NAMED.findall(source):
                    for rule in re.findall(r"[A-Z]\d+", rules):
                        found.setdefault(rule, set()).add(node.name)
    return found


def page() -> str:
    """Return the page of rules and the page with the rules of padding."""
    return "\n".join((ROOT / "docs" / name).read_text() for name in ("scheduling-rules.md", "padding.md"))


def test_every_rule_has_a_test() -> None:
    rules = RULE.findall(page())
    assert len(set(rules)) == len(rules) >= 50
    assert set(rules) - set(named_in(".")) == set()


def test_every_named_rule_is_on_the_page() -> None:
    assert set(named_in(".")) - set(RULE.findall(page())) == set()


def test_scheduler_rules_are_tested_with_a_fake_clock() -> None:
    checked_elsewhere = {"B13", "B15"}  # by the queue of responses, and at admission
    rules = {rule for rule in RULE.findall(page()) if rule[0] in "BPQSR"} - checked_elsewhere
    assert rules - set(named_in("unit/scheduler")) == set()


def test_every_named_file_exists() -> None:
    for name in re.findall(r"`(tests/\S+\.py)`", page()):
        assert (ROOT / name).exists(), name
