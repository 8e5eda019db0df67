"""The log file while logrotate renames, removes or truncates it."""

import os
from pathlib import Path

import pytest

from naiad.telemetry.logs import log_output
from naiad.telemetry.logs.log_output import LogFile


@pytest.fixture(autouse=True)
def _checks_at_each_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_output, "_CHECK_NS", 0)


def write(log: LogFile, text: str) -> None:
    log.write(text)
    log.flush()


def test_renamed_file_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = LogFile(str(path))
    write(log, "one\n")
    path.rename(tmp_path / "log.1")
    write(log, "two\n")
    assert (tmp_path / "log.1").read_text() == "one\n"
    assert path.read_text() == "two\n"
    log.close()


def test_file_of_logrotate_is_used(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = LogFile(str(path))
    path.unlink()
    path.touch()  # logrotate's create
    write(log, "two\n")
    assert path.read_text() == "two\n"
    log.close()


def test_truncated_file_has_no_gap(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = LogFile(str(path))
    write(log, "one\n")
    os.truncate(path, 0)  # logrotate's copytruncate
    write(log, "two\n")
    assert path.read_bytes() == b"two\n"
    log.close()


def test_file_on_full_disk_is_left(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.symlink_to("/dev/full")
    log = LogFile(str(path))
    with pytest.raises(OSError, match="No space left"):
        write(log, "lost\n")
    path.unlink()
    write(log, "new\n")
    assert path.read_text() == "new\n"
    log.close()


def test_open_file_stays_without_directory(tmp_path: Path) -> None:
    directory = tmp_path / "logs"
    directory.mkdir()
    path = directory / "log"
    log = LogFile(str(path))
    os.link(path, tmp_path / "kept")
    path.unlink()
    directory.rmdir()
    write(log, "two\n")
    assert (tmp_path / "kept").read_text() == "two\n"
    log.close()
