"""The outline of a repository in an object store: its directories, names and sizes, and the configurations alone.

A repository in an object store, behind the verbs of every store.
"""

import functools
import hashlib
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from naiad.core.errors import ErrorCode, InferError, excerpt, invalid_argument, not_found, unavailable
from naiad.repository.cloud.cache import LocalModel, ModelCache, WantedFile
from naiad.repository.cloud.last_listing import LastListing, Listing
from naiad.repository.cloud.last_notes import LastNotes
from naiad.repository.cloud.notes import CloudNotes
from naiad.repository.cloud.objects.objects import ObjectStore
from naiad.repository.cloud.objects.stored_object import BadKeyError, ObjectChangedError, StoredObject
from naiad.repository.stores.store import (
    CONFIG_FILE,
    CONFIG_SUFFIXES,
    INCOMPLETE_MARK,
    MAX_CONFIG_BYTES,
    ModelEntry,
    ModelListing,
    Store,
    check_model_name,
    entry_of_directory,
    is_known_directory,
)

_log = logging.getLogger(__name__)

T = TypeVar("T")

_RETRY_S = 5.0
"""Shortest time between two attempts to reach a store that could not be reached."""
_ROUNDS = 3
"""How often a model may change while it is downloaded."""


class CloudStore(Store):
    """Models below a URL. What is asked is how things are there now; contents come through the cache."""

    def __init__(self, objects: ObjectStore, cache: ModelCache, *, config_name: str = "") -> None:
        self.location = objects.url.text
        self._objects = objects
        self._notes = CloudNotes(objects.brief(), last=LastNotes(cache.listings, objects.url.key))
        self._cache = cache
        self._config_name = config_name
        self._last = LastListing(cache.listings, objects.url.key)
        self._has_answered = self._says_cached = False
        if self._last.read():
            objects.be_brief()
        self._retry_s = 0.0
        """Until then a store that could not be reached is not asked again."""

    def _ask(self, ask: Callable[[], T], remembered: Callable[[Listing], T]) -> T:
        """Return the answer of the store; until its first one, while it cannot be reached, what is remembered.

        Raises InferError without either.
        """
        if not self._has_answered and self.away and time.monotonic() < self._retry_s:
            return self._recall(unavailable(self.away), remembered)
        try:
            answer = ask()
        except InferError as error:
            if error.code is not ErrorCode.UNAVAILABLE:
                raise
            self._retry_s = time.monotonic() + _RETRY_S
            was_away, self.away = self.away, error.message
            if self._has_answered:
                raise
            if not was_away:
                _log.error("model repository %s cannot be reached: %s", self.location, error.message)
            return self._recall(error, remembered)
        if self.away:
            _log.warning("model repository %s can be reached again", self.location)
        self.away = ""
        self._has_answered, self.is_missing = True, False
        return answer

    def _recall(self, error: InferError, remembered: Callable[[Listing], T]) -> T:
        models = self._last.read()
        self.was_away = True
        self.is_missing = not models
        if self.is_missing:
            raise error
        if not self._says_cached:
            self._says_cached = True
            _log.warning(
                "MODEL REPOSITORY %s IS NOT REACHED: its %d models are served as they were when it could be read "
                "last, from the cache %s",
                self.location,
                len(models),
                self._cache.root,
            )
        return remembered(models)

    def list_models(self) -> Sequence[str]:
        """Return the names directly below the URL, sorted, hidden ones left out. Raises InferError."""
        return self._ask(self._list_models, sorted)

    def _list_models(self) -> Sequence[str]:
        names, objects = self._objects.list_top(self._last.read)
        self._check_is_repository(bool(names or objects), objects)
        return [name for name in names if not name.startswith(".")]

    def look(self) -> Mapping[str, ModelListing]:
        """Return how every model looks now, by one listing of everything. Raises InferError."""
        return self._ask(self._look, self._listings)

    def _look(self) -> Mapping[str, ModelListing]:
        try:
            found = self._objects.list_objects()
        except BadKeyError:
            return self._look_at_each()
        self._notes.observe(found)
        models = _by_model(found)
        self._check_is_repository(bool(found), [item.key for item in found if "/" not in item.key])
        self._last.replace(models)
        return self._listings(models)

    def _listings(self, models: Listing) -> Mapping[str, ModelListing]:
        return {name: self._listing(name, items) for name, items in sorted(models.items())}

    def _look_at_each(self) -> Mapping[str, ModelListing]:
        """Return the same from a listing of each model: one with an object that is no path fails alone."""
        names = self._list_models()
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="look") as pool:
            listings = list(pool.map(self._sight, names))
        return {name: listing for name, listing in zip(names, listings, strict=True) if listing is not None}

    def _sight(self, name: str) -> ModelListing | None:
        try:
            items = self._objects.list_objects(name)
        except BadKeyError as error:
            return ModelListing(functools.partial(_refuse, error), hashlib.blake2b(error.message.encode()).digest())
        self._last.update(name, items)
        return self._listing(name, items) if items else None

    def sight(self, name: str) -> ModelListing | None:
        """Return how one model looks now, None when it is not there. Raises InferError."""
        check_model_name(name)
        if name.startswith("."):
            return None
        return self._ask(lambda: self._sight(name), lambda models: self._listings(models).get(name))

    def open_model(self, name: str) -> ModelEntry:
        """Bring a model to the cache and describe it. Raises InferError."""
        listing = self.sight(name)
        if listing is None:
            raise not_found(f"model '{name}' is not found in model repository {self.location}")
        return listing.open()

    def _check_is_repository(self, has_objects: bool, top: Sequence[str]) -> None:
        if not has_objects:
            raise not_found(f"there is nothing below {self.location}; check bucket and path of the model repository")
        if CONFIG_FILE in top:
            above = self.location.rpartition("/")[0]
            raise invalid_argument(f"{self.location} is one model; give the repository that it lies in, {above}")

    def _listing(self, name: str, items: Sequence[StoredObject]) -> ModelListing:
        return ModelListing(
            functools.partial(self._open, name, items),
            _fingerprint(items),
            any(item.key == f"{name}/{INCOMPLETE_MARK}" for item in items),
        )

    # --- bringing ---------------------------------------------------------------------------------------------------

    def _open(self, name: str, items: Sequence[StoredObject]) -> ModelEntry:
        for _ in range(_ROUNDS):
            start_s = time.monotonic()
            try:
                local = self._bring(name, items)
            except ObjectChangedError as change:
                _log.info("%s has changed while it was downloaded", change)
            else:
                elapsed_s = time.monotonic() - start_s
                if not local.downloaded_bytes:
                    return self._entry(name, items, local)
                size_mb = local.downloaded_bytes / 1e6
                _log.info("downloaded %.1f MB of %s/%s in %.1f s", size_mb, self.location, name, elapsed_s)
                # What came one after the other was there at one time only if nothing has changed until now.
                if _fingerprint(self._objects.list_objects(name)) == _fingerprint(items):
                    return self._entry(name, items, local)
                local.release()
                _log.info("model '%s' in %s has changed while it was downloaded", name, self.location)
            items = self._objects.list_objects(name)
            if not items:
                raise not_found(f"model '{name}' has been removed from {self.location} while it was downloaded")
        raise unavailable(
            f"model '{name}' in {self.location} has changed {_ROUNDS} times while it was downloaded; "
            "wait until it is complete"
        )

    def _entry(self, name: str, items: Sequence[StoredObject], local: LocalModel) -> ModelEntry:
        try:
            entry = entry_of_directory(name, local.directory, config_name=self._config_name)
        except BaseException:
            local.release()
            raise
        return replace(entry, fingerprint=_fingerprint(items), release=local.release, notes=self._notes)

    def _bring(self, name: str, items: Sequence[StoredObject]) -> LocalModel:
        directories, files = split_directories(name, items)
        state = hashlib.blake2b(self._objects.url.key.encode() + b"\0" + _fingerprint(items), digest_size=16)
        wanted = [self._wanted(item, item.key.removeprefix(f"{name}/")) for item in files]
        return self._cache.open(state.hexdigest(), name, directories, wanted)

    def _wanted(self, item: StoredObject, path: str) -> WantedFile:
        url = self._objects.url
        # Where it lies is part of it: an ETag says something about one object only.
        text = f"{url.key}\0{item.key}\0{item.size_bytes}\0{item.identity}"
        identity = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()
        return WantedFile(
            path, item.size_bytes, identity, url.of(item.key), functools.partial(self._objects.fetch, item)
        )


def _refuse(error: InferError) -> ModelEntry:
    raise error


def _by_model(items: Sequence[StoredObject]) -> dict[str, list[StoredObject]]:
    """Return the objects of each model that is not hidden."""
    models: dict[str, list[StoredObject]] = {}
    for item in items:
        name, slash, _ = item.key.partition("/")
        if slash and not name.startswith("."):
            models.setdefault(name, []).append(item)
    return models


def split_directories(name: str, items: Sequence[StoredObject]) -> tuple[list[str], list[StoredObject]]:
    """Return the directories that objects without content stand for, below the model's own, and all other objects.

    An object `model/1/` is how consoles make a directory. The listing has it without its slash, so it is
    recognized by the objects below it, or by its name. Raises InferError(INVALID_ARG) for keys that cannot be paths.
    """
    above = {"/".join(item.key.split("/")[:depth]) for item in items for depth in range(1, item.key.count("/") + 1)}
    directories: list[str] = []
    files: list[StoredObject] = []
    for item in items:
        parts = item.key.split("/")[1:]
        if any(part in ("", ".", "..") or "\0" in part or len(part.encode()) > 255 for part in parts):
            raise invalid_argument(f"the key '{item.key}' of model '{name}' cannot be the path of a file")
        is_above = item.key in above
        if is_above and item.size_bytes:
            raise invalid_argument(f"'{item.key}' of model '{name}' is an object and a directory of others")
        if is_above or (not item.size_bytes and len(parts) == 1 and is_known_directory(parts[0])):
            directories.append("/".join(parts))
        else:
            files.append(item)
    return directories, files


def _fingerprint(items: Sequence[StoredObject]) -> bytes:
    """Return what is the same as long as the same objects with the same contents are there."""
    digest = hashlib.blake2b(digest_size=16)
    for item in sorted(items, key=lambda item: item.key):
        text = f"{item.key}\0{item.size_bytes}\0{item.identity}\0"
        digest.update(text.encode(errors="surrogatepass"))
    return digest.digest()


_THREADS = 16
_MAX_NAME_BYTES = 255
"""Of a directory."""


def write_manifest(objects: ObjectStore, directory: Path) -> dict[str, str]:
    """Write what `naiad check` looks at to an empty directory; other files are holes of the right size.

    Returns names that cannot be written, of models and of other objects, with the reasons. Raises InferError
    when the store cannot be read.
    """
    refused: dict[str, str] = {}
    models = _outline(objects, refused)
    texts: list[tuple[StoredObject, Path]] = []
    for name, items in models.items():
        try:
            if len(name.encode()) > _MAX_NAME_BYTES:
                raise invalid_argument(f"the name '{excerpt(name)}' is longer than {_MAX_NAME_BYTES} bytes")
            texts += _write_model(directory / name, *split_directories(name, items))
        except InferError as error:
            refused[name] = error.message
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="outline") as pool:
        list(pool.map(lambda each: objects.fetch(*each), texts))
    return refused


def _outline(objects: ObjectStore, refused: dict[str, str]) -> dict[str, list[StoredObject]]:
    """Return the objects of each model; objects of no model have an empty name."""
    try:
        found = objects.list_objects()
        top = [item for item in found if "/" not in item.key]
        models = _by_model(found)
    except BadKeyError:
        names, top_names = objects.list_top()
        refused |= objects.bad_names
        models = {}
        top = [StoredObject(name, 0, "") for name in top_names]
        for name in (each for each in names if not each.startswith(".")):
            try:
                models |= _by_model(objects.list_objects(name))
            except BadKeyError as error:
                refused[name] = error.message
    files = [replace(item, key=f"/{item.key}") for item in top if item.size_bytes and not item.key.startswith(".")]
    return {**models, "": files} if files else models


def _write_model(
    directory: Path, directories: Sequence[str], files: Sequence[StoredObject]
) -> list[tuple[StoredObject, Path]]:
    """Write all but the configurations; return those with their places."""
    for name in ("", *directories):
        (directory / name).mkdir(parents=True, exist_ok=True)
    texts: list[tuple[StoredObject, Path]] = []
    for item in files:
        path = directory / item.key.partition("/")[2]
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.name.endswith(CONFIG_SUFFIXES) and item.size_bytes <= MAX_CONFIG_BYTES:
            texts.append((replace(item, key=item.key.lstrip("/")), path))
        else:
            path.touch()
            os.truncate(path, item.size_bytes)
    return texts
