"""Notes in a directory: replaced as a whole, by one writer at a time, also if writers fail or are killed."""

import fcntl
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from naiad.repository.stores import notes as notes_module
from naiad.repository.stores.notes import DirectoryNotes, is_note, note_name


def counted(content: bytes | None) -> bytes:
    return str(int(content or b"0") + 1).encode()


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_writers_take_turns(tmp_path: Path) -> None:
    places = [DirectoryNotes(tmp_path) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda place: [place.exchange("m", counted) for _ in range(25)], places))
    assert places[0].read("m") == b"100"
    assert names(tmp_path) == [".m.rollout.json"]


def test_writer_that_fails_or_leaves_it_changes_nothing(tmp_path: Path) -> None:
    notes = DirectoryNotes(tmp_path)
    notes.exchange("m", lambda content: b"old")

    def fail(content: bytes | None) -> bytes:
        raise ValueError("no new content")

    with pytest.raises(ValueError, match="no new content"):
        notes.exchange("m", fail)
    notes.exchange("m", lambda content: None)
    assert notes.read("m") == b"old"
    assert names(tmp_path) == [".m.rollout.json"]


def test_file_of_a_killed_writer_is_used_again(tmp_path: Path) -> None:
    (tmp_path / ".m.rollout.json.new").write_bytes(b"the first half of a much longer rec")
    notes = DirectoryNotes(tmp_path)
    notes.exchange("m", lambda content: b"new")
    assert notes.read("m") == b"new"
    assert names(tmp_path) == [".m.rollout.json"]


def test_hanging_writer_delays_others_a_limited_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes_module, "_LOCK_WAIT_S", 0.0)
    fresh = tmp_path / ".m.rollout.json.new"
    with fresh.open("w") as hanging:
        fcntl.flock(hanging, fcntl.LOCK_EX)
        notes = DirectoryNotes(tmp_path)
        notes.exchange("m", lambda content: b"new")
        assert notes.read("m") == b"new"
        assert names(tmp_path) == [".m.rollout.json", ".m.rollout.json.new"]


def test_look_notices_every_write(tmp_path: Path) -> None:
    notes = DirectoryNotes(tmp_path)
    assert notes.look() == {}
    looks = []
    for content in (b"one", b"two", b"six"):
        notes.exchange("m", lambda _, content=content: content)  # type: ignore[misc]  # bound now
        looks.append(notes.look()[notes.file_name("m")])
    assert len(set(looks)) == 3


def test_directory_is_made_when_something_is_noted(tmp_path: Path) -> None:
    notes = DirectoryNotes(tmp_path / "a" / "b", "prefix-", is_made=True)
    assert (notes.read("m"), notes.look()) == (None, {})
    notes.exchange("m", lambda content: b"new")
    assert names(tmp_path / "a" / "b") == [".prefix-m.rollout.json"]


def test_unusable_note_is_set_aside(tmp_path: Path) -> None:
    notes = DirectoryNotes(tmp_path)
    notes.exchange("m", lambda content: b"bad")
    assert notes.set_aside("m") == ".m.rollout.json.unreadable"
    assert notes.read("m") is None
    notes.set_aside("m")
    assert (tmp_path / ".m.rollout.json.unreadable").read_bytes() == b"bad"
    assert notes.look() == {}


def test_pipe_in_place_of_a_note_cannot_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".m.rollout.json")
    assert DirectoryNotes(tmp_path).read("m") == b""


@pytest.mark.parametrize("make", [str, lambda name: name * 60])
def test_names_of_models_stay_distinct(make: Callable[[str], str]) -> None:
    found = {note_name(make(name)) for name in ("model", "Model", "mödel", "m.new")}
    assert len(found) == 4
    assert all(is_note(name) and len(name.encode()) <= 255 for name in found)


def test_link_as_new_file_is_not_followed(tmp_path: Path) -> None:
    """Nor is a file that a killed server of another user has left, which root could open."""
    (tmp_path / "notes").mkdir()
    link = tmp_path / "notes" / ".m.rollout.json.new"
    link.symlink_to(tmp_path / "foreign")
    notes = DirectoryNotes(tmp_path / "notes")
    notes.exchange("m", counted)
    assert notes.read("m") == b"1"
    assert not (tmp_path / "foreign").exists()
