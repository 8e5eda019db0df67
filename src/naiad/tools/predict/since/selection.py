"""The files of one run: all of them, those changed since a time, or those that no run before has predicted."""

import logging
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from naiad.core.errors import invalid_argument
from naiad.tools.predict.files.input_files import InputFiles
from naiad.tools.predict.prediction_job import PredictJob
from naiad.tools.predict.since.watermark import (
    Mark,
    Watermark,
    WatermarkClaim,
    decode_watermark,
    encode_watermark,
)
from naiad.tools.predict.since.watermark_place import exists, open_place, remove_unfinished, taken
from naiad.tools.predict.since_time import LAST, is_since, since_ns
from naiad.tools.predict.stores.object_path import FilePath
from naiad.tools.predict.stores.store_place import is_store_url

_log = logging.getLogger(__name__)


class Selection:
    """The files of a run. Methods raise InferError and OSError."""

    must_restart = False
    """Whether what an earlier run has finished is of other files."""

    def __init__(self, files: Sequence[InputFiles], skipped: int = 0) -> None:
        self.files = files
        self.skipped = skipped
        """Files that are not new."""

    def check(self) -> None:
        """Do nothing before the output appears."""

    def commit(self, set_aside: Collection[str]) -> None:
        """Do nothing after the output appeared."""

    def close(self) -> None:
        """Do nothing."""


def select_files(job: PredictJob, files: Sequence[InputFiles]) -> Selection:
    """Return which files a run has, with a claim on them where runs are recorded. Raises InferError and OSError."""
    if not job.since:
        return Selection(files)
    if job.since != LAST:
        since = since_ns(job.since)
        return _selected(files, [path for each in files for path in each.all if _is_since(path, since)])
    return RecordedSelection(job, files)


def state_of(job: PredictJob) -> str:
    """Return path or URL of the record of a job."""
    if job.state:
        return job.state
    above, slash, _ = job.output.rpartition("/")
    return f"{above}{slash}{job.model}.since.json"


def _is_since(path: FilePath, since: int) -> bool:
    return is_since(path.stat().st_mtime_ns, since, is_rounded=not isinstance(path, Path))


def _selected(files: Sequence[InputFiles], chosen: Iterable[FilePath]) -> Selection:
    kept = _only(files, {_key(path) for path in chosen})
    return Selection(kept, _count(files) - _count(kept))


class RecordedSelection(Selection):
    """The files that are new by the record of runs, claimed by this one."""

    def __init__(self, job: PredictJob, files: Sequence[InputFiles]) -> None:
        super().__init__(())
        self._job = job
        self._where = state_of(job)
        self._place = open_place(self._where, job.timeout_s)
        try:
            self._choose(files)
        except BaseException:
            self._place.close()
            raise

    def check(self) -> None:
        """Raise InferError(UNAVAILABLE) if another run has claimed the files: they would be predicted twice."""
        if self._read() != self._watermark:
            raise taken(self._where)

    def commit(self, set_aside: Collection[str]) -> None:
        """Record that the output is there."""
        self._write(self._watermark.committed(self._written(self._job.output), map(_absolute, set_aside)))

    def close(self) -> None:
        """Let other runs use the record."""
        self._place.close()

    def _choose(self, files: Sequence[InputFiles]) -> None:
        job, output = self._job, _absolute(self._job.output)
        watermark = self._read() or Watermark(job.model, [*map(_absolute, job.inputs)])
        self._check_job(watermark)
        found: dict[str, Mark] = {_key(path): _mark(path) for each in files for path in each.all}
        claim, is_there = watermark.claim, exists(job.output, job.timeout_s)
        if claim is not None and exists(claim.output, job.timeout_s):
            # The run before was ended after its output appeared.
            self._write(watermark.committed(self._written(claim.output)))
            watermark = self._watermark
            if claim.output == output:
                self.skipped = len(found) - len(watermark.new(found))
                return
        new = self._claimed(watermark, found) or watermark.new(found)
        self.files = _only(files, set(new))
        self.skipped = len(found) - len(new)
        if not new:
            return
        if is_there:
            raise invalid_argument(
                f"--output {job.output} exists, and --since last writes the rows of new files only; give each run an "
                "output of its own, for example with the date in its name"
            )
        earlier = watermark.claim
        self._write(replace(watermark, claim=WatermarkClaim(output, {path: found[path] for path in new})))
        if earlier is not None and earlier.output != output:
            remove_unfinished(earlier.output, job.timeout_s)

    def _claimed(self, watermark: Watermark, found: Mapping[str, Mark]) -> list[str]:
        """Return the files of a run that was interrupted, if this one continues it."""
        claim = watermark.claim
        if claim is None:
            return []
        if claim.output != _absolute(self._job.output):
            _log.warning("the run that writes %s did not end; this one has its files too", claim.output)
            return []
        if self._job.restart:
            return []
        if any(found.get(path) != mark for path, mark in claim.files.items()):
            _log.warning("files of the interrupted run have changed; it begins again")
            self.must_restart = True
            return []
        return list(claim.files)

    def _check_job(self, watermark: Watermark) -> None:
        inputs = [*map(_absolute, self._job.inputs)]
        for name, before, now in [
            ("the model", watermark.model, self._job.model),
            ("the inputs", ", ".join(watermark.inputs), ", ".join(inputs)),
        ]:
            if before != now:
                raise invalid_argument(
                    f"state {self._where} is for {name} {before}, and this job has {now}; name another with --state"
                )

    def _read(self) -> Watermark | None:
        content = self._place.read()
        return None if content is None else decode_watermark(content, self._where)

    def _write(self, watermark: Watermark) -> None:
        content = encode_watermark(watermark)
        self._place.write(content)
        self._watermark = decode_watermark(content, self._where)

    def _written(self, output: str) -> list[str]:
        output = _absolute(output)
        return [output, f"{output}.rejected.jsonl", _absolute(self._where)]


def _only(files: Sequence[InputFiles], chosen: Collection[str]) -> list[InputFiles]:
    kept: list[InputFiles] = []
    for each in files:
        if each.rows:
            rows = [path for path in each.rows if _key(path) in chosen]
            kept += [InputFiles(each.path, rows)] if rows else []
        elif all(_key(path) in chosen for path in each.all):
            kept.append(each)
    return kept


def _count(files: Sequence[InputFiles]) -> int:
    return sum(len(each.all) for each in files)


def _absolute(path: str) -> str:
    return path if is_store_url(path) else os.path.abspath(path)


def _key(path: FilePath) -> str:
    return _absolute(str(path))


def _mark(path: FilePath) -> Mark:
    if not isinstance(path, Path):
        return [path.item.size_bytes, path.item.identity]
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]
