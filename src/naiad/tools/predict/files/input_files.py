"""The files of a job, in order, and what reads each."""

import glob
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from naiad.core.errors import invalid_argument, not_found
from naiad.tools.predict.files.row_formats import has_rows, open_row_file
from naiad.tools.predict.job_signature import RowSignature
from naiad.tools.predict.prediction_job import PredictJob
from naiad.tools.predict.sources.folder import FolderSource
from naiad.tools.predict.sources.row_source import RowSource


@dataclass(frozen=True, slots=True)
class InputFiles:
    """A file with rows, or files that are rows."""

    path: Path
    """The file; the folder of files that are rows."""
    rows: Sequence[Path] = ()
    """Files that are rows; empty for a file with rows."""

    @property
    def all(self) -> Sequence[Path]:
        """All files that are read."""
        return self.rows or (self.path,)


def find_files(inputs: Iterable[str], written: Collection[Path]) -> list[InputFiles]:
    """Return the files of paths, patterns and folders.

    `written` are the files that the job writes: patterns and folders do not include them, so that the same command
    finds the same files again. Raises InferError if a file does not exist, or is one of `written`.
    """
    ours = {path.resolve() for path in written}
    found: list[InputFiles] = []
    for text in inputs:
        path = Path(text)
        if path.is_dir():
            found.append(InputFiles(path, _files_of(path, ours)))
        elif path.exists():
            if path.resolve() in ours:
                raise invalid_argument(f"--input {text} is a file that the job writes; choose another output")
            found += _grouped([path])
        elif glob.has_magic(text):
            matches = sorted(Path(each) for each in glob.glob(text, recursive=True))
            matches = [each for each in matches if each.is_file() and each.resolve() not in ours]
            if not matches:
                raise not_found(f"--input {text}: no file has a name of this pattern")
            found += _grouped(matches)
        else:
            raise not_found(f"--input {text}: no such file or folder")
    _check_kinds(found)
    return found


def _check_kinds(found: Sequence[InputFiles]) -> None:
    """Raise InferError for files that are rows and files with rows in one job: their outputs have other columns."""
    folders = [each.path for each in found if each.rows]
    others = [each.path for each in found if not each.rows]
    if folders and others:
        raise invalid_argument(
            f"--input: the files of {folders[0]} are rows, and {others[0]} has rows; run them as two jobs"
        )


def _files_of(folder: Path, ours: Collection[Path]) -> list[Path]:
    files = sorted(each for each in folder.iterdir() if each.is_file() and not each.name.startswith("."))
    files = [each for each in files if each.resolve() not in ours]
    if not files:
        raise not_found(f"--input {folder}: the folder has no files")
    return files


def _grouped(files: Sequence[Path]) -> list[InputFiles]:
    """Return files with rows, and, together, files of other formats, which are rows."""
    rows = [each for each in files if not has_rows(each)]
    found = [InputFiles(each) for each in files if has_rows(each)]
    return [*([InputFiles(rows[0].parent, rows)] if rows else ()), *found]


def open_source(files: InputFiles, job: PredictJob, signature: RowSignature) -> RowSource:
    """Return a source, whose head has been checked. Raises InferError and OSError."""
    if files.rows:
        return FolderSource(files.path, files.rows, job, signature)
    return open_row_file(files.path, job, signature)
