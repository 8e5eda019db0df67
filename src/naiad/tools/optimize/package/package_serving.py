"""Packages as repositories of one model, for `naiad serve`."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from naiad.files.digest import file_sha256
from naiad.repository.open_repository import CACHE_VARIABLE
from naiad.tools.optimize.package.manifest import Manifest
from naiad.tools.optimize.package.package_files import opened

CACHE_BYTES = 32 << 30
"""Of unpacked packages; those that were used longest ago are removed first."""


def unpack(path: Path, environ: Mapping[str, str] = os.environ) -> Path:
    """Check a package, copy it into the cache by its digest, and return the copy, a repository of one model.

    Raises NoPackageError, DamagedPackageError, OSError.
    """
    cache = _cache(environ)
    cache.mkdir(parents=True, exist_ok=True)
    with opened(path) as contents:
        manifest = contents.manifest
        home = cache / manifest.digest
        if _is_intact(home / manifest.model, manifest):
            contents.check()
            os.utime(home)
            return home
        with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=cache) as temporary:
            made = Path(temporary, "made")
            contents.copy(made / manifest.model)
            if home.exists():
                home.rename(Path(temporary, "old"))
            try:
                made.rename(home)
            except OSError:
                if not home.is_dir():  # Otherwise another server has unpacked the same package.
                    raise
    with contextlib.suppress(FileNotFoundError):  # Another server removes the same copies.
        _evict(cache, home)
    return home


def _cache(environ: Mapping[str, str]) -> Path:
    own = environ.get(CACHE_VARIABLE, "")
    if own:
        return Path(own).absolute() / "packages"
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "naiad" / "packages"


def _is_intact(folder: Path, manifest: Manifest) -> bool:
    """Return whether a copy has all files; further ones are what a server has compiled."""
    for name, entry in manifest.files.items():
        try:
            if file_sha256(folder / name) != entry.sha256:
                return False
        except OSError:
            return False
    return True


def _evict(cache: Path, kept: Path) -> None:
    others = sorted((each for each in cache.iterdir() if each != kept), key=lambda each: each.stat().st_mtime)
    sizes = {home: sum(file.stat().st_size for file in home.rglob("*")) for home in [kept, *others]}
    total = sum(sizes.values())
    for home in others:
        if total <= CACHE_BYTES:
            return
        shutil.rmtree(home, ignore_errors=True)
        total -= sizes[home]
