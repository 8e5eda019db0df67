"""What is known of models on demand while they are not loaded. Changed under the lock of `OnDemandModels`."""

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.model import name_of


class KnownModels:
    """Versions, kind and names of the models on demand, by their keys."""

    def __init__(self) -> None:
        self._versions: dict[str, Sequence[int]] = {}
        self._decoupled: set[str] = set()
        self._keys: dict[str, set[str]] = {}
        """The keys of the models of a name; with namespaces there may be several."""

    def know(self, key: str, versions: Sequence[int], config: ModelConfig) -> None:
        """Note what is known of a model."""
        self._versions[key] = versions
        self._keys.setdefault(name_of(key), set()).add(key)
        if config.model_transaction_policy.decoupled:
            self._decoupled.add(key)
        else:
            self._decoupled.discard(key)

    def forget(self, key: str) -> None:
        """Forget a model, which may be unknown."""
        self._versions.pop(key, None)
        self._decoupled.discard(key)
        keys = self._keys.get(name_of(key), set())
        keys.discard(key)
        if not keys:
            self._keys.pop(name_of(key), None)

    def find(self, name: str) -> str | None:
        """Return the key of the model of a name; None if there is not exactly one. Needs no lock."""
        keys = tuple(self._keys.get(name, ()))  # a copy: other threads change it
        return keys[0] if len(keys) == 1 else None

    def versions_of(self, key: str) -> Sequence[int]:
        """Return the versions that a load of a model brings."""
        return self._versions.get(key, ())

    def is_decoupled(self, key: str) -> bool:
        """Return whether a model is decoupled, as far as its configuration or an earlier load says it."""
        return key in self._decoupled


def directory_bytes(directory: Path) -> int:
    """Return the size of the files in a directory; a file that cannot be read counts nothing."""
    total = 0
    folders = [os.fspath(directory)]
    while folders:
        folder = folders.pop()
        try:
            # Not with pathlib, which takes as long as the rest of what is done for a model that is not loaded.
            with os.scandir(folder) as children:
                for child in children:
                    if child.is_dir(follow_symlinks=False):
                        folders.append(child.path)
                    else:
                        total += _size(child.path)
        except NotADirectoryError:
            total += _size(folder)
        except OSError:
            continue
    return total


def _size(path: str) -> int:
    try:
        status = os.stat(path)
    except OSError:
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0
