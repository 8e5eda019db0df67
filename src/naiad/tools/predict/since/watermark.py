"""What runs with `--since last` have recorded: the files that are predicted, and the run that has begun. Pure.

A file is known by its path, size, and time of change or, in a store, the name that the store gives to its content.
It is new if it is not known, or was changed. So no clock decides: two files of one time, an upload that took hours, a
file that was copied with an old time and machines whose clocks differ are all found once.

A run claims its files before it begins, and they become known when its output is there. What is between the two is a
claim: its output exists, so its files are known; or it does not, and they are still new.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from naiad.core.errors import invalid_argument

_VERSION = 1
OUTPUT = "output"
"""Stands for a file that a run has written, which is never new."""

Mark = Sequence[int | str] | str
"""What identifies the content of a file, or `OUTPUT`."""


@dataclass(frozen=True, slots=True)
class WatermarkClaim:
    """A run that has begun."""

    output: str
    files: Mapping[str, Mark]


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

    def committed(self, written: Iterable[str], set_aside: Iterable[str] = ()) -> "Watermark":
        """Return the record after the output of the claim appeared: `written` are its files.

        Files that were set aside stay new: another run may be able to read them.
        """
        if self.claim is None:
            return self
        aside = set(set_aside)
        predicted = {path: mark for path, mark in self.claim.files.items() if path not in aside}
        return replace(self, known={**self.known, **predicted, **dict.fromkeys(written, OUTPUT)}, claim=None)


def encode_watermark(watermark: Watermark) -> bytes:
    """Return a record as JSON."""
    claim = watermark.claim
    document = {
        "version": _VERSION,
        "model": watermark.model,
        "inputs": list(watermark.inputs),
        "claim": None if claim is None else {"output": claim.output, "files": dict(claim.files)},
        "known": dict(watermark.known),
    }
    return json.dumps(document, indent=0).encode()


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
            None if claim is None else WatermarkClaim(str(claim["output"]), dict(claim["files"].items())),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise invalid_argument(
            f"state {where} is no record of runs with --since last ({error}); remove it, and all files are new, or "
            "name another one with --state"
        ) from None
