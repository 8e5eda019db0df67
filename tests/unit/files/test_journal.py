"""Journals: whole lines only, each on the disk, one process at a time."""

import json
import os
from pathlib import Path

import pytest

from naiad.files.journal import Journal


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


def documents(path: Path) -> list[object]:
    journal = Journal(path)
    try:
        return [json.loads(line) for line in journal.lines()]
    finally:
        journal.close()


def test_lines_of_an_earlier_process_are_read(path: Path) -> None:
    journal = Journal(path)
    assert journal.lines() == []
    journal.append({"step": 1})
    journal.append({"step": "zwölf"})
    journal.close()
    assert documents(path) == [{"step": 1}, {"step": "zwölf"}]


@pytest.mark.parametrize("cut", range(1, 13))
def test_torn_last_line_is_removed_before_next(path: Path, cut: int) -> None:
    whole = b'{"step": 1}\n'
    path.write_bytes(whole + b'{"step": 2}\n'[: 12 - cut])
    journal = Journal(path)
    assert journal.lines() == [b'{"step": 1}']
    journal.append({"step": 3})
    journal.close()
    assert documents(path) == [{"step": 1}, {"step": 3}]


def test_file_with_a_torn_first_line_is_empty(path: Path) -> None:
    path.write_bytes(b'{"versi')
    assert documents(path) == []
    assert path.read_bytes() == b""


def test_line_is_on_the_disk_when_append_returns(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: sizes.append(os.fstat(descriptor).st_size))
    journal = Journal(path)
    journal.append({})
    journal.append({})
    journal.close()
    assert sizes == [3, 6]


def test_second_journal_of_a_file_is_not_locked(path: Path) -> None:
    first, second = Journal(path), Journal(path)
    assert first.lock()
    assert not second.lock()
    first.close()
    assert second.lock()
    second.close()


def test_journal_whose_file_was_removed_is_not_locked(path: Path) -> None:
    journal = Journal(path)
    path.unlink()
    assert not journal.lock()
    journal.close()


def test_cleared_journal_begins_again(path: Path) -> None:
    journal = Journal(path)
    journal.append({"step": 1})
    journal.clear()
    journal.append({"step": 2})
    journal.close()
    assert documents(path) == [{"step": 2}]
