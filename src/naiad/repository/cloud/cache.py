"""Copies of models from object stores: content by identity, verified before use, bounded, shared by processes.

    objects/ab/<identity>.<sha256>        content of one object, named by what it is and what it must hold
    models/<fingerprint>/<model>/...      one state of a model, of hard links to contents
    models/<fingerprint>/manifest.json    the digests of its files; written last
    incoming/<random>/                    what is being downloaded

A state never changes once it is there, so what serves from it is not disturbed when the repository changes.
Everything comes into place by a rename after it is complete; what a crash leaves is found out by its digest.

How much a cache holds, and what goes when something new needs room.
"""

import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import orjson

from naiad.core.errors import internal
from naiad.files.digest import file_sha256
from naiad.files.held import HeldDirectory, alone, removing
from naiad.files.private_folder import make_private_folder

_log = logging.getLogger(__name__)

_RESERVED = "reserved"
"""A file without content whose size is what is still to come."""


@dataclass(slots=True)
class Reservation:
    """Room for what is being downloaded, and the directory for it."""

    directory: Path
    left_bytes: int

    def give_back(self, size_bytes: int) -> None:
        """Say that so much has come and counts as content from now on."""
        self.left_bytes -= size_bytes
        os.truncate(self.directory / _RESERVED, self.left_bytes)


class CacheEviction:
    """Bounds what a cache holds, over all processes that share it."""

    def __init__(self, root: Path, limit_bytes: int) -> None:
        self._root = root
        self._limit_bytes = limit_bytes

    @contextmanager
    def reserve(self, size_bytes: int) -> Iterator[Reservation]:
        """Make room for a download: delete models that are not in use, the least recently used first.

        Raises InferError(INTERNAL) when what is in use leaves too little.
        """
        with alone(self._root / "lock"):
            self._make_room(size_bytes)
            reservation = Reservation(Path(tempfile.mkdtemp(dir=self._root / "incoming")), size_bytes)
            held = HeldDirectory(reservation.directory)
            (reservation.directory / _RESERVED).touch()
            reservation.give_back(0)
        try:
            yield reservation
        finally:
            shutil.rmtree(reservation.directory, ignore_errors=True)
            held.release()

    def _make_room(self, size_bytes: int) -> None:
        self._sweep_incoming()
        used_bytes = self._used_bytes()
        if used_bytes + size_bytes <= self._limit_bytes:
            return
        for model in self._models():
            if self._remove(model):
                self._sweep_contents()
                used_bytes = self._used_bytes()
                if used_bytes + size_bytes <= self._limit_bytes:
                    return
        self._sweep_contents()
        used_bytes = self._used_bytes()
        if used_bytes + size_bytes > self._limit_bytes:
            raise internal(
                f"the cache of cloud repositories {self._root} has no room for {size_bytes} bytes: it may hold "
                f"{self._limit_bytes}, and {used_bytes} are in use; give it more with --cloud-cache-max-bytes"
            )

    def _models(self) -> list[Path]:
        """Return the states of models, that not used for the longest time first."""
        found: list[tuple[int, Path]] = []
        for path in (self._root / "models").iterdir():
            with suppress(FileNotFoundError):
                found.append((path.stat().st_mtime_ns, path))
        return [path for _, path in sorted(found)]

    def _remove(self, model: Path) -> bool:
        with removing(model) as is_free:
            if is_free:
                _log.info("removing %s, which is not in use, from the cache of cloud repositories", model)
                shutil.rmtree(model, ignore_errors=True)
            return is_free

    def _sweep_incoming(self) -> None:
        """Remove what downloads have left that did not end."""
        for path in (self._root / "incoming").iterdir():
            with removing(path) as is_free:
                if is_free:
                    shutil.rmtree(path, ignore_errors=True)

    def _sweep_contents(self) -> None:
        """Remove contents that no model has a link to."""
        for path in (self._root / "objects").glob("*/*"):
            # A process that finds a content damaged removes it without the lock.
            with suppress(FileNotFoundError):
                if path.stat().st_nlink == 1:
                    path.unlink()

    def _used_bytes(self) -> int:
        paths = [*(self._root / "objects").glob("*/*"), *(self._root / "incoming").glob(f"*/{_RESERVED}")]
        sizes = 0
        for path in paths:
            with suppress(FileNotFoundError):  # its download has ended
                sizes += path.stat().st_size
        return sizes


_MANIFEST = "manifest.json"
_THREADS = 8
"""Files of a model that are verified, or brought, at the same time."""


@dataclass(frozen=True, slots=True)
class WantedFile:
    """A file of a model."""

    path: str
    """Where it lies in the model's directory."""
    size_bytes: int
    identity: str
    """Names its content among all contents: hexadecimal digits."""
    url: str
    fetch: Callable[[Path], None]
    """Writes the content to a file that is not there yet."""


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model's directory in the cache, which stays as it is until it is released."""

    directory: Path
    downloaded_bytes: int
    release: Callable[[], None]


class ModelCache:
    """A directory of copies. Its methods are called from several threads, and of several processes."""

    def __init__(self, root: Path, limit_bytes: int) -> None:
        """`limit_bytes` bounds all contents together.

        Raises InferError(INTERNAL) when it cannot be written, or has directories of another user.
        """
        self.root = root
        self._make()
        self._room = CacheEviction(root, limit_bytes)
        self.listings = root / "listings"
        """A file for each repository: how it looked when it could be read last."""
        self._verified: dict[Path, dict[str, _Look]] = {}
        """How the files of each model looked when their digests were last found right."""

    def _make(self) -> None:
        for name in ("objects", "models", "incoming", "listings"):
            path = self.root / name
            try:
                make_private_folder(path)
            except OSError as error:
                raise internal(
                    f"the cache of cloud repositories {self.root} cannot be used: {path}: {error.strerror}; choose "
                    "another with --cloud-cache-directory"
                ) from error

    def open(self, state: str, name: str, directories: Sequence[str], files: Sequence[WantedFile]) -> LocalModel:
        """Return a model's directory with all of its files, whose digests have been verified.

        `state` names the model with its contents. Only what is not here, or is damaged, is fetched. Raises InferError
        when there is no room, and any error of a fetch.
        """
        self._make()  # it may have been emptied
        try:
            held = HeldDirectory(self.root / "models" / state)
            try:
                with alone(held.path / "lock"):
                    downloaded_bytes = self._complete(held.path, name, directories, files)
                os.utime(held.path)  # the oldest go first when there is no room
            except BaseException:
                held.release()
                raise
        except OSError as error:
            raise internal(f"the cache of cloud repositories {self.root} failed: {error}") from error
        return LocalModel(held.path / name, downloaded_bytes, held.release)

    def _complete(self, home: Path, name: str, directories: Sequence[str], files: Sequence[WantedFile]) -> int:
        directory = home / name
        for evicted in [each for each in list(self._verified) if not each.exists()]:
            self._verified.pop(evicted, None)
        for each in ("", *directories, *{os.path.dirname(file.path) for file in files}):
            (directory / each).mkdir(parents=True, exist_ok=True)
        digests = _read_manifest(home)
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="verify") as pool:
            found = list(pool.map(lambda file: self._find(directory, file, digests.get(file.path, "")), files))
        missing = [file for file, digest in zip(files, found, strict=True) if not digest]
        known = {file.path: digest for file, digest in zip(files, found, strict=True) if digest}
        known |= self._bring(directory, missing)
        if known != digests:
            write_atomically(home / _MANIFEST, orjson.dumps(known))
        return sum(file.size_bytes for file in missing)

    # --- what is here -----------------------------------------------------------------------------------------------

    def _find(self, directory: Path, file: WantedFile, digest: str) -> str:
        """Return the digest of a file that is in place and intact, putting it in place if need be; or nothing."""
        target = directory / file.path
        if digest and self._is_intact(directory, file, digest):
            return digest
        for content in list((self.root / "objects" / file.identity[:2]).glob(f"{file.identity}.*")):
            digest = content.name.rpartition(".")[2]
            try:
                _link(content, target)
            except FileNotFoundError:
                continue  # it had to make room just now
            if self._is_intact(directory, file, digest):
                return digest
            content.unlink(missing_ok=True)
        target.unlink(missing_ok=True)
        return ""

    def _is_intact(self, directory: Path, file: WantedFile, digest: str) -> bool:
        path, verified = directory / file.path, self._verified.setdefault(directory, {})
        try:
            look = _look(path)
        except FileNotFoundError:
            return False
        if verified.get(file.path) == look:
            return True
        if path.stat().st_size == file.size_bytes and file_sha256(path) == digest:
            verified[file.path] = look
            return True
        _log.warning("%s, the copy of %s, is damaged; it is downloaded again", path, file.url)
        return False

    # --- what is not ------------------------------------------------------------------------------------------------

    def _bring(self, directory: Path, missing: Sequence[WantedFile]) -> dict[str, str]:
        """Download files to their places; return their digests. Those that have come stay when others fail."""
        if not missing:
            return {}
        with self._room.reserve(sum(file.size_bytes for file in missing)) as reservation:
            with ThreadPoolExecutor(_THREADS, thread_name_prefix="bring") as pool:
                futures = [
                    pool.submit(self._bring_one, directory, file, reservation.directory / str(number))
                    for number, file in enumerate(missing)
                ]
                failures: list[BaseException] = []
                for future, file in zip(futures, missing, strict=True):
                    error = None if failures and future.cancel() else future.exception()
                    if error is not None:
                        failures.append(error)
                    elif not future.cancelled():
                        reservation.give_back(file.size_bytes)
            if failures:
                # Everything that is wrong follows from the first, most of the time.
                raise failures[0]
            return {file.path: future.result() for future, file in zip(futures, missing, strict=True)}

    def _bring_one(self, directory: Path, file: WantedFile, incoming: Path) -> str:
        file.fetch(incoming)
        digest = file_sha256(incoming)
        os.chmod(incoming, 0o444)
        target = directory / file.path
        # The link first: a content without one may have to make room for others.
        _link(incoming, target)
        content = self.root / "objects" / file.identity[:2] / f"{file.identity}.{digest}"
        content.parent.mkdir(exist_ok=True)
        os.replace(incoming, content)
        self._verified.setdefault(directory, {})[file.path] = _look(target)
        return digest


_Look = tuple[int, int, int, int]


def _look(path: Path) -> _Look:
    """Return what changes with a file. Its number of links is no part of it: other models come and go."""
    status = os.stat(path)
    return (status.st_size, status.st_mtime_ns, status.st_ino, status.st_dev)


def _link(source: Path, target: Path) -> None:
    """Put a file in place, in one step, by a hard link, or as a copy where the file system has none."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".link-") as aside:
        path = Path(aside) / "file"
        try:
            os.link(source, path)
        except FileNotFoundError:
            raise
        except OSError:
            shutil.copyfile(source, path)
        os.replace(path, target)


def _read_manifest(home: Path) -> dict[str, str]:
    try:
        content = orjson.loads((home / _MANIFEST).read_bytes())
    except FileNotFoundError:
        return {}
    except orjson.JSONDecodeError:
        _log.warning("%s is damaged; the files are looked for again", home / _MANIFEST)
        return {}
    return {str(path): str(digest) for path, digest in content.items()} if isinstance(content, dict) else {}


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file in one step, with others excluded by the caller. Raises OSError."""
    aside = path.with_suffix(".new")
    aside.write_bytes(content)
    os.replace(aside, path)
