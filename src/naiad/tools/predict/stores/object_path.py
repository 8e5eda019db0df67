"""Objects with the parts of `pathlib.Path` that reading rows needs, so that sources read both alike."""

from dataclasses import dataclass
from io import DEFAULT_BUFFER_SIZE, BufferedReader
from pathlib import Path, PurePosixPath
from typing import IO, TypeAlias

from naiad.core.errors import ErrorCode, invalid_argument
from naiad.repository.cloud.objects.object_failures import ObjectFailure
from naiad.repository.cloud.objects.stored_object import BadKeyError, StoredObject, StoreError
from naiad.tools.predict.stores.denied_objects import is_only_denied
from naiad.tools.predict.stores.object_reader import ObjectReader
from naiad.tools.predict.stores.store_place import StorePlace

_BUFFER_BYTES = 16 * DEFAULT_BUFFER_SIZE


@dataclass(frozen=True, slots=True)
class ObjectStatus:
    """Size and time of an object, with the names of `os.stat_result`."""

    st_size: int
    st_mtime_ns: int


@dataclass(frozen=True, slots=True)
class ObjectFolder:
    """What is below a URL."""

    place: StorePlace

    def __str__(self) -> str:
        return self.place.url

    @property
    def name(self) -> str:
        """The last part of the URL."""
        return self.place.url.rpartition("/")[2]

    @property
    def parent(self) -> "ObjectFolder":
        """What the URL is below."""
        return ObjectFolder(StorePlace(self.place.url.rpartition("/")[0], self.place.patience_s, self.place.what))

    def read(self, name: str, max_bytes: int) -> bytes:
        """Return an object's content.

        Raises InferError(INVALID_ARG) if there is none of this name, it is larger, or it is denied while others can
        be read, and StoreError(UNAVAILABLE) when the store fails.
        """
        if name.startswith("/") or any(part in ("", ".", "..") for part in name.split("/")):
            raise invalid_argument(f"'{name}' is no name of an object below {self}")
        found = self._found(name, max_bytes + 1)
        if found is None:
            raise invalid_argument(f"{self}/{name}: no such object")
        if len(found) > max_bytes:
            raise invalid_argument(f"{self}/{name}: the object has more than {max_bytes} bytes")
        return found

    def _found(self, name: str, max_bytes: int) -> bytes | None:
        try:
            try:
                found = self.place.objects.read(name, max_bytes)
            except BadKeyError as error:
                raise invalid_argument(error.message) from None
            except StoreError as error:
                if error.failure is not ObjectFailure.DENIED or not is_only_denied(self.place.objects, name):
                    raise
                raise invalid_argument(error.message) from None
        except StoreError as error:
            # Of any code: it says nothing about the row that names the object.
            raise StoreError(ErrorCode.UNAVAILABLE, error.message, error.failure) from None
        return None if found is None else found[0]


@dataclass(frozen=True, slots=True)
class ObjectPath:
    """An object as a listing has found it. Picklable."""

    place: StorePlace
    item: StoredObject

    def __str__(self) -> str:
        return f"{self.place.url}/{self.item.key}"

    @property
    def name(self) -> str:
        """The last part of the key."""
        return self.item.key.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """Of the name, with its dot; "" without one."""
        return PurePosixPath(self.name).suffix

    @property
    def parent(self) -> ObjectFolder:
        """What it is in."""
        return ObjectFolder(self.place.below(self.item.key.rpartition("/")[0]))

    def stat(self) -> ObjectStatus:
        """Return what the listing has said."""
        return ObjectStatus(self.item.size_bytes, self.item.modified_ns)

    def open(self, mode: str = "rb", buffering: int = -1) -> IO[bytes]:
        """Return the content; nothing is asked before the first read. Raises InferError for a wrong credential."""
        reader = ObjectReader(self.place.objects, self.item)
        return reader if not buffering else BufferedReader(reader, _BUFFER_BYTES)  # type: ignore[return-value]

    def read_bytes(self) -> bytes:
        """Return all of the content. Raises as `ObjectReader`."""
        with self.open() as file:
            return file.read()


FilePath: TypeAlias = Path | ObjectPath
FolderPath: TypeAlias = Path | ObjectFolder
