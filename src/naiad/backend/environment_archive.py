"""Unpacks the archive of an execution environment, and writes nothing outside of its directory.

Nothing is written through links: regular files and directories are created first, in the order of the archive, while
the directory holds no link at all. Hard links to these files follow, and symbolic links come last. An archive is
refused when a member lies below a link, when a path comes twice, and when a link leads elsewhere. The archives of
conda-pack and venv have none of these, except for the interpreter in `bin`, which a virtual environment links to the
one that it was made with.
"""

import os
import shutil
import tarfile
from pathlib import Path, PurePosixPath

_MODE = 0o755


class UnusableArchiveError(Exception):
    """Why an archive cannot be unpacked."""


def unpack(archive: Path, home: Path) -> None:
    """Unpack `archive` into the new directory `home`. Raises UnusableArchiveError, and OSError."""
    home.mkdir(parents=True)
    links: list[tuple[PurePosixPath, tarfile.TarInfo]] = []
    try:
        with tarfile.open(archive) as opened:
            plan = _Plan()
            for member in opened:
                path = plan.admit(member)
                if member.islnk() or member.issym():
                    links.append((path, member))
                elif member.isdir():
                    (home / path).mkdir(parents=True, exist_ok=True)
                else:
                    _write(opened, member, home / path)
    except (tarfile.TarError, EOFError) as error:
        raise UnusableArchiveError(str(error)) from error
    for path, member in sorted(links, key=lambda link: link[1].issym()):
        target = home / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if member.islnk():
            os.link(home / plan.file_of(member), target, follow_symlinks=False)
        else:
            target.symlink_to(member.linkname)
    _check_targets(home, [path for path, member in links if member.issym()])


class _Plan:
    """The paths of the members so far, and what is at each."""

    def __init__(self) -> None:
        self._files: set[PurePosixPath] = set()
        self._links: set[PurePosixPath] = set()
        self._directories: set[PurePosixPath] = {PurePosixPath(".")}

    def admit(self, member: tarfile.TarInfo) -> PurePosixPath:
        """Return the path of a member in the environment. Raises UnusableArchiveError for one that is refused."""
        path = _path_of(member.name, member)
        if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
            raise UnusableArchiveError(f"{_shown(member.name)} is no file, directory or link")
        if any(parent in self._links or parent in self._files for parent in path.parents):
            raise UnusableArchiveError(f"{_shown(member.name)} lies below a member that is no directory")
        is_known = path in self._files or path in self._links or path in self._directories
        if is_known and not (member.isdir() and path in self._directories):
            raise UnusableArchiveError(f"{_shown(member.name)} is in the archive twice")
        self._directories.update(path.parents)
        self._of(member).add(path)
        return path

    def _of(self, member: tarfile.TarInfo) -> set[PurePosixPath]:
        if member.isdir():
            return self._directories
        return self._files if member.isreg() else self._links

    def file_of(self, member: tarfile.TarInfo) -> PurePosixPath:
        """Return the file that a hard link is a name of. Raises UnusableArchiveError when it is none."""
        path = _path_of(member.linkname, member)
        if path not in self._files:
            raise UnusableArchiveError(
                f"{_shown(member.name)} is a hard link to {_shown(member.linkname)}, which is no file of the archive"
            )
        return path


def _path_of(name: str, member: tarfile.TarInfo) -> PurePosixPath:
    path = PurePosixPath(os.path.normpath(name))
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        raise UnusableArchiveError(f"{_shown(member.name)} would be written elsewhere, or leads there")
    return path


def _write(opened: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    source = opened.extractfile(member)
    if source is None:
        raise UnusableArchiveError(f"{_shown(member.name)} has no content")
    with source, path.open("xb") as file:
        shutil.copyfileobj(source, file)
        os.fchmod(file.fileno(), (member.mode & _MODE) | 0o600)
    # Compiled modules are valid for the time of their source.
    os.utime(path, (member.mtime, member.mtime))


def _check_targets(home: Path, links: list[PurePosixPath]) -> None:
    """Raise UnusableArchiveError for a symbolic link that leads out of `home`, by way of others as well."""
    inside = Path(os.path.realpath(home))
    for link in links:
        target = Path(os.path.realpath(home / link))
        if target == inside or inside in target.parents:
            continue
        # The interpreter of a virtual environment: nothing lies below a file.
        is_interpreter = link.parent == PurePosixPath("bin") and link.name.startswith("python")
        if not is_interpreter or target.is_dir():
            raise UnusableArchiveError(f"{_shown(str(link))} leads elsewhere, to {_shown(str(target))}")


def _shown(text: str) -> str:
    return f"'{text[:200]}'"
