"""Backends that installed packages announce."""

import sys
import zipfile
from pathlib import Path

import pytest

from naiad.backend.registry import announced_backends

POINTS = "[naiad.backends]\nother = other.place:Backend\n"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty directory, the only one that is searched for packages."""
    monkeypatch.setattr(sys, "path", [str(tmp_path / "missing"), str(tmp_path)])
    return tmp_path


def install(site: Path, directory: str, points: str) -> None:
    (site / directory).mkdir()
    (site / directory / "entry_points.txt").write_text(points)
    (site / directory / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")


def test_no_package_announces_a_backend(site: Path) -> None:
    install(site, "other-1.0.dist-info", "[console_scripts]\nother = other:main\n")
    (site / "bare-1.0.dist-info").mkdir()
    assert announced_backends() == {}


@pytest.mark.parametrize("directory", ["other-1.0.dist-info", "other-1.0.egg-info"])
def test_package_announces_a_backend(site: Path, directory: str) -> None:
    install(site, directory, POINTS)
    assert announced_backends() == {"other": "other.place:Backend"}


def test_package_in_an_archive_announces_a_backend(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(site / "other.zip", "w") as archive:
        archive.writestr("other-1.0.dist-info/METADATA", "Name: other\n")
        archive.writestr("other-1.0.dist-info/entry_points.txt", POINTS)
    monkeypatch.setattr(sys, "path", [str(site / "other.zip")])
    assert announced_backends() == {"other": "other.place:Backend"}


def test_own_metadata_is_not_searched(site: Path) -> None:
    install(site, "naiad-9.9.dist-info", POINTS)
    assert announced_backends() == {}
