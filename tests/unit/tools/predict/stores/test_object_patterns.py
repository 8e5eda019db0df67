"""Patterns of objects choose what `glob` chooses among files."""

import glob
from pathlib import Path

import pytest

from naiad.tools.predict.stores.object_patterns import fits

NAMES = [
    "a.csv",
    "b.csv",
    "B.csv",
    "part-1.csv",
    "part-10.csv",
    "x[1].csv",
    "x^.csv",
    "a+b.csv",
    ".hidden.csv",
    "deep/a.csv",
    "deep/er/a.csv",
    "deep/er/b.jsonl",
    ".secret/a.csv",
    "deep/.hidden/a.csv",
]
PATTERNS = [
    "*",
    "*.csv",
    "?.csv",
    "part-*.csv",
    "part-?.csv",
    "[ab].csv",
    "[!ab].csv",
    "[a-c].csv",
    "x[[]1].csv",
    "x[^].csv",
    "[^a]*.csv",
    "a+b.*",
    "*/a.csv",
    "**/a.csv",
    "deep/**/*.csv",
    "**/*.jsonl",
    ".*.csv",
    "none*",
    "deep/**",
    ".secret/*",
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_chooses_what_glob_does(tmp_path: Path, pattern: str) -> None:
    for name in NAMES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = glob.glob(pattern, root_dir=tmp_path, recursive=True)
    wanted = sorted(each for each in found if (tmp_path / each).is_file())
    assert sorted(each for each in NAMES if fits(each.split("/"), pattern.split("/"))) == wanted
