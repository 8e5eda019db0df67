"""What requests to an object store are about: an object, one version of it, and what may be wrong with either."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from naiad.core.errors import ErrorCode, InferError
from naiad.repository.cloud.objects.object_failures import ObjectFailure


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object of a listing."""

    key: str
    """Its name below the repository's path."""
    size_bytes: int
    identity: str
    """The same as long as its content is: its ETag, or when it was written where there is none."""
    modified_ns: int = field(default=0, compare=False)
    """When it was written, by the clock of the store, which may be rounded to seconds."""


class StoreError(InferError):
    """A store has not done what was asked: it is away or busy, it denies access, or something is not there.

    It is about the store and the credential, not about the content of an object.
    """

    def __init__(self, code: ErrorCode, message: str, failure: ObjectFailure = ObjectFailure.OTHER) -> None:
        super().__init__(code, message)
        self.failure = failure

    def with_message(self, message: str) -> "StoreError":
        """Return the same failure with another message."""
        return StoreError(self.code, message, self.failure)


class BadKeyError(StoreError):
    """A listing has an object whose name is no path. The library returns nothing of the page that it is on."""

    def __init__(self, message: str, key: str) -> None:
        super().__init__(ErrorCode.INVALID_ARG, message, ObjectFailure.BAD_KEY)
        self.key = key
        """The name in the bucket, empty if it is not known."""


Version = Mapping[str, str]
"""What identifies one version of an object for a conditional write."""


class ObjectChangedError(Exception):
    """An object is not what the listing said any more. `str()` names it."""


def stored_object(meta: Mapping[str, Any]) -> StoredObject:
    """Return an object of an answer of the library."""
    modified = meta.get("last_modified")
    modified_ns = int(modified.timestamp() * 1e6) * 1000 if modified is not None else 0
    return StoredObject(str(meta["path"]), int(meta["size"]), identity_of(meta), modified_ns)


def identity_of(meta: Mapping[str, Any]) -> str:
    """Return what `StoredObject.identity` is of an answer of the library."""
    return str(meta.get("e_tag") or meta.get("last_modified") or "").strip('"')
