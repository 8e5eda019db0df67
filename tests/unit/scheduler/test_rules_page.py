"""docs/scheduling-rules.md names tests that exist."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
RULE = re.compile(r"^\| ([A-Z]\d+) \| (.+) \| (.+) \|$", re.MULTILINE)


def written_tests() -> set[str]:
    names: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        tree = ast.parse(path.read_text())
        names.update(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return names


def page() -> str:
    return (ROOT / "docs" / "scheduling-rules.md").read_text()


def test_every_rule_has_a_test_that_exists() -> None:
    rules = RULE.findall(page())
    assert len({number for number, *_ in rules}) == len(rules) >= 50
    known = written_tests()
    for number, _, tests in rules:
        named = re.findall(r"`(test_\w+)`", tests)
        assert named, f"rule {number} has no test"
        assert set(named) <= known, f"rule {number}: {sorted(set(named) - known)}"


def test_every_file_that_is_named_exists() -> None:
    for name in re.findall(r"`(tests/\S+\.py)`", page()):
        assert (ROOT / name).exists(), name
