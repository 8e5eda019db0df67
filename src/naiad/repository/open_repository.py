"""Opens a model repository: a path or a URL."""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from naiad.core.errors import invalid_argument
from naiad.options.bare_models import BareModelOptions
from naiad.repository.cloud.url import CloudUrl, is_cloud_url, parse_cloud_url
from naiad.repository.stores.bare_files import (
    BARE_MODELS,
    BareFilesStore,
    bare_backend,
    bare_file,
    files_of_folder,
    model_files,
    other_formats,
    usual_file_in,
)
from naiad.repository.stores.store import CONFIG_FILE, LocalStore, SingleModelStore, Store, entry_of_directory

if TYPE_CHECKING:
    from naiad.repository.cloud.objects.objects import ObjectStore

_log = logging.getLogger(__name__)

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
    text: str,
    *,
    config_name: str = "",
    bare: BareModelOptions = BARE_MODELS,
    cache: CacheSettings | None = None,
) -> Store:
    """Return the store for a path or a URL; a cloud store is not read yet.

    `bare` has what is said of bare model files. Raises InferError for a missing
    path, an invalid URL, and a missing library or credential file.
    """
    if not is_cloud_url(text):
        return open_path(Path(text), config_name=config_name, bare=bare)
    # Only a server with a cloud repository imports its libraries.
    from naiad.repository.cloud.cache import ModelCache
    from naiad.repository.cloud.cloud_store import CloudStore

    url = parse_cloud_url(text)
    settings = cache or CacheSettings()
    copies = ModelCache(cache_directory(url, settings, os.environ), settings.max_bytes)
    return CloudStore(open_objects(url), copies, config_name=config_name)


def open_path(
    path: Path, *, config_name: str = "", bare: BareModelOptions = BARE_MODELS
) -> LocalStore | SingleModelStore | BareFilesStore:
    """Return the store for a path: a model file, a folder of them, one model's directory, or a repository.

    Raises InferError(INVALID_ARG) for a path that does not exist and for a file that is no model.
    """
    path = path.absolute()
    if path.is_file():
        return SingleModelStore(bare_file(path, options=bare), path)
    if not path.is_dir():
        raise invalid_argument(f"{path}: {_absence(path)}; give a model file, a model or a repository")
    if (path / CONFIG_FILE).is_file() or _holds_versions(path):
        return SingleModelStore(entry_of_directory(path.name, path, config_name=config_name), path)
    if bare_backend(path):
        return SingleModelStore(bare_file(path, options=bare), path)
    if files_of_folder(path):
        for note in other_formats(path):
            _log.warning("%s: not served: %s", path, note)
        return BareFilesStore(path, options=bare)
    if file := usual_file_in(path):
        return SingleModelStore(bare_file(file, name=path.name, options=bare), path)
    stray = [file.name for file in model_files(path)]
    if stray:
        _log.warning("%s: not served, because %s has directories of models: %s", path, path.name, ", ".join(stray))
    return LocalStore(path, config_name=config_name)


def _absence(path: Path) -> str:
    """Return what a path is that is neither a file nor a directory."""
    if os.path.exists(path):  # pathlib raises an error for a link to itself
        return "neither a file nor a directory"
    return "a link that leads to no file or directory" if path.is_symlink() else "no such file or directory"


def _holds_versions(directory: Path) -> bool:
    """Distinguish a model's directory from a repository: it has version directories with a model file inside."""
    names = [name for name in os.listdir(directory) if name.isdigit()]
    versions = (directory / name for name in names if os.path.isdir(directory / name))
    return any(child.is_file() or child.name.startswith("model.") for v in versions for child in v.iterdir())


def open_objects(url: CloudUrl) -> "ObjectStore":
    """Return the client for the objects below a URL. Raises InferError as `open_repository`."""
    from naiad.repository.cloud.objects.credentials import find_credential
    from naiad.repository.cloud.objects.objects import ObjectStore

    return ObjectStore(url, find_credential(url, os.environ), os.environ)


def rollout_cache(environ: Mapping[str, str]) -> Path:
    """Return the directory for the records of rollouts whose repositories cannot be written."""
    home = environ.get(CACHE_VARIABLE, "")
    if home:
        return Path(home).absolute() / "rollouts"
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "naiad" / "rollouts"


def cache_directory(url: CloudUrl, settings: CacheSettings, environ: Mapping[str, str]) -> Path:
    """Return the directory of copies: from the flag, Triton's variable, `$NAIAD_CACHE`, or the user's cache."""
    chosen = settings.directory or environ.get(_MOUNTS[url.scheme], "")
    if chosen:
        return Path(chosen).absolute()
    home = environ.get(CACHE_VARIABLE, "")
    if home:
        return Path(home).absolute() / "models"
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "naiad" / "models"
