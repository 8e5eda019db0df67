"""What survives a run whose output is in an object store: objects below `OUTPUT.partial/`.

    job.json            what the job is, which run has it now, and the name of the folder of its segments
    <job>/....rows      finished rows, see `segment`

Theory of operation. Each object is written at once, so all that is there is whole, and any machine can continue. A
run that begins or continues replaces `job.json` on the condition that it is as it was read. A store cannot say
whether another run is alive. So a later run takes the job over, and the earlier one sees before its next checkpoint,
and before the output appears, that `job.json` is not its own, and ends.

An upload of the output cannot be called back. So a run first notes in `job.json`, on the same condition, that it
publishes, and shows a sign that it is alive until it has finished (`life_sign`). Meanwhile no run takes over.

At the end the output is written, then `job.json` is removed, then the segments of the job, each after a look whether
the job is still that of this run. What is left of them after a kill belongs to no job, and the next one removes it.
"""

import json
import secrets
from pathlib import Path
from typing import Any

from naiad.core.errors import InferError, unavailable
from naiad.repository.cloud.objects.objects import ObjectStore
from naiad.repository.cloud.objects.stored_object import ObjectChangedError, Version, identity_of
from naiad.tools.predict.job_checkpoint import Facts, JobPosition, difference, facts_of, refusal
from naiad.tools.predict.stored_output.life_sign import is_publishing, publishing, sign_of
from naiad.tools.predict.stored_output.segment import Segment, SegmentFolder, chain
from naiad.tools.predict.stores.store_place import StorePlace, split_url

_VERSION = 1
_HEAD = "job.json"
_MAX_HEAD_BYTES = 1 << 30
OUTPUT = "--output"


class StoredCheckpoint:
    """The objects of one job. Methods raise InferError."""

    def __init__(self, output: str, facts: Facts, *, restart: bool, patience_s: float) -> None:
        """Take the job over, or begin it; with `restart` what an earlier run has left is removed.

        Raises InferError(INVALID_ARG) if an earlier run was for other facts, InferError(UNAVAILABLE) if another
        process begins at the same time.
        """
        self.output = output
        above, self._name = split_url(output, OUTPUT)
        self._home = StorePlace(above, patience_s, OUTPUT)
        self._partial = self._home.below(f"{self._name}.partial")
        self.position = JobPosition()
        self.segments: list[Segment] = []
        """What earlier runs have stored, in order."""
        found = _free_head(self._partial.objects, output)
        earlier = None if found is None or restart else found[0]
        self._job = secrets.token_hex(8) if earlier is None else self._continue(earlier, facts)
        self.folder = SegmentFolder(self._partial.below(self._job))
        self._run = secrets.token_hex(8)
        self._facts = facts
        self._version: Version = {}
        """Of `job.json`, as this run has written it."""
        self._content = b""
        try:
            self._write_head(None if found is None else found[1])
        except ObjectChangedError:
            raise unavailable(f"another process has just begun to write {output}; wait for its end") from None
        if found is not None and (killed := _publishing_run(found[0])):
            self._partial.objects.delete([sign_of(killed)])
        if not self.segments:
            self._partial.objects.delete_below("", kept=[_HEAD], check=self.check_is_ours)

    def record(self, position: JobPosition) -> None:
        """Note how many rows are stored. Raises InferError(UNAVAILABLE) if another run has taken the job over."""
        self.check_is_ours()
        self.position = position

    def check_is_ours(self) -> None:
        """Raise InferError(UNAVAILABLE) if another run has taken the job over."""
        if not self._is_ours():
            raise self._taken()

    def publish(self, position: JobPosition, finished: Path, rejected: Path | None) -> None:
        """Write the complete output and the reasons of failed rows, and remove what is not needed any more.

        Raises InferError(UNAVAILABLE) if another run has taken the job over.
        """
        with publishing(self._partial.objects, self._run):
            self.check_is_ours()  # a version that is known to the store, also after an answer that named none
            try:
                self._write_head(self._version, is_publishing=True)
            except ObjectChangedError:
                raise self._taken() from None
            objects, reasons = self._home.objects, f"{self._name}.rejected.jsonl"
            if rejected is not None:
                objects.upload(reasons, rejected)
            elif objects.find(reasons) is not None:
                objects.delete([reasons])  # of an earlier job
            objects.upload(self._name, finished)
            self.check_is_ours()
            self.position = position
            self._partial.objects.delete([_HEAD])
        self._clean()

    def discard_if_empty(self) -> None:
        """Remove the job if no row is stored, so that what is refused leaves nothing behind."""
        if not self.position.rows and not self.segments and self._is_ours():
            self._partial.objects.delete([_HEAD])

    def close(self) -> None:
        """Nothing is open."""

    def _is_ours(self) -> bool:
        head = self._partial.objects.find(_HEAD)
        if head is None:
            return False
        if head.identity == identity_of(self._version):
            return True
        # Some stores name one content differently in different answers.
        found = self._partial.objects.read(_HEAD, _MAX_HEAD_BYTES)
        if found is None or found[0] != self._content:
            return False
        self._version = found[1]
        return True

    def _taken(self) -> InferError:
        return unavailable(f"another process continues the job that writes {self.output}; this one ends")

    def _write_head(self, replaced: Version | None, *, is_publishing: bool = False) -> None:
        """Replace a version of `job.json`, None for a new one. Raises InferError and ObjectChangedError."""
        head = {"version": _VERSION, "job": self._job, "run": self._run, "facts": self._facts}
        if is_publishing:
            head["publishing"] = True
        self._content = json.dumps(head).encode()
        self._version = self._partial.objects.write(_HEAD, self._content, replaced)

    def _continue(self, content: bytes, facts: Facts) -> str:
        """Take over what an earlier run has stored; return the name of its folder."""
        try:
            head: Any = json.loads(content)
            version, job, earlier = head["version"], str(head["job"]), head["facts"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise self._refused(f"{_HEAD} cannot be read ({error})") from None
        if version != _VERSION:
            raise self._refused(f"version {version!r} of {_HEAD} is not supported, expected {_VERSION}")
        self.segments = chain(SegmentFolder(self._partial.below(job)).names())
        rows = sum(each.rows for each in self.segments)
        self.position = JobPosition(rows, sum(each.failed_rows for each in self.segments))
        if reason := difference(earlier, json.loads(json.dumps(facts))):
            raise self._refused(reason)
        return job

    def _refused(self, reason: str) -> InferError:
        return refusal(self._partial.url, self.position.rows, reason)

    def _clean(self) -> None:
        """Remove the segments of this job."""
        self._partial.objects.delete_below(self._job)


def _free_head(objects: ObjectStore, output: str) -> tuple[bytes, Version] | None:
    """Return `job.json`, and its version. Raises InferError(UNAVAILABLE) if its run writes the output now."""
    seen = None
    while True:
        found = objects.read(_HEAD, _MAX_HEAD_BYTES)
        run = None if found is None else _publishing_run(found[0])
        if run is None or run == seen:  # it has ended, or was watched
            return found
        if is_publishing(objects, run):
            raise unavailable(f"another process writes {output} now; wait for its end")
        seen = run


def _publishing_run(content: bytes) -> str | None:
    """Return the run that has noted that it publishes; None if none has."""
    try:
        head = json.loads(content)
        return str(head["run"]) if head.get("publishing") else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None  # `_continue` says what is wrong with it


def check_writable(output: str, patience_s: float) -> None:
    """Write and remove an object beside an output. Raises InferError that says what is missing."""
    above, name = split_url(output, OUTPUT)
    objects = StorePlace(f"{above}/{name}.partial", patience_s, OUTPUT).objects
    probe = f"probe-{secrets.token_hex(4)}"
    try:
        objects.write(probe, b"naiad predict\n", {})
        objects.delete([probe])
    except InferError as error:
        raise error.with_message(f"{OUTPUT} {output}: {error.message}") from None


def stored_facts(output: str, patience_s: float) -> Facts:
    """Return the facts of the job that has begun to write an output; {} without one.

    Raises InferError, of UNAVAILABLE if a run writes the output now: its files are not to be taken from it.
    """
    found = _free_head(_partial_of(output, patience_s).objects, output)
    return {} if found is None else facts_of(found[0])


def discard_stored(output: str, patience_s: float) -> None:
    """Remove what a job has stored for an output, so that a run which still has it ends.

    Raises InferError, of UNAVAILABLE if the run writes the output now: then it appears.
    """
    objects = _partial_of(output, patience_s).objects
    _free_head(objects, output)
    objects.delete([_HEAD])
    objects.delete_below("")


def _partial_of(output: str, patience_s: float) -> StorePlace:
    above, name = split_url(output, OUTPUT)
    return StorePlace(above, patience_s, OUTPUT).below(f"{name}.partial")
