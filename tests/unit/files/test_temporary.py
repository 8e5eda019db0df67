"""Temporary directories: held by a living process, removed after a killed one."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from naiad.files import temporary
from naiad.files.temporary import OwnDirectory, own_directory, remove_abandoned


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


_CHILD = """
import sys, tempfile, time
from naiad.files.temporary import OwnDirectory
tempfile.tempdir = sys.argv[1]
directory = OwnDirectory("model")
(directory.path / "1").mkdir()
(directory.path / "1" / "model.bin").write_bytes(bytes(100))
print(directory.path, flush=True)
time.sleep(600)
"""


def test_directory_of_a_killed_process_is_removed(parent: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", _CHILD, str(parent)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    path = Path(child.stdout.readline().strip())
    assert remove_abandoned() == []
    assert (path / "1" / "model.bin").exists()
    child.send_signal(signal.SIGKILL)
    child.wait(60)
    child.stdout.close()
    assert remove_abandoned() == [path]
    assert list(parent.iterdir()) == []


def test_own_directories_stay(parent: Path) -> None:
    directory = OwnDirectory("agent")
    with own_directory("mlflow") as path:
        assert remove_abandoned() == []
        assert path.is_dir()
    directory.remove()
    directory.remove()
    assert list(parent.iterdir()) == []


def test_what_is_not_ours_stays(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    precious = parent / "precious"
    precious.mkdir()
    (precious / "file").touch()
    (parent / "naiad-held-model-link").symlink_to(precious)
    (parent / "naiad-held-model-file").touch()
    (parent / "naiad-model-of-before").mkdir()
    (parent / "other").mkdir()
    assert remove_abandoned() == []
    (parent / "naiad-held-model-foreign").mkdir()
    user = os.geteuid()
    monkeypatch.setattr("os.geteuid", lambda: user + 1)
    assert remove_abandoned() == []
    assert (precious / "file").exists()
    assert len(list(parent.iterdir())) == 6


def test_unreadable_temporary_directory_is_no_reason_to_fail(tmp_path: Path) -> None:
    assert remove_abandoned(tmp_path / "missing") == []


def test_directory_is_held_before_it_is_named(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another server that starts at this moment does not take it for abandoned."""
    held = temporary.HeldDirectory

    def hold(path: Path) -> object:
        assert remove_abandoned() == []
        made = held(path)
        assert remove_abandoned() == []
        return made

    monkeypatch.setattr(temporary, "HeldDirectory", hold)
    directory = OwnDirectory("model")
    assert directory.path.is_dir()
    directory.remove()
