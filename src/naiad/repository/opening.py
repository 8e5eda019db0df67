"""Opens a model repository: a path or a URL."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from naiad.repository.cloud.url import CloudUrl, is_cloud_url, parse_cloud_url
from naiad.repository.store import Store, open_path

if TYPE_CHECKING:
    from naiad.repository.cloud.objects import ObjectStore

CACHE_VARIABLE = "NAIAD_CACHE"
_MOUNTS = {
    "s3": "TRITON_AWS_MOUNT_DIRECTORY",
    "gs": "TRITON_GCS_MOUNT_DIRECTORY",
    "as": "TRITON_AZURE_MOUNT_DIRECTORY",
}
"""Triton: directory of the copies of models, by scheme."""


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """The cache of copies from object stores."""

    directory: str = ""
    """Empty: chosen by the environment."""
    max_bytes: int = 64 << 30


def open_repository(
    text: str, *, config_name: str = "", cache: CacheSettings | None = None, environ: Mapping[str, str] = os.environ
) -> Store:
    """Return the store for a path or a URL; a cloud store is not read yet.

    Raises InferError for a missing path, an invalid URL, and a missing library or credential file.
    """
    if not is_cloud_url(text):
        return open_path(Path(text), config_name=config_name)
    # Only a server with a cloud repository imports its libraries.
    from naiad.repository.cloud.cache import ModelCache
    from naiad.repository.cloud.store import CloudStore

    url = parse_cloud_url(text)
    settings = cache or CacheSettings()
    copies = ModelCache(cache_directory(url, settings, environ), settings.max_bytes)
    return CloudStore(open_objects(url, environ), copies, config_name=config_name)


def open_objects(url: CloudUrl, environ: Mapping[str, str] = os.environ) -> "ObjectStore":
    """Return the client for the objects below a URL. Raises InferError as `open_repository`."""
    from naiad.repository.cloud.credentials import find_credential
    from naiad.repository.cloud.objects import ObjectStore

    return ObjectStore(url, find_credential(url, environ), environ)


def cache_directory(url: CloudUrl, settings: CacheSettings, environ: Mapping[str, str]) -> Path:
    """Return the directory of copies: from the flag, Triton's variable, `$NAIAD_CACHE`, or the user's cache."""
    chosen = settings.directory or environ.get(_MOUNTS[url.scheme], "")
    if chosen:
        return Path(chosen).absolute()
    home = environ.get(CACHE_VARIABLE, "")
    if home:
        return Path(home).absolute() / "models"
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "naiad" / "models"
