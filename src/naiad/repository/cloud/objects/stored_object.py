"""What requests to an object store are about: an object, one version of it, and what may be wrong with either."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from naiad.core.errors import ErrorCode, InferError


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


class BadKeyError(InferError):
    """A listing has an object whose name is no path. The library returns nothing of the page that it is on."""

    def __init__(self, message: str, key: str) -> None:
        super().__init__(ErrorCode.INVALID_ARG, message)
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
