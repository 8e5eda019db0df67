"""What a run has left: its output, and the finished rows of one that did not end.

Functions raise InferError and OSError.
"""

import hashlib
from pathlib import Path

from naiad.tools.predict.job_checkpoint import Facts, discard_partial, partial_facts
from naiad.tools.predict.since.watermark import Mark
from naiad.tools.predict.stored_output.stored_checkpoint import discard_stored, stored_facts
from naiad.tools.predict.stores.object_path import ObjectPath
from naiad.tools.predict.stores.store_place import StorePlace, is_store_url, split_url


def output_exists(output: str, patience_s: float) -> bool:
    """Return whether an output is there."""
    return _found(output, patience_s) is not None


def file_mark(path: Path) -> list[int | str]:
    """Return what identifies the content of a file; a rename does not change it."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


def finished_mark(finished: Path, output: str) -> Mark:
    """Return what will identify an output: of an object its digest, since a store gives it a name only later."""
    if not is_store_url(output):
        return file_mark(finished)
    with finished.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return [finished.stat().st_size, digest]


def is_output_of(mark: Mark, output: str, patience_s: float) -> bool:
    """Return whether an output is the one with a mark. An object of its size is read for it."""
    found = _found(output, patience_s)
    if found is None or found.stat().st_size != mark[0]:
        return False
    if isinstance(found, Path):
        return file_mark(found) == list(mark)
    digest = hashlib.sha256()
    with found.open() as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest() == mark[1]


def unfinished_facts(output: str, patience_s: float) -> Facts:
    """Return the facts of the job whose finished rows are there, of an output that did not appear; {} without any."""
    if is_store_url(output):
        return stored_facts(output, patience_s)
    return partial_facts(Path(output))


def discard_unfinished(output: str, patience_s: float) -> None:
    """Remove the finished rows of an output. Raises InferError(UNAVAILABLE) if another process adds to them."""
    if is_store_url(output):
        discard_stored(output, patience_s)
    else:
        discard_partial(Path(output))


def _found(output: str, patience_s: float) -> Path | ObjectPath | None:
    if not is_store_url(output):
        path = Path(output)
        try:
            path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return path
    above, name = split_url(output, "--output")
    place = StorePlace(above, patience_s, "--output")
    item = place.objects.find(name)
    return None if item is None else ObjectPath(place, item)
