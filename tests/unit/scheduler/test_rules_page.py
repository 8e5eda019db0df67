"""docs/scheduling-rules.md names tests that exist, and they name its rules."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
RULE = re.compile(r"^\| ([A-Z]\d+) \| (.+) \| (.+) \|$", re.MULTILINE)


def sources(directory: str) -> dict[str, str]:
    """Return what stands in each function below a directory, by name."""
    found: dict[str, str] = {}
    for path in (ROOT / "tests" / directory).rglob("test_*.py"):
        text = path.read_text()
        lines = text.splitlines()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                found[node.name] = found.get(node.name, "") + "\n".join(lines[node.lineno - 1 : node.end_lineno])
    return found


def page() -> str:
    return (ROOT / "docs" / "scheduling-rules.md").read_text()


def test_every_rule_has_a_test_that_exists() -> None:
    rules = RULE.findall(page())
    assert len({number for number, *_ in rules}) == len(rules) >= 50
    known = set(sources("."))
    for number, _, tests in rules:
        named = re.findall(r"`(test_\w+)`", tests)
        assert named, f"rule {number} has no test"
        assert set(named) <= known, f"rule {number}: {sorted(set(named) - known)}"


def test_the_tests_of_a_rule_name_it() -> None:
    written = sources("unit")
    for number, _, tests in RULE.findall(page()):
        for name in re.findall(r"`(test_\w+)`", tests):
            assert name not in written or re.search(rf"\b{number}\b", written[name]), f"{name} does not name {number}"


def test_the_rules_of_the_schedulers_are_tested_with_a_clock_of_the_test() -> None:
    with_clock = set(sources("unit/scheduler"))
    for number, _, tests in RULE.findall(page()):
        if number[0] in "BPQSR" and number != "B15":  # a request that is refused at the door
            assert with_clock & set(re.findall(r"`(test_\w+)`", tests)), f"rule {number}"


def test_every_file_that_is_named_exists() -> None:
    for name in re.findall(r"`(tests/\S+\.py)`", page()):
        assert (ROOT / name).exists(), name
