"""Directories that other users cannot have filled."""

import os
import stat
from pathlib import Path

import pytest

from naiad.files.private_folder import make_private_folder

STRANGER = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


def test_it_is_made_for_this_user_alone(tmp_path: Path) -> None:
    make_private_folder(tmp_path / "a" / "b")
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) & 0o077 == 0


def test_permission_of_all_users_is_taken_back(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    make_private_folder(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o775


def test_link_of_this_user_is_followed(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    make_private_folder(tmp_path / "link")


@needs_root
@pytest.mark.parametrize("kind", ["directory", "link", "target"])
def test_what_belongs_to_another_user_is_refused(tmp_path: Path, kind: str) -> None:
    path, target = tmp_path / "folder", tmp_path / "target"
    if kind == "directory":
        path.mkdir()
        os.chown(path, STRANGER, STRANGER)
    else:
        target.mkdir()
        path.symlink_to(target)
        os.chown(path if kind == "link" else target, STRANGER, STRANGER, follow_symlinks=False)
    with pytest.raises(PermissionError, match=f"belongs to user {STRANGER}"):
        make_private_folder(path)
