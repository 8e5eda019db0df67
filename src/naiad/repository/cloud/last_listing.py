"""How a repository in an object store looked when it could be read last: a server may start while it cannot.

One file for each repository in the cache, replaced in one step. It names objects; their contents are elsewhere in the
cache, verified by their digests before use.
"""

import contextlib
import hashlib
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import orjson

from naiad.files.held import alone
from naiad.repository.cloud.cache import write_atomically
from naiad.repository.cloud.objects.stored_object import StoredObject

_log = logging.getLogger(__name__)

_MOST_OBJECTS = 200_000
"""A larger repository is not remembered: its listing would take longer to write than to ask for."""

Listing = Mapping[str, Sequence[StoredObject]]


class LastListing:
    """The objects of each model. Its methods are called from several threads, and of several processes."""

    def __init__(self, directory: Path, key: str) -> None:
        """`key` is the same for two URLs of the same repository."""
        digest = hashlib.blake2b(key.encode(errors="surrogatepass"), digest_size=16).hexdigest()
        self._path = directory / f"{digest}.json"
        self._lock = threading.Lock()
        self._written = b""

    def replace(self, models: Listing) -> None:
        """Remember a whole repository."""
        with self._turn():
            self._write(models)

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Write alone; what cannot be written is not remembered, and that is all."""
        with self._lock:
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)  # the cache may have been emptied
                with alone(self._path.with_suffix(".lock")):
                    yield
            except OSError as error:
                _log.warning("how the repository looks is not remembered in %s: %s", self._path, error)

    def update(self, name: str, items: Sequence[StoredObject]) -> None:
        """Remember one model; without objects it is gone."""
        with self._turn():
            models = dict(self.read())
            if list(models.get(name, ())) == list(items):
                return
            models.pop(name, None)
            if items:
                models[name] = items
            self._write(models)

    def read(self) -> Listing:
        """Return what was remembered last; nothing without a usable file."""
        try:
            content = orjson.loads(self._path.read_bytes())
            return {
                str(name): [StoredObject(str(key), int(size), str(identity)) for key, size, identity in items]
                for name, items in content.items()
            }
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            _log.warning("%s cannot be used: %s", self._path, error)
            return {}

    def _write(self, models: Listing) -> None:
        if sum(map(len, models.values())) > _MOST_OBJECTS:
            return
        try:
            rows = {
                name: [(each.key, each.size_bytes, each.identity) for each in items] for name, items in models.items()
            }
            content = orjson.dumps(rows)
            if content != self._written or not self._path.exists():
                write_atomically(self._path, content)
                self._written = content
        except (OSError, TypeError) as error:  # no room, or a key that is no text
            _log.warning("how the repository looks is not remembered in %s: %s", self._path, error)
