"""Replacement of files."""

import errno
import os
from pathlib import Path

import pytest

from naiad.files.replacement import replace_file, synchronize_files, synchronize_folder


@pytest.mark.parametrize("is_durable", [True, False])
def test_file_has_the_new_content_alone(tmp_path: Path, is_durable: bool) -> None:
    path = tmp_path / "file"
    replace_file(path, b"a longer content", is_durable=is_durable)
    replace_file(path, b"new", is_durable=is_durable)
    assert path.read_bytes() == b"new"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_reader_keeps_the_content_it_has_opened(tmp_path: Path) -> None:
    path = tmp_path / "file"
    replace_file(path, b"old")
    with path.open("rb") as reader:
        replace_file(path, b"new")
        assert reader.read() == b"old"


def test_content_is_on_disk_before_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    sync, rename = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda descriptor: (seen.append("fsync"), sync(descriptor)))
    monkeypatch.setattr(Path, "replace", lambda self, target: (seen.append("rename"), rename(self, target)))
    replace_file(tmp_path / "file", b"content")
    assert seen == ["fsync", "rename", "fsync"]  # of the file; of its folder


def test_failure_leaves_the_old_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    replace_file(path, b"old")
    monkeypatch.setattr(os, "fsync", lambda descriptor: os.close(-1))
    with pytest.raises(OSError, match="Bad file descriptor"):
        replace_file(path, b"new")
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"old"


def test_full_disk_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Errno 28") as raised:
        replace_file(tmp_path / "a", b"new")
    assert raised.value.filename == str(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_every_file_of_a_folder_is_synchronized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "a").write_text("a")
    (tmp_path / "below" / "b").write_text("b")
    seen: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda number: seen.append(Path(f"/proc/self/fd/{number}").readlink().name))
    synchronize_files(tmp_path)
    assert sorted(seen) == ["a", "b"]
    synchronize_folder(tmp_path)
    assert seen[-1] == tmp_path.name
