"""Version directories: which subdirectories of a model are versions."""

import logging
from pathlib import Path

_log = logging.getLogger(__name__)

RESERVED = frozenset({"warmup", "initial_state", "configs"})
"""Subdirectories of a model that hold something else than a version."""


def parse_version(name: str) -> int | None:
    """Return the version number that a directory name stands for, or None when it names none.

    Triton: plain decimal digits without leading zeros; version 0 is "0".
    """
    if not (name.isascii() and name.isdigit()):
        return None
    if name[0] == "0" and name != "0":
        return None
    return int(name)


def is_known_directory(name: str) -> bool:
    """Tell whether the name is that of a version, or of a directory of a model with a meaning of its own."""
    return name in RESERVED or parse_version(name) is not None


def list_version_dirs(model_dir: Path) -> dict[int, Path]:
    """Return the version directories of a model by number, lowest first.

    Directories that look like a mistake (a leading zero, a name that is no number) are left out with a warning.
    """
    found: dict[int, Path] = {}
    for child in sorted(model_dir.iterdir()):
        if not child.is_dir() or child.name in RESERVED or child.name.startswith("."):
            continue
        version = parse_version(child.name)
        if version is not None:
            found[version] = child
        elif child.name.isdigit():
            _log.warning(
                "ignore version directory '%s' of model '%s': its name has leading zeros", child.name, model_dir.name
            )
        elif child.name.lstrip("-").isdigit():
            _log.warning("ignore version directory '%s' of model '%s': it is negative", child.name, model_dir.name)
        else:
            _log.debug("ignore directory '%s' of model '%s': its name is no version", child.name, model_dir.name)
    return dict(sorted(found.items()))
