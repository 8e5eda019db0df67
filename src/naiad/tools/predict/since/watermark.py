"""What runs with `--since last` have recorded: the files that are predicted, and the run that has begun. Pure.

A file is known by its path, size, and time of change or, in a store, the name that the store gives to its content.
It is new if it is not known, or was changed. So no clock decides: two files of one time, an upload that took hours, a
file that was copied with an old time and machines whose clocks differ are all found once.

A run claims its files before it begins. Before its output appears the claim gets a publication: what identifies the
complete output, and which files it has no rows of. The files become known when the output is there. After a kill in
between, the next run compares: the files are known if what is there now is what a publication says. Another file of
that name proves nothing. A run that continues adds its publication to those before, since a store cannot say whether
the run before will still have its output appear; each of them has the rows of the same files.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from naiad.core.errors import invalid_argument

_VERSION = 1
_MAX_PUBLICATIONS = 16
OUTPUT = "output"
"""Stands for a file that a run has written, which is never new."""

Mark = Sequence[int | str] | str
"""What identifies the content of a file, or `OUTPUT`."""


@dataclass(frozen=True, slots=True)
class PublishedOutput:
    """A complete output that appears now."""

    mark: Mark
    """Of the output."""
    rows: int
    failed_rows: int
    set_aside: Mapping[str, str] = field(default_factory=dict)
    """Files, and folders of such, that could not be read, with the reasons."""
    unread: Sequence[str] = ()
    """All of these files, as they are in the claim."""


@dataclass(frozen=True, slots=True)
class WatermarkClaim:
    """A run that has begun."""

    output: str
    files: Mapping[str, Mark]
    id: str = ""
    """Random; the finished rows name it, so that the rows of another job are not continued."""
    run: str = ""
    """Random: of the run that has the claim now, so that one which it takes the claim from sees it."""
    publications: Sequence[PublishedOutput] = ()
    """Of this run and of the runs that it continues; without one the output has not appeared."""

    def published(self, publication: PublishedOutput) -> "WatermarkClaim":
        """Return the claim of a run whose output appears now."""
        others = [each for each in self.publications if each != publication]
        return replace(self, publications=[*others, publication][-_MAX_PUBLICATIONS:])


@dataclass(frozen=True, slots=True)
class Watermark:
    """One record, for one model and its inputs."""

    model: str
    inputs: Sequence[str]
    known: Mapping[str, Mark] = field(default_factory=dict)
    claim: WatermarkClaim | None = None

    def new(self, found: Mapping[str, Mark]) -> list[str]:
        """Return the paths of the files that no run has predicted as they are now."""
        return [path for path, mark in found.items() if self.known.get(path) not in (mark, OUTPUT)]

    def committed(self, written: Iterable[str], publication: PublishedOutput) -> "Watermark":
        """Return the record after the output of the claim appeared: `written` are its files.

        Files that were set aside stay new: another run may be able to read them.
        """
        if self.claim is None:
            return self
        unread = set(publication.unread)
        predicted = {path: mark for path, mark in self.claim.files.items() if path not in unread}
        return replace(self, known={**self.known, **predicted, **dict.fromkeys(written, OUTPUT)}, claim=None)


def encode_watermark(watermark: Watermark) -> bytes:
    """Return a record as JSON."""
    claim = watermark.claim
    document = {
        "version": _VERSION,
        "model": watermark.model,
        "inputs": list(watermark.inputs),
        "claim": None if claim is None else _encoded(claim),
        "known": dict(watermark.known),
    }
    return json.dumps(document, indent=0).encode()


def _encoded(claim: WatermarkClaim) -> dict[str, object]:
    publications = [asdict(each) for each in claim.publications]
    return {
        "output": claim.output,
        "id": claim.id,
        "run": claim.run,
        "publications": publications,
        "files": dict(claim.files),
    }


def _decoded(claim: Mapping[str, object]) -> WatermarkClaim:
    """Return a claim. One of an earlier version has neither id nor publication: its files are new."""
    files, publications = claim["files"], claim.get("publications", [])
    if not isinstance(files, dict) or not isinstance(publications, list):
        raise TypeError("its claim has no files")
    output, id_, run = (str(claim.get(name, "")) for name in ("output", "id", "run"))
    return WatermarkClaim(output, files, id_, run, [_publication(each) for each in publications])


def _publication(found: Mapping[str, object]) -> PublishedOutput:
    mark, rows, failed_rows = found["mark"], found["rows"], found["failed_rows"]
    set_aside, unread = found["set_aside"], found["unread"]
    if not isinstance(mark, list) or not isinstance(rows, int) or not isinstance(failed_rows, int):
        raise TypeError("a publication has no mark and counts")
    if not isinstance(set_aside, dict) or not isinstance(unread, list):
        raise TypeError("a publication has no files that were set aside")
    return PublishedOutput(mark, rows, failed_rows, set_aside, unread)


def decode_watermark(content: bytes, where: str) -> Watermark:
    """Return a record. Raises InferError(INVALID_ARG) for another content."""
    try:
        document = json.loads(content)
        claim = document["claim"]
        if document["version"] != _VERSION:
            raise ValueError(f"its version is {document['version']!r}, and {_VERSION} is supported")
        return Watermark(
            str(document["model"]),
            [str(each) for each in document["inputs"]],
            dict(document["known"].items()),
            None if claim is None else _decoded(claim),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise invalid_argument(
            f"state {where} is no record of runs with --since last ({error}); remove it, and all files are new, or "
            "name another one with --state"
        ) from None
