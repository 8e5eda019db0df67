"""docs/from-triton.md names a test for each of its promises; these tests exist."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| (.+?) \| .+ \| (`[\w/]+\.py.*) \|$", re.MULTILINE)
ROWS = ROW.findall((ROOT / "docs/from-triton.md").read_text())


@cache
def names_of(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text())
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, functions))


def test_the_page_has_its_table():
    assert len(ROWS) > 20


@pytest.mark.parametrize("named", [tests for _, tests in ROWS], ids=[what for what, _ in ROWS])
def test_what_is_promised_is_tested(named):
    found = re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", named)
    assert len(found) == named.count("`") // 2
    for path, name in found:
        assert (ROOT / "tests" / path).is_file(), path
        assert not name or name in names_of(ROOT / "tests" / path), name
