"""Objects of one repository in a cloud: listing them and bringing their content, with obstore.

Everything here blocks. Failures have a kind; transient ones are retried.
"""

import contextlib
import functools
import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from naiad.core.errors import ErrorCode, InferError, excerpt
from naiad.repository.cloud.objects.credentials import Credential
from naiad.repository.cloud.objects.object_failures import ObjectFailure
from naiad.repository.cloud.objects.provider import WRITE_FIXES
from naiad.repository.cloud.objects.s3_names import is_path, name_behind, names_below
from naiad.repository.cloud.objects.store_requests import FIRST_PAUSE_S, StoreRequests, bad_key
from naiad.repository.cloud.objects.stored_object import (
    BadKeyError,
    ObjectChangedError,
    StoredObject,
    StoreError,
    Version,
    identity_of,
    stored_object,
)
from naiad.repository.cloud.url import CloudUrl

_log = logging.getLogger(__name__)

_SMALL_S = 15.0
"""Limit of a request for a small object, see `brief`."""
_PART_BYTES = 16 << 20
"""A large object comes in parts of this size, several at the same time."""
_PART_THREADS = 16
_CHUNK_BYTES = 1 << 20
_MAX_UPLOAD_PARTS = 9000
"""Of one object; S3 allows 10,000."""
_UPLOADS = 4
"""Parts of one object that are sent at the same time."""
_LISTING_CHUNK = 1000
_MOST_BAD_NAMES = 100
"""Names that are no paths, beyond which a listing fails."""
_MAX_OBJECTS = 1_000_000
"""Objects that one repository may have; a listing of more is a wrong path."""


class ObjectStore(StoreRequests):
    """Lists and fetches the objects below a URL. Its methods are called from several threads."""

    def __init__(
        self,
        url: CloudUrl,
        credential: Credential,
        environ: Mapping[str, str],
        *,
        first_pause_s: float = FIRST_PAUSE_S,
        part_bytes: int = _PART_BYTES,
        limit_s: float | None = None,
        patience_s: float | None = None,
        write_fixes: Mapping[str, str] = WRITE_FIXES,
    ) -> None:
        """Nothing is connected to yet. `limit_s`: of a request, and of all attempts together.

        `patience_s`: a store that has answered is asked again for so long, instead of `ATTEMPTS` times; long work
        waits for a store that is busy. `write_fixes`: by scheme, what to do when writing is denied. Raises
        InferError(UNSUPPORTED) when the library is not there.
        """
        super().__init__(
            url,
            credential,
            environ,
            first_pause_s=first_pause_s,
            limit_s=limit_s,
            patience_s=patience_s,
            write_fixes=write_fixes,
        )
        self._part_bytes = part_bytes
        self.bad_names: dict[str, str] = {}
        """Names that are no paths, directly below the URL, with the errors that were logged."""
        self.last_read: StoredObject | None = None
        """The object of which bytes were read last."""
        self._parts = ThreadPoolExecutor(_PART_THREADS, thread_name_prefix="download")

    # --- what there is ----------------------------------------------------------------------------------------------

    def list_top(self, known: Callable[[], Iterable[str]] = tuple) -> tuple[list[str], list[str]]:
        """Return the names of directories and of objects directly below the URL, sorted. Raises InferError.

        Those that are no paths, such as `..`, are logged and left out. `known` returns names that were there before.
        """
        try:
            return self._list_top()
        except BadKeyError as error:
            found = names_below(self.url, self._credential, self._environ, anonymous=self._is_anonymous)
            if found is None:
                return self._list_top_without(error, known())
        directories, objects = found
        for name in directories:
            if not is_path(name):
                key = f"{self.url.prefix}/{name}/".removeprefix("/")
                self._report(bad_key(f"listing {self.url.text}", f"the key {excerpt(repr(key))}", key))
        return list(filter(is_path, directories)), list(filter(is_path, objects))

    def _report(self, error: BadKeyError) -> None:
        if error.key not in self.bad_names:
            self.bad_names[error.key] = error.message
            _log.error("%s", error.message)

    def _list_top(self) -> tuple[list[str], list[str]]:
        found = self._attempt(f"listing {self.url.text}", lambda: _library().list_with_delimiter(self._reading()))
        objects = [str(meta["path"]) for meta in found["objects"]]
        return sorted(map(str, found["common_prefixes"])), sorted(name for name in objects if name)

    def _list_top_without(self, error: BadKeyError, known: Iterable[str]) -> tuple[list[str], list[str]]:
        """Return the same from listings of all objects, each of which begins behind a name that is no path.

        What comes before such a name is not in its listing: of that, the `known` names are looked for one by one.
        """
        found = [f"{name}/" for name in known if self._is_there(name)]
        behind = ""
        for _ in range(_MOST_BAD_NAMES):
            self._report(error)
            name = error.key.removeprefix(f"{self.url.prefix}/" if self.url.prefix else "").partition("/")[0]
            if is_path(name):
                found.append(f"{name}/")  # a directory with a name, whose objects are looked at when it is opened
            if not (next_name := name_behind(name)) > behind:
                raise error
            behind = next_name
            try:
                action = f"listing {self.url.text}"
                found += [item.key for item in self._attempt(action, functools.partial(self._list, "", behind))]
                break
            except BadKeyError as further:
                error = further
        directories = {key.partition("/")[0] for key in found if "/" in key}
        return sorted(directories), sorted(key for key in found if "/" not in key)

    def _is_there(self, directory: str) -> bool:
        try:
            return bool(self.list_objects(directory))
        except BadKeyError:
            return True

    def top_objects(self, below: str = "") -> list[StoredObject]:
        """Return the objects directly below the URL, or below a part of it. Raises InferError."""
        action = f"listing {self.url.of(below)}"
        found = self._attempt(action, lambda: _library().list_with_delimiter(self._reading(), below or None))
        return [stored_object(meta) for meta in found["objects"] if meta["path"]]

    def list_objects(self, below: str = "") -> list[StoredObject]:
        """Return all objects below the URL, or those whose keys begin with `below` and a slash.

        Raises InferError: NOT_FOUND when the bucket is not there, BadKeyError for a name that is no path, and others
        that name the credential and the fix.
        """
        return self._attempt(f"listing {self.url.of(below)}", lambda: self._list(below))

    def _list(self, below: str, behind: str = "") -> list[StoredObject]:
        found: list[StoredObject] = []
        listing = _library().list(self._reading(), below or None, offset=behind or None, chunk_size=_LISTING_CHUNK)
        for chunk in listing:
            found += [stored_object(meta) for meta in chunk if meta["path"]]
            if len(found) > _MAX_OBJECTS:
                raise StoreError(
                    ErrorCode.INVALID_ARG,
                    f"{self.url.text} has more than {_MAX_OBJECTS} objects; name the repository's path in the bucket",
                )
        return found

    # --- content ----------------------------------------------------------------------------------------------------

    def fetch(self, item: StoredObject, target: Path) -> None:
        """Write an object's content to a file that is made for it.

        Raises InferError when it does not come (UNAVAILABLE after several attempts), ObjectChangedError when another
        has taken its place since it was listed.
        """
        descriptor = os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        try:
            os.truncate(descriptor, item.size_bytes)
            starts = range(0, item.size_bytes, self._part_bytes) or (0,)
            parts = [self._parts.submit(self._fetch_part, item, descriptor, start) for start in starts]
            # All have ended before the file is closed.
            failures = [error for part in parts if (error := part.exception()) is not None]
            if failures:
                raise failures[0]
            if len({part.result() for part in parts}) > 1:
                raise ObjectChangedError(self.url.of(item.key))
        finally:
            os.close(descriptor)

    def _fetch_part(self, item: StoredObject, descriptor: int, start: int) -> str:
        action = f"downloading {self.url.of(item.key)}"
        try:
            return self._attempt(action, lambda: self._read_part(item, descriptor, start))
        except InferError:
            if self._is_gone(item):
                raise ObjectChangedError(self.url.of(item.key)) from None
            raise

    def _read_part(self, item: StoredObject, descriptor: int, start: int) -> str:
        """Bring one part; return the identity of the object that it came from."""
        end = min(start + self._part_bytes, item.size_bytes)
        options: dict[str, Any] = {} if end == item.size_bytes and not start else {"range": (start, end)}
        answer = _library().get(self._reading(), item.key, options=options)
        identity = identity_of(answer.meta)
        if identity != item.identity and self._is_gone(item):
            raise ObjectChangedError(self.url.of(item.key))
        offset = start
        for chunk in answer.stream(min_chunk_size=_CHUNK_BYTES):
            view = memoryview(chunk)
            if offset + len(view) > end:
                raise ObjectChangedError(self.url.of(item.key))
            offset += os.pwrite(descriptor, view, offset)
        if offset != end:
            raise ConnectionError(f"{offset - start} bytes came of {end - start}")
        return identity

    def read_range(self, item: StoredObject, start: int, end: int) -> bytes:
        """Return some of an object's bytes, `start <= end <= item.size_bytes`.

        Raises InferError when they do not come, ObjectChangedError when another has taken its place.
        """
        if start == end:
            return b""

        def get() -> bytes:
            answer = _library().get(self._reading(), item.key, options={"range": (start, end)})
            if identity_of(answer.meta) != item.identity and self._is_gone(item):
                raise ObjectChangedError(self.url.of(item.key))
            content = bytes(answer.bytes())
            if len(content) != end - start:
                raise ConnectionError(f"{len(content)} bytes came of {end - start}")
            return content

        try:
            content = self._attempt(f"reading {self.url.of(item.key)}", get)
        except StoreError as error:
            is_missing = error.failure is ObjectFailure.MISSING
            if is_missing or (error.failure is not ObjectFailure.DENIED and self._is_gone(item)):
                raise ObjectChangedError(self.url.of(item.key)) from None
            raise
        self.last_read = item
        return content

    def read_ahead(self, item: StoredObject, start: int, end: int) -> "Future[bytes]":
        """Begin `read_range` in a thread of this store."""
        return self._parts.submit(self.read_range, item, start, end)

    def _is_gone(self, item: StoredObject) -> bool:
        """Return whether a listing lacks the object. Some stores name content differently in other responses."""
        try:
            return item not in [stored_object(meta) for chunk in self._near(item) for meta in chunk]
        except Exception:
            _log.debug("listing %s failed", self.url.of(item.key), exc_info=True)
            return False

    def _near(self, item: StoredObject) -> Sequence[Sequence[Mapping[str, Any]]]:
        above = item.key.rpartition("/")[0]
        return list(_library().list(self._reading(), above or None, chunk_size=_LISTING_CHUNK))

    # --- small objects ----------------------------------------------------------------------------------------------

    def read(self, key: str, max_bytes: int) -> tuple[bytes, Version] | None:
        """Return the content of an object, at most so much of it, and its version; None without it.

        Raises InferError.
        """

        def get() -> tuple[bytes, Version] | None:
            try:
                answer = _library().get(self._reading(), key)
            except FileNotFoundError:
                return None
            if int(answer.meta["size"]) > max_bytes:
                content = bytes(_library().get_range(self._reading(), key, start=0, end=max_bytes))
            else:
                content = bytes(answer.bytes())
            return content, _version(answer.meta)

        return self._attempt(f"reading {self.url.of(key)}", get)

    def write(self, key: str, content: bytes, replaced: Version | None) -> Version:
        """Write an object in place of a version of it, None for a new one; return its version, empty if unknown.

        Raises InferError, and ObjectChangedError if another version is there. A store that knows no conditions
        writes without one.
        """
        library, tries = _library(), 0

        def put(mode: object) -> Version:
            try:
                answer = library.put(self._writing(), key, content, mode=mode, use_multipart=False)
                return _version(answer)
            except (library.exceptions.AlreadyExistsError, library.exceptions.PreconditionError) as error:
                # An attempt before may have written it, and only its answer did not come.
                version = self._version_of(key, content) if tries > 1 else None
                if version is None:
                    raise ObjectChangedError(self.url.of(key)) from error
                return version
            except FileNotFoundError as error:
                if not replaced:
                    raise
                raise ObjectChangedError(self.url.of(key)) from error
            except (NotImplementedError, library.exceptions.NotSupportedError):
                if mode == "overwrite":
                    raise
                return put("overwrite")

        def attempt() -> Version:
            nonlocal tries
            tries += 1
            return put("create" if replaced is None else replaced or "overwrite")

        return self._attempt_write(f"writing {self.url.of(key)}", attempt)

    def _version_of(self, key: str, content: bytes) -> Version | None:
        """Return the version of an object with this content; None if it has another, or is not there."""
        try:
            answer = _library().get(self._writing(), key)
        except FileNotFoundError:
            return None
        is_equal = int(answer.meta["size"]) == len(content) and bytes(answer.bytes()) == content
        return _version(answer.meta) if is_equal else None

    def move(self, key: str, target: str) -> None:
        """Give an object another name. Raises InferError."""
        tries = 0

        def rename() -> None:
            nonlocal tries
            tries += 1
            try:
                _library().rename(self._writing(), key, target)
            except FileNotFoundError:
                if tries == 1:
                    raise
                _library().head(self._writing(), target)  # an attempt before has done it, if this finds it

        self._attempt_write(f"renaming {self.url.of(key)}", rename)

    # --- results of long work ---------------------------------------------------------------------------------------

    def find(self, key: str) -> StoredObject | None:
        """Return an object as it is now; None without it. Raises InferError."""

        def head() -> StoredObject | None:
            try:
                meta = _library().head(self._reading(), key)
            except FileNotFoundError:
                return None
            return replace(stored_object(meta), key=key)

        return self._attempt(f"reading {self.url.of(key)}", head)

    def upload(self, key: str, path: Path) -> None:
        """Write a file as an object, in place of one with its name: at once, also if it goes in many requests.

        Raises InferError.
        """
        size = path.stat().st_size
        part_bytes = max(self._part_bytes, -(-size // _MAX_UPLOAD_PARTS))

        def put() -> None:
            options: dict[str, Any] = {"use_multipart": size > part_bytes, "chunk_size": part_bytes}
            _library().put(self._uploading(), key, path, max_concurrency=_UPLOADS, **options)

        self._attempt_write(f"writing {self.url.of(key)}", put)

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; those that are not there are no error. Raises InferError."""
        for start in range(0, len(keys), _LISTING_CHUNK):
            some = list(keys[start : start + _LISTING_CHUNK])
            action = f"removing {self.url.of(some[0])}"
            self._attempt_write(action, functools.partial(self._delete, some))

    def _delete(self, keys: Sequence[str]) -> None:
        try:
            _library().delete(self._writing(), keys)
        except FileNotFoundError:
            # Some stores end with the first one that is not there.
            for key in keys:
                with contextlib.suppress(FileNotFoundError):
                    _library().delete(self._writing(), key)

    def delete_below(self, below: str, kept: Collection[str] = (), check: Callable[[], object] = tuple) -> None:
        """Remove all objects whose keys begin with `below` and a slash, all of the URL for "", except those `kept`.

        `check` is called before each thousand, and raises what ends the work. Raises InferError.
        """
        before: list[str] = []
        while keys := self._attempt(f"listing {self.url.of(below)}", lambda: self._page(below, kept)):
            if keys == before:
                raise StoreError(ErrorCode.INTERNAL, f"{self.url.of(keys[0])} was removed, and is still there")
            check()
            self.delete(keys)
            before = keys

    def _page(self, below: str, kept: Collection[str]) -> list[str]:
        """Return some keys; none if there are none."""
        for chunk in _library().list(self._reading(), below or None, chunk_size=_LISTING_CHUNK):
            if keys := [key for meta in chunk if (key := str(meta["path"])) and key not in kept]:
                return keys
        return []

    def brief(self) -> "ObjectStore":
        """Return the same objects, for small ones that a caller waits for."""
        return ObjectStore(
            self.url, self._credential, self._environ, first_pause_s=self._first_pause_s, limit_s=_SMALL_S
        )


def _version(meta: Mapping[str, Any]) -> Version:
    marks = {name: meta.get(name) for name in ("e_tag", "version")}
    return {name: str(value) for name, value in marks.items() if value}


def _library() -> Any:
    import obstore  # takes a while, and is needed only with a repository in a cloud

    return obstore
