"""Finished steps of an optimization on disk: a step whose content has not changed is not run again.

Every step has a kind (`verdict`, `profile`, ...) and a key, the hash of all that its result depends on. Its file is
written beside its place and renamed, so that after a kill a file is there complete or not at all.
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from naiad.files.json_records import to_json
from naiad.files.replacement import replace_file

_Value = TypeVar("_Value")


class StepJournal:
    """The folder of the steps."""

    def __init__(self, folder: Path, *, is_fresh: bool = False) -> None:
        """With `is_fresh`, results of earlier runs do not count."""
        self._folder = folder
        self._is_fresh = is_fresh
        self._written: set[tuple[str, str]] = set()

    def step(
        self, kind: str, key: str, run: Callable[[], _Value], read: Callable[[Any], _Value]
    ) -> tuple[_Value, bool]:
        """Return the result of a step and whether an earlier run has left it; run the step if not."""
        known = self.read(kind, key, read)
        if known is not None:
            return known, True
        value = run()
        self.write(kind, key, value)
        return value, False

    def read(self, kind: str, key: str, read: Callable[[Any], _Value]) -> _Value | None:
        """Return the result of an earlier run, None if there is none; an unreadable file counts as none.

        `read` makes the value from the JSON that `to_json` of the value gave.
        """
        if self._is_fresh and (kind, key) not in self._written:
            return None
        try:
            return read(json.loads(self._file(kind, key).read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, kind: str, key: str, value: Any) -> None:
        """Keep the result of a step."""
        self._folder.mkdir(parents=True, exist_ok=True)
        replace_file(self._file(kind, key), to_json(value).encode())
        self._written.add((kind, key))

    def _file(self, kind: str, key: str) -> Path:
        return self._folder / f"{kind}-{key[:32]}.json"


def key_of(*parts: Any) -> str:
    """Return a hash of values that `to_json` can write."""
    return hashlib.sha256(to_json(parts).encode()).hexdigest()
