"""The bytes of an object as a file that is open for reading.

A read begins with a small request, so that the head of a file costs little. While reads follow each other, requests
become larger, and the next one is on its way meanwhile. A seek begins again with a small one, or with what is read.
"""

import errno
import io
import os
from concurrent.futures import Future
from typing import Any

from naiad.core.errors import ErrorCode
from naiad.repository.cloud.objects.object_failures import ObjectFailure
from naiad.repository.cloud.objects.objects import ObjectStore
from naiad.repository.cloud.objects.stored_object import ObjectChangedError, StoredObject, StoreError
from naiad.tools.predict.stores.denied_objects import is_only_denied

_FIRST_BYTES = 64 << 10
_MAX_BYTES = 8 << 20
"""Of a request; at most two are in memory."""


class ObjectReader(io.RawIOBase):
    """One object. Reads raise InferError(UNAVAILABLE) when the store fails, and when the object has changed.

    The first one raises OSError if the object is gone, or denied while others can be read.
    """

    def __init__(self, objects: ObjectStore, item: StoredObject) -> None:
        self.name = objects.url.of(item.key)
        self._objects = objects
        self._item = item
        self._place = 0
        self._start = 0
        """Where `_window` begins in the object."""
        self._window = b""
        self._next_bytes = _FIRST_BYTES
        self._has_read = False
        self._ahead: Future[bytes] | None = None
        """What comes behind the window."""

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a byte. Raises OSError for one before the first."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._item.size_bytes}[whence]
        if start + offset < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), self.name)
        self._place = start + offset
        return self._place

    def readinto(self, buffer: Any) -> int:
        """Read some bytes; return how many, 0 at the end."""
        view = memoryview(buffer).cast("B")
        if self._place >= self._item.size_bytes or not len(view):
            return 0
        if not self._start <= self._place < self._start + len(self._window):
            self._move(len(view))
        offset = self._place - self._start
        count = min(len(view), len(self._window) - offset)
        view[:count] = self._window[offset : offset + count]
        self._place += count
        return count

    def close(self) -> None:
        """Forget what is on its way."""
        if self._ahead is not None:
            self._ahead.cancel()
            self._ahead = None
        self._window = b""
        super().close()

    def _move(self, wanted: int) -> None:
        """Have a window that begins at the place, or has it."""
        end = self._start + len(self._window)
        try:
            if self._window and self._place == end:
                self._start, self._window = end, self._following(end)
                self._prefetch()
                return
            if self._ahead is not None:
                self._ahead.cancel()
            self._ahead, self._next_bytes = None, _FIRST_BYTES
            size = max(_FIRST_BYTES, min(wanted, _MAX_BYTES))
            self._start = self._place
            self._window = self._objects.read_range(self._item, self._start, self._end(self._start, size))
        except (ObjectChangedError, StoreError) as error:
            raise self._failure(error) from None
        self._has_read = True

    def _failure(self, error: ObjectChangedError | StoreError) -> OSError | StoreError:
        """Return what a read raises: OSError, as of a file, if only this object cannot be read, from the first byte.

        All else says nothing about rows, and ends the job, also what is about a credential.
        """
        key = self._item.key
        try:
            if isinstance(error, ObjectChangedError):
                if not self._has_read and self._objects.find(key) is None:
                    return FileNotFoundError(errno.ENOENT, "the object was removed after it was found", self.name)
                text = f"{self.name}: the object has changed since the job has found it"
                return StoreError(ErrorCode.UNAVAILABLE, text)
            is_denied = error.failure is ObjectFailure.DENIED
            if is_denied and not self._has_read and is_only_denied(self._objects, key):
                return PermissionError(errno.EACCES, error.message, self.name)
        except StoreError as other:
            error = other
        return StoreError(ErrorCode.UNAVAILABLE, error.message, error.failure)

    def _following(self, start: int) -> bytes:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            return ahead.result()
        return self._objects.read_range(self._item, start, self._end(start, self._next_bytes))

    def _prefetch(self) -> None:
        start = self._start + len(self._window)
        self._next_bytes = min(2 * self._next_bytes, _MAX_BYTES)
        if start < self._item.size_bytes:
            self._ahead = self._objects.read_ahead(self._item, start, self._end(start, self._next_bytes))

    def _end(self, start: int, size: int) -> int:
        return min(start + size, self._item.size_bytes)
