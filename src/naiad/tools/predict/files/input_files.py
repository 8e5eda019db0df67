"""The files of a job, in order, and what reads each."""

import glob
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from naiad.core.errors import invalid_argument, not_found
from naiad.tools.predict.files.row_formats import OUTPUT_SUFFIXES, has_rows, open_row_file
from naiad.tools.predict.job_signature import RowSignature
from naiad.tools.predict.prediction_job import DEFAULT_TIMEOUT_S, PredictJob
from naiad.tools.predict.sources.folder import FolderSource
from naiad.tools.predict.sources.row_source import RowSource
from naiad.tools.predict.stores.object_path import FilePath, FolderPath, ObjectFolder, ObjectPath
from naiad.tools.predict.stores.object_patterns import NoFileYetError, find_objects
from naiad.tools.predict.stores.store_place import is_store_url

_PARTIAL_SUFFIXES = tuple(f"{each}.partial" for each in OUTPUT_SUFFIXES)


@dataclass(frozen=True, slots=True)
class InputFiles:
    """A file with rows, or files that are rows."""

    path: FilePath | FolderPath
    """The file; the folder of files that are rows."""
    rows: Sequence[FilePath] = ()
    """Files that are rows; empty for a file with rows."""

    @property
    def all(self) -> Sequence[FilePath]:
        """All files that are read."""
        return self.rows or ([] if isinstance(self.path, ObjectFolder) else [self.path])


class WrittenFiles:
    """The files that a job writes, which it does not read, and those below the folders of unfinished outputs."""

    def __init__(self, written: Collection[Path | str]) -> None:
        """A `str` is the URL of an object."""
        self._urls = {each for each in written if isinstance(each, str)}
        self._paths = {each.resolve() for each in written if isinstance(each, Path)}

    def has(self, file: FilePath) -> bool:
        """Return whether a file is one of them, or below the folder of an output that is not complete.

        It is that of any job, also of one that will not be continued: its files have no rows of an input.
        """
        if isinstance(file, Path):
            path = file.resolve()
            return path in self._paths or _is_partial(path.parts[:-1])
        url = str(file)
        return url in self._urls or _is_partial(url.split("/")[:-1])


def _is_partial(folders: Iterable[str]) -> bool:
    return any(each.endswith(_PARTIAL_SUFFIXES) for each in folders)


def find_files(
    inputs: Iterable[str],
    written: Collection[Path | str],
    patience_s: float = DEFAULT_TIMEOUT_S,
    *,
    may_be_none: bool = False,
) -> list[InputFiles]:
    """Return the files of paths, patterns, folders and URLs; `patience_s` is for stores that are busy.

    With `may_be_none` a pattern and a folder may have no file yet.

    `written` are the files that the job writes: patterns and folders do not include them, so that the same command
    finds the same files again. They include nothing below `NAME.csv.partial`, or that of another format of outputs.
    Raises InferError if a file does not exist, or is one of these.
    """
    ours = WrittenFiles(written)
    found: list[InputFiles] = []
    for text in inputs:
        try:
            found += _in_store(text, ours, patience_s) if is_store_url(text) else _on_disk(text, ours)
        except NoFileYetError:
            if not may_be_none:
                raise
    _check_kinds(found)
    _check_once(found)
    return found


def _check_once(found: Sequence[InputFiles]) -> None:
    """Raise InferError for a file that two inputs name, such as a pattern and a name."""
    seen: set[Path | str] = set()
    for each in (file for files in found for file in files.all):
        place = each.resolve() if isinstance(each, Path) else str(each)
        if place in seen:
            raise invalid_argument(f"--input names {each} twice, and its rows would be in the output twice")
        seen.add(place)


def _on_disk(text: str, ours: WrittenFiles) -> list[InputFiles]:
    path = Path(text)
    if path.is_dir():
        return [InputFiles(path, _files_of(path, ours))]
    if path.exists():
        if ours.has(path):
            raise invalid_argument(f"--input {text} is a file that a job writes; choose another output, or move it")
        return _grouped([path])
    if not glob.has_magic(text):
        raise not_found(f"--input {text}: no such file or folder")
    matches = sorted(Path(each) for each in glob.glob(text, recursive=True))
    files: list[FilePath] = [each for each in matches if each.is_file() and not ours.has(each)]
    if not files:
        raise NoFileYetError(f"--input {text}: no file has a name of this pattern")
    return _grouped(files)


def _in_store(text: str, ours: WrittenFiles, patience_s: float) -> list[InputFiles]:
    folder, objects = find_objects(text, patience_s)
    files: list[FilePath] = [each for each in objects if not ours.has(each)]
    if [*map(str, objects)] == [text] and not files:
        raise invalid_argument(f"--input {text} is an object that a job writes; choose another output, or move it")
    if not files:
        has_none = "no object has a name of this pattern" if folder is None else "there is no object below it"
        raise NoFileYetError(f"--input {text}: {has_none}")
    return _grouped(files) if folder is None else [InputFiles(folder, files)]


def _check_kinds(found: Sequence[InputFiles]) -> None:
    """Raise InferError for files that are rows and files with rows in one job: their outputs have other columns."""
    folders = [each.path for each in found if each.rows]
    others = [each.path for each in found if not each.rows]
    if folders and others:
        raise invalid_argument(
            f"--input: the files of {folders[0]} are rows, and {others[0]} has rows; run them as two jobs"
        )


def _files_of(folder: Path, ours: WrittenFiles) -> list[FilePath]:
    names = sorted(each for each in folder.iterdir() if each.is_file() and not each.name.startswith("."))
    files: list[FilePath] = [each for each in names if not ours.has(each)]
    if not files:
        raise NoFileYetError(f"--input {folder}: the folder has no files")
    return files


def _grouped(files: Sequence[FilePath]) -> list[InputFiles]:
    """Return files with rows, and, together, files of other formats, which are rows."""
    rows = [each for each in files if not has_rows(each)]
    found = [InputFiles(each) for each in files if has_rows(each)]
    return [*([InputFiles(rows[0].parent, rows)] if rows else ()), *found]


def open_source(files: InputFiles, job: PredictJob, signature: RowSignature) -> RowSource:
    """Return a source, whose head has been checked. Raises InferError and OSError."""
    if files.rows:
        assert not isinstance(files.path, ObjectPath)
        return FolderSource(files.path, files.rows, job, signature)
    assert not isinstance(files.path, ObjectFolder)
    return open_row_file(files.path, job, signature)
