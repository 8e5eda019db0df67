"""A newcomer finds a place: few rooms on the first level of naiad, few files in a folder, no long file."""

from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2] / "src" / "naiad"
MAX_ROOMS = 22
MAX_MODULES = 12
"""Modules of a folder, sub-rooms not counted; wanted are eight, and larger folders get sub-rooms first."""
MORE = {"backend": 16, "cli": 14}
"""Folders with more: what all backends share and backends of one file, and the verbs, each of which is a file."""
MAX_LINES = 500


def modules() -> list[Path]:
    return [path for path in ROOT.rglob("*.py") if not path.name.endswith("_pb2.py")]


def test_few_rooms_on_the_first_level() -> None:
    rooms = {path.relative_to(ROOT).parts[0] for path in modules() if path.parent != ROOT}
    assert len(rooms) <= MAX_ROOMS, f"put a new room into one of {sorted(rooms)}"


def test_folders_have_few_modules() -> None:
    counts = Counter(path.parent.relative_to(ROOT).as_posix() for path in modules() if path.name != "__init__.py")
    large = {folder: count for folder, count in counts.items() if count > MORE.get(folder, MAX_MODULES)}
    assert not large, "make sub-rooms of the modules that belong together"
    assert all(counts[folder] > MAX_MODULES for folder in MORE), "MORE has a folder that is small now"


def test_files_are_short() -> None:
    lines = {
        path.relative_to(ROOT).as_posix(): len(path.read_text(encoding="utf-8").splitlines()) for path in modules()
    }
    assert not {name: count for name, count in lines.items() if count > MAX_LINES}, "split by concept"
