"""The file of measurements: JSON lines, each written before the next measurement begins.

A search that starts again with the same file takes recorded measurements instead of making them, in the order of the
file. Lines of another fingerprint (changed model files, configuration or server) stay in the file and are not used.
"""

import dataclasses
import hashlib
import json
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from naiad.files.digest import add_files
from naiad.files.journal import Journal
from naiad.files.json_records import read_record
from naiad.tools.analyze.point_measurement import Measured
from naiad.tools.analyze.space import Point

_VERSION = 1


class CheckpointError(ValueError):
    """A file is not a checkpoint that this version can read; the message names the line."""


class SearchCheckpoint:
    """Measurements of a search, in a file that survives the process."""

    def __init__(self, path: Path, fingerprint: str) -> None:
        """Open a file, which is created where there is none. A torn last line, of a process that died, is removed.

        Raises OSError and CheckpointError.
        """
        self.fingerprint = fingerprint
        self._recorded: dict[tuple[str, str], deque[Measured]] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        self._journal = Journal(path)
        try:
            for found, measured in _read(self._journal.lines(), path):
                if found == fingerprint:
                    self._recorded.setdefault((measured.point.key, measured.turn), deque()).append(measured)
        except BaseException:
            self._journal.close()
            raise

    def take(self, point: Point) -> Measured | None:
        """Return the next recorded measurement of a point, each once; None when there is none left."""
        return self._take(point, "")

    def take_turn(self, points: Sequence[Point], turn: str) -> list[Measured] | None:
        """Return the recorded measurements of a whole turn of a comparison; None unless all were recorded.

        What one process measured of a turn and another one measured later is no comparison.
        """
        if not all(self._recorded.get((each.key, turn)) for each in points):
            return None
        return [measured for each in points if (measured := self._take(each, turn)) is not None]

    def _take(self, point: Point, turn: str) -> Measured | None:
        recorded = self._recorded.get((point.key, turn))
        return dataclasses.replace(recorded.popleft(), point=point) if recorded else None

    @property
    def waiting(self) -> int:
        """Recorded measurements that were not taken yet."""
        return sum(len(each) for each in self._recorded.values())

    def append(self, measured: Measured) -> None:
        """Write a measurement to the disk. Raises OSError."""
        document = dataclasses.asdict(measured)
        self._journal.append({"version": _VERSION, "fingerprint": self.fingerprint, **document})

    def close(self) -> None:
        """Close the file."""
        self._journal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def fingerprint(paths: Iterable[Path], facts: Iterable[str]) -> str:
    """Return a digest of files and folders, and of facts: configurations, the version of the server, the input.

    Raises OSError.
    """
    digest = hashlib.sha256()
    for fact in facts:
        digest.update(f"{len(fact)}:{fact}".encode())
    for root in paths:
        add_files(digest, root)
    return digest.hexdigest()


def _read(lines: Sequence[bytes], path: Path) -> Iterator[tuple[str, Measured]]:
    for number, line in enumerate(lines, 1):
        try:
            document = json.loads(line)
            if document["version"] != _VERSION:
                raise CheckpointError(
                    f"{path}:{number}: version {document['version']!r} of the checkpoint is not supported, "
                    f"expected {_VERSION}; choose another file"
                )
            yield document["fingerprint"], read_record(Measured, document)
        except CheckpointError:
            raise
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CheckpointError(
                f"{path}:{number} is not a measurement ({error}); remove the line or choose another file"
            ) from error
