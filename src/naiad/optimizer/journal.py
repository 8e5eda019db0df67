"""Finished steps of an optimization on disk: a step whose content has not changed is not run again.

Every step has a kind (`verdict`, `profile`, ...) and a key, the hash of all that its result depends on. Its file is
written beside its place and renamed, so that after a kill a file is there complete or not at all.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

_Value = TypeVar("_Value")


class Journal:
    """The folder of the steps."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def step(
        self, kind: str, key: str, run: Callable[[], _Value], read: Callable[[Any], _Value], *, again: bool = False
    ) -> tuple[_Value, bool]:
        """Return the result of a step and whether it was run now.

        `read` makes the value from the JSON that `to_json` of the value gave. With `again` an earlier result does not
        count. An unreadable file is a step that has not run.
        """
        file = self._folder / f"{kind}-{key[:32]}.json"
        if not again:
            try:
                return read(json.loads(file.read_text(encoding="utf-8"))), False
            except (OSError, ValueError, KeyError, TypeError):
                file.unlink(missing_ok=True)
        value = run()
        self._write(file, to_json(value))
        return value, True

    def _write(self, file: Path, text: str) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=self._folder, delete=False, encoding="utf-8") as temporary:
            temporary.write(text)
            temporary.flush()
            os.fsync(temporary.fileno())
        Path(temporary.name).replace(file)


def to_json(value: Any) -> str:
    """Return dataclasses and what they hold as JSON: enumerations as values, paths as text, arrays as lists."""
    return json.dumps(value, default=_plain, sort_keys=True)


def key_of(*parts: Any) -> str:
    """Return a hash of values that `to_json` can write."""
    return hashlib.sha256(to_json(parts).encode()).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if hasattr(value, "tolist"):  # A number or an array of numpy.
        return value.tolist()
    return dict(value) if isinstance(value, Mapping) else str(value)
