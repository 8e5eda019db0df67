"""How much a cache holds, and what goes when something new needs room."""

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from naiad.core.errors import internal
from naiad.repository.cloud.locks import HeldDirectory, alone, removing

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


class Room:
    """Bounds what a cache holds, over all processes that share it."""

    def __init__(self, root: Path, limit_bytes: int) -> None:
        self._root = root
        self._limit_bytes = limit_bytes

    @contextmanager
    def reserve(self, size_bytes: int) -> Iterator[Reservation]:
        """Make room for a download; models that nobody uses go, those not used for the longest time first.

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
            try:
                found.append((path.stat().st_mtime_ns, path))
            except FileNotFoundError:
                continue
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
            if path.stat().st_nlink == 1:
                path.unlink()

    def _used_bytes(self) -> int:
        paths = [*(self._root / "objects").glob("*/*"), *(self._root / "incoming").glob(f"*/{_RESERVED}")]
        sizes = 0
        for path in paths:
            try:
                sizes += path.stat().st_size
            except FileNotFoundError:
                continue  # its download has ended
        return sizes
