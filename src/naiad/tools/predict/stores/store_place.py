"""Places in object stores: the URLs of a job, and the client for the objects below one."""

import functools
import os
from dataclasses import dataclass

from naiad.core.errors import InferError, invalid_argument
from naiad.repository.cloud.objects.credentials import find_credential
from naiad.repository.cloud.objects.objects import ObjectStore
from naiad.repository.cloud.objects.provider import JOB_FIXES
from naiad.repository.cloud.objects.stored_object import StoreError
from naiad.repository.cloud.url import is_cloud_url, parse_cloud_url

is_store_url = is_cloud_url


@dataclass(frozen=True, slots=True)
class StorePlace:
    """A URL below which objects are. Picklable: another process opens it with its own credentials."""

    url: str
    """Without a slash at its end: `s3://bucket/path`."""
    patience_s: float
    """How long requests are repeated while the store is busy."""
    what: str = "--input"
    """The flag that names it, for messages."""

    @property
    def objects(self) -> ObjectStore:
        """The client. Raises InferError for a URL that names no place, and for a credential that cannot be used."""
        return _open(self.url, self.patience_s, self.what)

    def below(self, path: str) -> "StorePlace":
        """Return a place below this one."""
        return StorePlace(f"{self.url}/{path}" if path else self.url, self.patience_s, self.what)


def split_url(text: str, what: str) -> tuple[str, str]:
    """Return the URL above an object, and its name. Raises InferError for a URL without one."""
    url = parse_cloud_url(text, what)
    if not url.prefix or text.endswith("/"):
        raise invalid_argument(f"{what} '{text}' names no object; expected a name, as in {url.text}/rows.jsonl")
    above, _, name = url.text.rpartition("/")
    return above, name


@functools.lru_cache(maxsize=64)
def _open(url: str, patience_s: float, what: str) -> ObjectStore:
    try:
        parsed = parse_cloud_url(url, what)
        credential = find_credential(parsed, os.environ)
        return ObjectStore(parsed, credential, os.environ, patience_s=patience_s, write_fixes=JOB_FIXES)
    except InferError as error:
        text = error.message
        raise StoreError(error.code, text if text.startswith(what) else f"{what} {url}: {text}") from None
