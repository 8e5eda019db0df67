"""Adds a version to a repository on disk: a server sees all of it or nothing, and a failure takes it back.

The files are written in a hidden directory of the repository and get their place by renaming. While more than one
name changes in a model's directory, the marker file keeps servers from reading it.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from naiad.files.below import COMPILED_DIR
from naiad.repository.stores.store import CONFIG_FILE, INCOMPLETE_MARK, list_version_dirs, parse_version


@dataclass(frozen=True, slots=True)
class NewVersion:
    """What a new version of a model consists of."""

    files: Mapping[str, Path]
    """Files and directories of the version, by name in its directory."""
    beside: Sequence[Path] = ()
    """Files and directories that all versions share, such as labels; they replace what has the same name."""
    config: str = ""
    """Text of `config.pbtxt`, which replaces the one that is there; empty to keep it."""
    are_owned: bool = False
    """The files are moved, not copied."""


@dataclass(frozen=True, slots=True)
class AddedVersion:
    """A version that is in its place."""

    model: str
    version: int
    path: Path
    """Its directory."""


@contextlib.contextmanager
def added_version(
    repository: Path, model: str, new: NewVersion, *, is_temporary: bool = False
) -> Iterator[AddedVersion]:
    """Add a version to a model, after all versions that are there, or a model with version 1.

    If the body raises, the repository gets its old state back; with `is_temporary` also when the body ends.
    Links of the source are followed. Raises OSError, FileExistsError if another process adds the same version.
    """
    target = repository / model
    with (
        tempfile.TemporaryDirectory(prefix=".unfinished-", dir=repository) as temporary,
        contextlib.ExitStack() as undo,
    ):
        made, replaced = Path(temporary, "new"), Path(temporary, "old")
        replaced.mkdir()
        version = max(list_version_dirs(target), default=0) + 1 if target.exists() else 1
        shared = _write(made, new, version)
        if target.exists():
            _swap(made, target, [*shared, str(version)], replaced, undo)
        else:
            undo.callback(_take_back, target, version, replaced)
            made.rename(target)
        yield AddedVersion(model, version, target / str(version))
        if not is_temporary:
            undo.pop_all()


def shared_files(model_dir: Path) -> Sequence[Path]:
    """Return what a model's versions share, without its configuration, hidden files and compiled Python."""
    return [
        each
        for each in sorted(model_dir.iterdir())
        if each.name not in (CONFIG_FILE, COMPILED_DIR)
        and not each.name.startswith(".")
        and not (parse_version(each.name) is not None and each.is_dir())
    ]


def _write(made: Path, new: NewVersion, version: int) -> Sequence[str]:
    """Write everything into the directory `made`; return the names beside the version."""
    folder = made / str(version)
    folder.mkdir(parents=True)
    for name, source in new.files.items():
        _place(source, folder / name, moves=new.are_owned)
    for source in new.beside:
        _place(source, made / source.name, moves=False)
    names = [source.name for source in new.beside]
    if new.config:
        (made / CONFIG_FILE).write_text(new.config, encoding="utf-8")
        names.append(CONFIG_FILE)
    return names


def _place(source: Path, target: Path, *, moves: bool) -> None:
    if moves:
        source.rename(target)
    elif source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copyfile(source, target)


def _swap(made: Path, target: Path, names: Sequence[str], replaced: Path, undo: contextlib.ExitStack) -> None:
    """Give the names their new files; `undo` gets the way back, the marker around it."""
    mark = target / INCOMPLETE_MARK
    mark.touch()
    undo.callback(mark.unlink, missing_ok=True)
    for name in names:
        if parse_version(name) is not None and (target / name).exists():
            raise FileExistsError(f"{target / name} was added by another process; try it again")
        undo.callback(_restore, target / name, replaced / name, Path(f"{made / name}.taken-back"))
        if os.path.lexists(target / name):
            (target / name).rename(replaced / name)
        (made / name).rename(target / name)
    undo.callback(mark.touch)
    mark.unlink()


def _restore(place: Path, old: Path, removed: Path) -> None:
    if os.path.lexists(place):
        place.rename(removed)
    if os.path.lexists(old):
        old.rename(place)


def _take_back(target: Path, version: int, replaced: Path) -> None:
    """Remove a model that has no further version; otherwise the version alone."""
    if not target.exists():
        return
    if set(list_version_dirs(target)) <= {version}:
        target.rename(replaced / "model")
    else:
        (target / str(version)).rename(replaced / "version")
