"""What survives a run that is killed: the folder `OUTPUT.partial` with the finished rows and a journal.

The files of rows only grow. The journal's first line describes the job; each later line says how many rows are done
and how long each file was then. It is written after the files are on the disk, so that the last whole line is true.
A run that continues cuts the files to those lengths, skips the rows, and goes on: no row is lost or written twice.
When all rows are done, the last line names the finished file; renaming it and removing the folder may be repeated.
"""

import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from naiad.core.errors import ErrorCode, InferError, unavailable
from naiad.files.journal import Journal
from naiad.files.replacement import synchronize_folder
from naiad.tools.predict.stores.object_path import FilePath, ObjectPath

_VERSION = 1
_JOURNAL = "journal.jsonl"

Facts = Mapping[str, Any]
"""What must be the same for a run to continue: name -> JSON value."""


@dataclass(frozen=True, slots=True)
class JobPosition:
    """How far a job has come."""

    rows: int = 0
    failed_rows: int = 0
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Of the files of rows."""
    finished: str = ""
    """Name of the complete output in the folder; "" before."""


Announce: TypeAlias = Callable[[Path, JobPosition], None]
"""Called with the complete file before it becomes the output. Raises InferError and OSError if it must not."""


class JobCheckpoint:
    """The folder of one job, which no other process uses at the same time."""

    def __init__(self, output: Path, facts: Facts, *, restart: bool) -> None:
        """Open or create the folder. With `restart` an earlier run's is emptied.

        Raises OSError; InferError(INVALID_ARG) if an earlier run was for other facts, InferError(UNAVAILABLE) if
        another process writes the same output.
        """
        self.output = output
        self.folder = partial_folder(output)
        self.position = JobPosition()
        self.folder.mkdir(exist_ok=True)
        self._journal = Journal(self.folder / _JOURNAL)
        try:
            _lock(self._journal, output)
            lines = [] if restart else self._journal.lines()
            if lines:
                self._continue(lines, facts)
            else:
                self._begin(facts)
        except BaseException:
            self._journal.close()
            raise

    def record(self, position: JobPosition) -> None:
        """Write how far the job has come; the files of rows must be synced. Raises OSError."""
        self.position = position
        self._journal.append(asdict(position))

    def publish(self, finished: Path, rejected: Path | None, rejected_target: Path) -> None:
        """Move the complete output and the reasons of failed rows to their places, and remove the folder.

        Raises OSError. May be called again after an interruption at any place.
        """
        if rejected is None:
            rejected_target.unlink(missing_ok=True)  # of an earlier job
        elif rejected.exists():
            rejected.replace(rejected_target)
        if finished.exists():
            finished.replace(self.output)
        synchronize_folder(self.output.parent)
        shutil.rmtree(self.folder, ignore_errors=True)

    def discard_if_empty(self) -> None:
        """Remove the folder of a run that has finished no row, so that what is refused leaves nothing behind."""
        if not self.position.rows and not self.position.finished:
            shutil.rmtree(self.folder, ignore_errors=True)

    def close(self) -> None:
        """Release the folder for other processes."""
        self._journal.close()

    def _begin(self, facts: Facts) -> None:
        for path in self.folder.iterdir():
            if path.name != _JOURNAL:
                path.unlink()
        self._journal.clear()
        self._journal.append({"version": _VERSION, "facts": facts})
        synchronize_folder(self.folder)
        synchronize_folder(self.output.parent)

    def _continue(self, lines: Sequence[bytes], facts: Facts) -> None:
        try:
            head = json.loads(lines[0])
            found, earlier = head["version"], head["facts"]
            if len(lines) > 1:
                self.position = JobPosition(**json.loads(lines[-1]))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise self._refused(f"its journal cannot be read ({error})") from None
        if found != _VERSION:
            raise self._refused(f"version {found!r} of its journal is not supported, expected {_VERSION}")
        reason = difference(earlier, json.loads(json.dumps(facts)))
        if reason:
            raise self._refused(reason)

    def _refused(self, reason: str) -> InferError:
        return refusal(str(self.folder), self.position.rows, reason)


class CannotContinueError(InferError):
    """An earlier run was for other facts."""

    def __init__(self, folder: str, rows: int, reason: str) -> None:
        super().__init__(
            ErrorCode.INVALID_ARG,
            f"{folder} has {rows:,} rows of a run that was interrupted, and this run cannot "
            f"continue it: {reason}; add --restart to begin with the first row",
        )
        self.changed = reason


def partial_folder(output: Path) -> Path:
    """Return the folder of the finished rows of an output."""
    return output.with_name(f"{output.name}.partial")


def partial_facts(output: Path) -> Facts:
    """Return the facts of the job that has begun to write an output; {} without one. Raises OSError."""
    try:
        with (partial_folder(output) / _JOURNAL).open("rb") as file:
            return facts_of(file.readline())
    except (FileNotFoundError, NotADirectoryError):
        return {}


def discard_partial(output: Path) -> None:
    """Remove the finished rows of an output, if there are some.

    Raises OSError, and InferError(UNAVAILABLE) if another process writes the output.
    """
    folder = partial_folder(output)
    if not folder.is_dir():
        return
    journal = Journal(folder / _JOURNAL)
    try:
        _lock(journal, output)
        shutil.rmtree(folder)
    finally:
        journal.close()


def _lock(journal: Journal, output: Path) -> None:
    if not journal.lock():
        # Another process has it, or has just removed the folder.
        raise unavailable(f"another process writes {output}; wait for its end, or choose another output")


def refusal(folder: str, rows: int, reason: str) -> InferError:
    """Return the error for a run that cannot continue an earlier one."""
    return CannotContinueError(folder, rows, reason)


def facts_of(head: bytes) -> Facts:
    """Return the facts of a job from what describes it; {} if it cannot be read."""
    try:
        facts = json.loads(head)["facts"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}


def difference(earlier: Facts, now: Facts) -> str:
    """Return the first fact that differs, in words; "" if none does."""
    for name in [*earlier, *(each for each in now if each not in earlier)]:
        before, after = earlier.get(name), now.get(name)
        if isinstance(before, dict) and isinstance(after, dict):
            if list(before.items()) != list(after.items()):
                return f"{name}: {_changed(before, after)}"
        elif before != after:
            return f"{name} was {_shown(before)} and is {_shown(after)}"
    return ""


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    for name in [*before, *after]:
        if name not in after:
            return f"{name} is missing"
        if name not in before:
            return f"{name} is new"
        if before[name] != after[name]:
            return f"{name} has changed"
    return "their order has changed"


def _shown(value: Any) -> str:
    return json.dumps(value)[:200] if value is not None else "not given"


def file_facts(paths: Iterable[FilePath]) -> dict[str, list[int | str]]:
    """Return size and time of change of files, and of those in folders, by path. Raises OSError.

    Of an object it is the size and what its store calls its content. Hidden files and Python's caches, which a model
    writes while it runs, do not count.
    """
    facts: dict[str, list[int | str]] = {}
    for path in paths:
        if isinstance(path, ObjectPath):
            facts[str(path)] = [path.item.size_bytes, path.item.identity]
            continue
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            parts = file.relative_to(path).parts
            if file.is_file() and not any(part.startswith((".", "__pycache__")) for part in parts):
                status = file.stat()
                facts[str(file)] = [status.st_size, status.st_mtime_ns]
    return facts
