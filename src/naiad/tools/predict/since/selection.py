"""The files of one run: all of them, those changed since a time, or those that no run before has predicted."""

import logging
import os
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from naiad.core.errors import InferError, excerpt, invalid_argument
from naiad.tools.predict.files.input_files import InputFiles
from naiad.tools.predict.job_checkpoint import JobPosition
from naiad.tools.predict.prediction_job import PredictJob, Summary
from naiad.tools.predict.since.earlier_output import (
    discard_unfinished,
    file_mark,
    finished_mark,
    is_output_of,
    output_exists,
    unfinished_facts,
)
from naiad.tools.predict.since.watermark import (
    Mark,
    PublishedOutput,
    Watermark,
    WatermarkClaim,
    decode_watermark,
    encode_watermark,
)
from naiad.tools.predict.since.watermark_place import WatermarkTakenError, open_place
from naiad.tools.predict.since_time import LAST, is_since, since_ns
from naiad.tools.predict.stores.object_path import FilePath
from naiad.tools.predict.stores.store_place import is_store_url

_log = logging.getLogger(__name__)

CLAIM = "run with --since last"
"""The fact of a job that says whose files it has."""


class Selection:
    """The files of a run, and where their rows go. Methods raise InferError and OSError."""

    must_restart = False
    """Whether what an earlier run has finished is of other files."""
    claim_id = ""
    """What finished rows must name to be continued; "" where runs are not recorded."""
    is_announced = False
    """Whether finished rows must stay: the record says that their output appears."""
    earlier: Summary | None = None
    """Of a run that was ended after its output appeared, and before it was recorded."""

    def __init__(self, output: str, files: Sequence[InputFiles] = (), skipped: int = 0) -> None:
        self.output = output
        """Another one than the job's for a run that did not end, which is continued first; then `go_on` follows."""
        self.files = files
        self.skipped = skipped
        """Files that are not new."""

    def announce(
        self, finished: Path, position: JobPosition, set_aside: Mapping[str, str], unread: Sequence[FilePath]
    ) -> None:
        """Record what the complete output is, before it appears."""

    def commit(self) -> None:
        """Record that the output is there."""

    def go_on(self) -> None:
        """Select the files for the output of the job, after an earlier one was completed."""

    def close(self) -> None:
        """Do nothing."""


def select_files(job: PredictJob, files: Sequence[InputFiles]) -> Selection:
    """Return which files a run has, with a claim on them where runs are recorded. Raises InferError and OSError."""
    if not job.since:
        return Selection(job.output, files)
    if job.since != LAST:
        since = since_ns(job.since)
        return _selected(job.output, files, [path for each in files for path in each.all if _is_since(path, since)])
    return RecordedSelection(job, files)


def state_of(job: PredictJob) -> str:
    """Return path or URL of the record of a job."""
    if job.state:
        return job.state
    above, slash, _ = job.output.rpartition("/")
    return f"{above}{slash}{job.model}.since.json"


def _is_since(path: FilePath, since: int) -> bool:
    return is_since(path.stat().st_mtime_ns, since, is_rounded=not isinstance(path, Path))


def _selected(output: str, files: Sequence[InputFiles], chosen: Iterable[FilePath]) -> Selection:
    kept = _only(files, {_key(path) for path in chosen})
    return Selection(output, kept, _count(files) - _count(kept))


class RecordedSelection(Selection):
    """The files that are new by the record of runs, claimed by this one.

    A run that did not end is continued first, into its own output: whichever of two runs has that output appear, it
    has the rows of the same files, so none is written twice.
    """

    def __init__(self, job: PredictJob, files: Sequence[InputFiles]) -> None:
        super().__init__(job.output)
        self._job = job
        self._where = state_of(job)
        self._all = files
        self._place = open_place(self._where, job.timeout_s)
        try:
            self._found: dict[str, Mark] = {_key(path): _mark(path) for each in files for path in each.all}
            self._watermark = self._read() or Watermark(job.model, [*map(_absolute, job.inputs)])
            self._check_job(self._watermark)
            claim = self._watermark.claim
            if claim is None or not self._settle(claim):
                self._begin()
        except BaseException:
            self._place.close()
            raise

    def announce(
        self, finished: Path, position: JobPosition, set_aside: Mapping[str, str], unread: Sequence[FilePath]
    ) -> None:
        """Record what the complete output is, before it appears.

        Raises WatermarkTakenError if another run has claimed the files: they would be predicted twice.
        """
        claim = self._claim
        if not finished.exists() and claim.publications:
            return  # it has appeared before an earlier run was ended
        reasons = {file: excerpt(reason) for file, reason in set_aside.items()}
        mark = finished_mark(finished, claim.output)
        publication = PublishedOutput(mark, position.rows, position.failed_rows, reasons, [*map(_key, unread)])
        self._write(replace(self._watermark, claim=claim.published(publication)))
        self.is_announced = True

    def commit(self) -> None:
        """Record that the output which was announced is there."""
        publication = self._claim.publications[-1]
        self._commit(publication)
        for path in publication.unread:
            self._found.pop(path, None)  # this run has reported it

    def go_on(self) -> None:
        """Select the files for the output of the job, without those that could not be read just now."""
        self.output, self.must_restart = self._job.output, False
        self._check_unclaimed()
        self._begin()

    def close(self) -> None:
        """Let other runs use the record."""
        self._place.close()

    @property
    def _claim(self) -> WatermarkClaim:
        claim = self._watermark.claim
        assert claim is not None, "the run has claimed its files"
        return claim

    def _settle(self, claim: WatermarkClaim) -> bool:
        """Deal with a run that did not end. Return whether its output is that of the selection."""
        is_own = claim.output == _absolute(self._job.output)
        # Before the output is looked for: a run that writes it now keeps its claim, and this one ends.
        is_ours = bool(claim.id) and self._facts(claim.output).get(CLAIM) == claim.id
        publication = self._appeared(claim)
        if publication is not None:
            self._commit(publication)
            if is_ours:
                discard_unfinished(claim.output, self._job.timeout_s)
            self.earlier = _summary(claim.output, publication)
            if is_own:
                self.skipped = len(self._found) - len(self._new())
            else:
                self._check_unclaimed()
            return is_own
        if self._job.restart:
            return self._give_up(claim, is_ours=is_ours and not is_own)
        is_there = output_exists(claim.output, self._job.timeout_s)
        if is_ours and not is_there:
            return self._continue(claim, is_own=is_own)
        if claim.publications:
            raise self._uncertain(claim)
        return self._give_up(claim, is_ours=is_ours and not is_own)

    def _appeared(self, claim: WatermarkClaim) -> PublishedOutput | None:
        """Return the publication of what is there now, if there is one."""
        for each in reversed(claim.publications):
            if is_output_of(each.mark, claim.output, self._job.timeout_s):
                return each
        return None

    def _facts(self, output: str) -> Mapping[str, object]:
        return unfinished_facts(output, self._job.timeout_s)

    def _continue(self, claim: WatermarkClaim, *, is_own: bool) -> bool:
        """Take over the files of a run with its output. Return False if none of them is there any more."""
        for each in self._written(claim.output):
            self._found.pop(each, None)
        files = claim.files
        if any(self._found.get(path) != mark for path, mark in files.items()):
            _log.warning("files of the interrupted run have changed; it begins again")
            self.must_restart = True
            paths = self._new() if is_own else [path for path in files if path in self._found]
            if not paths:
                return self._give_up(claim, is_ours=True)
            files = {path: self._found[path] for path in paths}
            claim = replace(claim, publications=())
        self._take(replace(claim, files=files))
        return True

    def _give_up(self, claim: WatermarkClaim, *, is_ours: bool) -> bool:
        """Leave the files of a run to this one, without its finished rows. Return False."""
        if claim.output != _absolute(self._job.output):
            _log.warning("the run that writes %s did not end; this one has its files too", claim.output)
        if is_ours:
            discard_unfinished(claim.output, self._job.timeout_s)
        self.must_restart = False
        return False

    def _uncertain(self, claim: WatermarkClaim) -> InferError:
        return invalid_argument(
            f"the run that writes {claim.output} was ended while its output appeared, and state {self._where} cannot "
            "say whether its rows are predicted: what it wrote is neither there nor finished in that place; run the "
            "command on the machine of that run, or put its output back, or add --restart to predict its files again"
        )

    def _begin(self) -> None:
        """Claim the new files for the output of the job."""
        job, new = self._job, self._new()
        self.files, self.skipped = (), len(self._found) - len(new)
        if not new:
            if self._watermark.claim is not None:
                self._write(replace(self._watermark, claim=None))
            return
        if output_exists(job.output, job.timeout_s):
            raise invalid_argument(
                f"--output {job.output} exists, and --since last writes the rows of new files only; give each run an "
                "output of its own, for example with the date in its name"
            )
        files = {path: self._found[path] for path in new}
        self._take(WatermarkClaim(_absolute(job.output), files, secrets.token_hex(8)))

    def _take(self, claim: WatermarkClaim) -> None:
        """Have the files of a claim."""
        self._write(replace(self._watermark, claim=replace(claim, run=secrets.token_hex(8))))
        self.claim_id, self.is_announced = claim.id, bool(claim.publications)
        self.output = self._job.output if claim.output == _absolute(self._job.output) else claim.output
        self.files = _only(self._all, set(claim.files))
        self.skipped = len(self._found) - len(self._new())

    def _new(self) -> list[str]:
        return self._watermark.new(self._found)

    def _commit(self, publication: PublishedOutput) -> None:
        claim = self._claim
        try:
            self._write(self._watermark.committed(self._written(claim.output), publication))
        except WatermarkTakenError:
            # Another run may have found the output, and recorded the files.
            self._watermark = self._read() or self._watermark
            unread = set(publication.unread)
            if self._watermark.new({path: mark for path, mark in claim.files.items() if path not in unread}):
                raise

    def _check_unclaimed(self) -> None:
        """Raise WatermarkTakenError if another run has recorded the output, and has begun one of its own."""
        if self._watermark.claim is not None:
            raise WatermarkTakenError(self._where)

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
    return file_mark(path) if isinstance(path, Path) else [path.item.size_bytes, path.item.identity]


def _summary(output: str, publication: PublishedOutput) -> Summary:
    rows, failed_rows, set_aside = publication.rows, publication.failed_rows, publication.set_aside
    rejected = f"{output}.rejected.jsonl" if failed_rows or set_aside else ""
    return Summary(rows, failed_rows, 0.0, output, rejected, rows, set_aside)
