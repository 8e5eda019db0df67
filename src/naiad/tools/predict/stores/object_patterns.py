"""The objects that an input names: one object, a pattern, or what lies directly below a URL."""

import fnmatch
import re
from collections.abc import Sequence

from naiad.core.errors import ErrorCode, InferError, not_found
from naiad.repository.cloud.objects.stored_object import StoredObject
from naiad.repository.cloud.url import parse_cloud_url
from naiad.tools.predict.stores.object_path import ObjectFolder, ObjectPath
from naiad.tools.predict.stores.store_place import StorePlace, split_url

_MAGIC = re.compile(r"[*?\[]")


class NoFileYetError(InferError):
    """A pattern or a folder without a file, which may come later."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.NOT_FOUND, message)


def find_objects(text: str, patience_s: float) -> tuple[ObjectFolder | None, list[ObjectPath]]:
    """Return the objects of an input, by name, and the folder if the text names one: its objects are rows.

    A pattern that fits nothing returns nothing. Raises InferError for what is not there or cannot be read, and
    NoFileYetError for a URL that can only name a folder, without an object below it.
    """
    url = parse_cloud_url(text, "--input")
    # Behind the bucket: the address of an endpoint may have brackets too.
    magic = _MAGIC.search(text, len(url.text) - len(url.prefix))
    if magic is None:
        return _named(text, patience_s)
    base = text[: magic.start()].rpartition("/")[0]
    pattern = text[len(base) + 1 :]
    place = StorePlace(base, patience_s)
    is_flat = "/" not in pattern and "**" not in pattern
    items = _asked(place, is_flat=is_flat)
    parts = pattern.split("/")
    found = [ObjectPath(place, each) for each in items if fits(each.key.split("/"), parts)]
    if not found:  # perhaps a name with a bracket
        found = [ObjectPath(place, each) for each in items if each.key == pattern]
    return None, found


def _named(text: str, patience_s: float) -> tuple[ObjectFolder | None, list[ObjectPath]]:
    url = parse_cloud_url(text, "--input")
    if url.prefix and not text.endswith("/"):
        base, name = split_url(text, "--input")
        place = StorePlace(base, patience_s)
        try:
            item = place.objects.find(name)
        except InferError as error:
            raise error.with_message(f"--input {text}: {error.message}") from None
        if item is not None:
            return None, [ObjectPath(place, item)]
    folder = StorePlace(url.text, patience_s)
    items = [each for each in _asked(folder, is_flat=True) if not each.key.startswith(".")]
    if not items and (not url.prefix or text.endswith("/")):
        raise NoFileYetError(f"--input {text}: there is no object below it")
    if not items:
        raise not_found(f"--input {text}: there is no such object, and there are none below it")
    return ObjectFolder(folder), [ObjectPath(folder, each) for each in items]


def _asked(place: StorePlace, *, is_flat: bool) -> list[StoredObject]:
    try:
        items = place.objects.top_objects() if is_flat else place.objects.list_objects()
    except InferError as error:
        raise error.with_message(f"--input {place.url}: {error.message}") from None
    # Consoles make an object without content for a folder.
    return sorted((each for each in items if not each.key.endswith("/")), key=lambda each: each.key)


def fits(key: Sequence[str], pattern: Sequence[str]) -> bool:
    """Return whether a key fits a pattern, both as their parts: as in `glob`, stars fit no hidden name."""
    if not pattern:
        return not key
    head, rest = pattern[0], pattern[1:]
    if head == "**":
        if not rest:
            return bool(key) and not any(each.startswith(".") for each in key)
        return fits(key, rest) or (bool(key) and not key[0].startswith(".") and fits(key[1:], pattern))
    if not key or (key[0].startswith(".") and not head.startswith(".")):
        return False
    return fnmatch.fnmatchcase(key[0], head) and fits(key[1:], rest)
