"""The configurations to go back to, in a file: an analysis that was killed is undone by the next one."""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from naiad.core.errors import invalid_argument
from naiad.files.replacement import replace_file

_VERSION = 1


@dataclass(frozen=True, slots=True)
class Original:
    """A model as it was before the first override."""

    config_json: str
    """Complete; "" for a model that was not loaded."""


@dataclass(frozen=True, slots=True)
class MeasurementJournal:
    """What a journal file says."""

    url: str
    """Of the server."""
    pid: int
    """Of the analysis."""
    models: Mapping[str, Original]

    @property
    def is_in_use(self) -> bool:
        """Return whether the analysis that wrote it still runs on this machine."""
        if self.pid == os.getpid():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True


def journal_path(directory: Path, url: str) -> Path:
    """Return the path of the journal for a server."""
    return directory / f"naiad-analyze-{re.sub(r'[^A-Za-z0-9.-]+', '-', url)}.journal.json"


def write_journal(path: Path, url: str, models: Mapping[str, Original]) -> None:
    """Write the file; it is complete on disk before this returns."""
    content = {
        "version": _VERSION,
        "url": url,
        "pid": os.getpid(),
        "models": {name: each.config_json for name, each in models.items()},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, json.dumps(content, indent=1).encode())


def read_journal(path: Path) -> MeasurementJournal:
    """Read the file. Raises InferError(INVALID_ARG) for one that is no journal, OSError."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["version"] != _VERSION:
            raise ValueError(f"version {content['version']}, expected {_VERSION}")
        models = {str(name): Original(str(text)) for name, text in content["models"].items()}
        return MeasurementJournal(str(content["url"]), int(content["pid"]), models)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise invalid_argument(f"{path} is no journal of naiad analyze: {error!r}") from None
