"""Digests of files: read once, and again when a file may have changed."""

import hashlib
import os
from pathlib import Path

import pytest

from naiad.backend.onnx.prepared import known_digests
from naiad.backend.onnx.prepared.known_digests import KnownDigests


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were read."""
    found: list[Path] = []
    real = known_digests.file_sha256

    def note(path: Path) -> str:
        found.append(path)
        return real(path)

    monkeypatch.setattr(known_digests, "file_sha256", note)
    return found


def write(path: Path, content: bytes) -> str:
    """Write a file that looks as if it had been there for long."""
    path.write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def settle(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = known_digests.time.time_ns()
    monkeypatch.setattr(known_digests.time, "time_ns", lambda: now_ns + 60 * 10**9)


def test_unchanged_file_is_read_once(tmp_path: Path, read: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    digest = write(tmp_path / "a", b"content")
    settle(monkeypatch)
    digests = KnownDigests()
    assert [digests.digest(tmp_path / "a") for _ in range(3)] == [digest] * 3
    assert len(read) == 1


def test_file_that_has_just_changed_is_read_again(tmp_path: Path, read: list[Path]) -> None:
    digest = write(tmp_path / "a", b"content")
    digests = KnownDigests()
    assert [digests.digest(tmp_path / "a") for _ in range(2)] == [digest] * 2
    assert len(read) == 2


def test_replaced_file_of_equal_time_is_read(
    tmp_path: Path, read: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    write(path, b"content")
    os.utime(path, ns=(10**18, 10**18))
    settle(monkeypatch)
    digests = KnownDigests()
    digests.digest(path)
    other = tmp_path / "b"
    changed = write(other, b"CONTENT")
    os.utime(other, ns=(10**18, 10**18))
    other.replace(path)
    assert digests.digest(path) == changed
    assert len(read) == 2


def test_missing_file_raises(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        KnownDigests().digest(tmp_path / "a")


def test_number_of_known_files_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_digests, "_MOST_FILES", 3)
    settle(monkeypatch)
    digests = KnownDigests()
    for number in range(10):
        write(tmp_path / str(number), b"%d" % number)
    settle(monkeypatch)
    for number in range(10):
        digests.digest(tmp_path / str(number))
        assert len(digests._known) <= 3
