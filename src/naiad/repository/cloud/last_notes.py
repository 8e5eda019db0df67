"""The notes of a repository in an object store as they could be read last: a server may start while it cannot ask.

One file for each repository in the cache, beside its last listing. Without it, what a note would say is not known.
"""

import hashlib
import logging
import threading
from pathlib import Path

import orjson

from naiad.files.held import alone
from naiad.repository.cloud.cache import write_atomically

_log = logging.getLogger(__name__)


class LastNotes:
    """The content of each model's note. Its methods are called from several threads, and of several processes."""

    def __init__(self, directory: Path, key: str) -> None:
        """`key` is the same for two URLs of the same repository."""
        digest = hashlib.blake2b(key.encode(errors="surrogatepass"), digest_size=16).hexdigest()
        self._path = directory / f"{digest}.notes.json"
        self._lock = threading.Lock()
        self._known: dict[str, str] | None = None

    def remember(self, model: str, content: bytes | None) -> None:
        """Remember the note of a model as it is now, None if it has none."""
        text = None if content is None else content.decode("utf-8", "surrogateescape")
        with self._lock:
            if self._known is not None and self._known.get(model) == text:
                return
            try:
                self._known = self._replaced(model, text)
            except (OSError, TypeError) as error:  # no room, or a note that is no text
                _log.warning("the notes of the repository are not remembered in %s: %s", self._path, error)

    def _replaced(self, model: str, text: str | None) -> dict[str, str]:
        """Write what is remembered now, and return it. Raises OSError, TypeError."""
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)  # the cache may have been emptied
        with alone(self._path.with_suffix(".lock")):
            known = self._read() or {}
            known.pop(model, None)
            if text is not None:
                known[model] = text
            write_atomically(self._path, orjson.dumps(known))
        return known

    def recall(self, model: str) -> tuple[bool, bytes | None]:
        """Return whether anything was remembered of the repository, and the note of a model, None if it had none."""
        with self._lock:
            known = self._read()
        if known is None:
            return False, None
        text = known.get(model)
        return True, None if text is None else text.encode("utf-8", "surrogateescape")

    def _read(self) -> dict[str, str] | None:
        try:
            content = orjson.loads(self._path.read_bytes())
            return {str(name): str(text) for name, text in content.items()}
        except FileNotFoundError:
            return None
        except (OSError, ValueError, AttributeError) as error:
            _log.warning("%s cannot be used: %s", self._path, error)
            return None
