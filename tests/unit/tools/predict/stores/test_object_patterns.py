"""Patterns of objects choose what `glob` chooses among files."""

import glob
from pathlib import Path

import pytest

from naiad.core.errors import ErrorCode, InferError
from naiad.repository.cloud.objects.objects import ObjectStore
from naiad.repository.cloud.objects.stored_object import StoredObject
from naiad.tools.predict.stores.object_patterns import NoFileYetError, find_objects, fits

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


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Keys that a store has below any URL."""
    found: list[str] = []
    monkeypatch.setattr(ObjectStore, "top_objects", lambda self: [StoredObject(key, 1, "1") for key in found])
    monkeypatch.setattr(ObjectStore, "find", lambda self, key: StoredObject(key, 1, "1") if key in found else None)
    return found


@pytest.mark.parametrize("address", ["[::1]:9000/", "http://[2001:db8::1]/", "10.0.0.1:9000/", ""])
def test_brackets_of_an_address_are_no_pattern(bucket: list[str], address: str) -> None:
    bucket += ["x.csv", "y.csv", "z.csv"]
    above = f"s3://{address}b/in"
    assert [str(each) for each in find_objects(f"{above}/x.csv", 1)[1]] == [f"{above}/x.csv"]
    found = find_objects(f"{above}/[xz].csv", 1)[1]
    assert [str(each) for each in found] == [f"{above}/x.csv", f"{above}/z.csv"]


@pytest.mark.parametrize("url", ["s3://b/pictures/", "s3://b", "s3://b/"])
def test_a_folder_may_have_its_objects_later(bucket: list[str], url: str) -> None:
    with pytest.raises(NoFileYetError, match="there is no object below it") as caught:
        find_objects(url, 1)
    assert caught.value.code is ErrorCode.NOT_FOUND
    bucket.append("a.png")
    assert len(find_objects(url, 1)[1]) == 1


def test_a_name_without_an_object_is_a_mistake(bucket: list[str]) -> None:
    with pytest.raises(InferError, match="there is no such object, and there are none below it") as caught:
        find_objects("s3://b/pictures", 1)
    assert not isinstance(caught.value, NoFileYetError)
