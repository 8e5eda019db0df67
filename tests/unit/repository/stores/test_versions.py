import logging
from pathlib import Path

import pytest

from naiad.repository.stores.store import list_version_dirs, parse_version, warn_of_ignored


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("1", 1),
        ("10", 10),
        ("0", 0),
        ("01", None),
        ("00", None),
        ("-1", None),
        ("1.5", None),
        ("x", None),
        ("²", None),
    ],
)
def test_parse_version_follows_the_directory_rules(name: str, version: int | None) -> None:
    assert parse_version(name) == version


def test_list_version_dirs_skips_what_is_no_version(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("2", "1", "03", "-4", "warmup", "initial_state", "configs", ".hidden", "assets"):
        (tmp_path / name).mkdir()
    (tmp_path / "5").write_text("a file is no version")
    with caplog.at_level(logging.WARNING):
        assert list_version_dirs(tmp_path) == {1: tmp_path / "1", 2: tmp_path / "2"}
        assert not caplog.text
        warn_of_ignored(tmp_path)
    assert "'03'" in caplog.text
    assert "'-4'" in caplog.text
    assert "assets" not in caplog.text
