"""Stores of models: a store lists models and provides local paths of their files to a loader.

The first functions parse version directories.
"""

import abc
import errno
import functools
import logging
import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import excerpt, internal, invalid_argument, not_found
from naiad.core.model import model_key
from naiad.repository.stores.notes import DirectoryNotes, Notes

_log = logging.getLogger(__name__)

RESERVED = frozenset({"warmup", "initial_state", "configs"})
"""Subdirectories of a model that are not versions."""


def parse_version(name: str) -> int | None:
    """Return the version number of a directory name, or None for other names.

    Triton: plain decimal digits without leading zeros; version 0 is "0".
    """
    if not (name.isascii() and name.isdigit()):
        return None
    if name[0] == "0" and name != "0":
        return None
    return int(name)


def is_known_directory(name: str) -> bool:
    """Return whether the name is that of a version, or of a model's directory with another meaning."""
    return name in RESERVED or parse_version(name) is not None


def is_visible(name: str) -> bool:
    """Return whether a subdirectory of a repository may be a model, by its name.

    Version control, notebooks and Kubernetes volumes (`..data`) add hidden ones, file systems add `lost+found`.
    """
    return not name.startswith(".") and name != "lost+found"


def _is_directory(child: "os.DirEntry[str]") -> bool:
    """Return whether an entry is a directory, also when it is a link that cannot be followed."""
    try:
        return child.is_dir()
    except OSError:
        return True  # opening it reports the reason, and the other entries are served


def list_version_dirs(model_dir: Path) -> dict[int, Path]:
    """Return the version directories of a model by number, lowest first."""
    names = {parse_version(name): name for name in _list_directories(model_dir)}
    return {version: model_dir / names[version] for version in sorted(v for v in names if v is not None)}


def warn_of_ignored(model_dir: Path) -> None:
    """Log the directories of a model that are no versions, probably by mistake: a leading zero, a sign."""
    for name in _list_directories(model_dir):
        if parse_version(name) is not None:
            continue
        if name.isdigit():
            _log.warning(
                "ignore version directory '%s' of model '%s': its name has leading zeros", name, model_dir.name
            )
        elif name.lstrip("-").isdigit():
            _log.warning("ignore version directory '%s' of model '%s': it is negative", name, model_dir.name)
        else:
            _log.debug("ignore directory '%s' of model '%s': its name is no version", name, model_dir.name)


def _list_directories(model_dir: Path) -> list[str]:
    """Return the names of a model's directories that may be versions, sorted."""
    with os.scandir(model_dir) as children:
        names = sorted(child.name for child in filter(_is_directory, children))
    return [name for name in names if name not in RESERVED and not name.startswith(".")]


CONFIG_FILE = "config.pbtxt"
CONFIG_SUFFIXES = (".pbtxt", ".pbtext", ".prototxt", ".textproto", ".pbtx")
"""Suffixes of files that are meant as configurations."""
MAX_CONFIG_BYTES = 4 << 20
"""Four bytes, the maximum of a UTF-8 character, for each character that the parser reads."""
INCOMPLETE_MARK = ".uploading"
"""A file of this name in a model's directory marks a model that is being written."""
_MAX_NAME = 255
"""Limit of file systems."""
_ESCAPED_BYTE = re.compile(r"\\x[89a-f][0-9a-f]")
"""In names of `LocalStore.list_models`: a byte of a name that is not UTF-8."""


def read_file_text(path: Path) -> str:
    """Return the text of a file of a model. Raises OSError, and UnicodeDecodeError if it is not UTF-8.

    OSError also for a pipe or a device: reading it could block.
    """
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return path.read_text(encoding="utf-8")


def _keep() -> None:
    """Do nothing: the operator owns the files."""


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model in a store at one moment: local paths of its files and of its versions."""

    name: str
    model_dir: Path
    """Contains labels, environments and, normally, the version directories."""
    version_dirs: Mapping[int, Path]
    """Every existing version, regardless of the version policy."""
    config_path: Path | None = None
    """The `config.pbtxt`; None without one, if the configuration must be derived."""
    preset: ModelConfig = field(default_factory=ModelConfig)
    """Configuration known without a file, for example the file name of a bare model file."""
    config_name: str = ""
    """--model-config-name: the preferred file in `configs`, if it exists."""
    fingerprint: bytes = b""
    """Equal while the contents are equal, if the store knows it; empty: check the files."""
    default_max_batch_size: int | None = None
    """Of a model that can batch and does not name its max_batch_size; None: the default of its backend."""
    release: Callable[[], None] = field(default=_keep, compare=False)
    """Called once the files are no longer used; the store may then remove its copies."""
    namespace: str = ""
    """With namespaces: the repository."""
    is_renamed: bool = False
    """Whether `name` replaces the name in the configuration."""
    notes: Notes | None = field(default=None, compare=False)
    """Where the server keeps what it notes about the model; None for files that no repository has."""

    @property
    def key(self) -> str:
        """The key of the model in the server."""
        return model_key(self.namespace, self.name)


@dataclass(frozen=True, slots=True)
class ModelListing:
    """The state of a model in a store at one moment, before its files are copied."""

    open: Callable[[], ModelEntry]
    """Copies it to local paths. Raises InferError."""
    fingerprint: bytes = b""
    """Equal while the contents are equal, if the store knows it without the files."""
    is_incomplete: bool = False
    """Whether its marker file declares that it is being written."""


class Store(abc.ABC):
    """A model repository: a local directory or an object store."""

    location: str
    """The path or URL of the operator."""
    away: str = ""
    """Why it could not be reached the last time, if that may pass."""
    was_away: bool = False
    """Whether it could not be reached at the start, so that something else than its present state was loaded."""
    is_missing: bool = False
    """Whether nothing is known of its models, because it could not be reached since the start."""

    @abc.abstractmethod
    def look(self) -> Mapping[str, ModelListing]:
        """Return how every model looks now, by name. Raises InferError when the repository cannot be read."""

    def list_models(self) -> Sequence[str]:
        """Return the names of all models, sorted. Raises InferError when the repository cannot be read."""
        return sorted(self.look())

    def sight(self, name: str) -> ModelListing | None:
        """Return how one model looks now; None when it is not there. Raises InferError."""
        return self.look().get(name)

    @abc.abstractmethod
    def open_model(self, name: str) -> ModelEntry:
        """Bring a model to local paths and describe it. Raises InferError(NOT_FOUND) when it is not there."""


class LocalStore(Store):
    """A directory whose subdirectories are models."""

    def __init__(self, root: Path, *, config_name: str = "") -> None:
        self.location = str(root)
        self._root = root
        self._config_name = config_name
        self._notes = DirectoryNotes(root)

    def list_models(self) -> Sequence[str]:
        """Return the names of the subdirectories, sorted.

        Those that are no models are left out, see `is_visible`. One that cannot be read, and one whose name is not
        UTF-8 and is therefore escaped, are models that fail to load with the reason.
        """
        try:
            with os.scandir(self._root) as children:
                names = (child.name for child in children if is_visible(child.name) and _is_directory(child))
                return sorted(os.fsencode(name).decode(errors="backslashreplace") for name in names)
        except FileNotFoundError:
            raise internal(
                f"failed to stat file {self._root}: the model repository does not exist; restore the directory"
            ) from None
        except NotADirectoryError:
            raise internal(f"model repository {self._root} is not a directory; restore the directory") from None
        except OSError as error:
            raise internal(f"model repository {self._root} cannot be read: {error.strerror}") from error

    def look(self) -> Mapping[str, ModelListing]:
        """Return the subdirectories; their files are looked at when they are opened."""
        return {name: self._listing(name) for name in self.list_models()}

    def sight(self, name: str) -> ModelListing | None:
        """Return a subdirectory, None when it is not there. Raises InferError as `list_models`."""
        return self._listing(name) if name in self.list_models() else None

    def _listing(self, name: str) -> ModelListing:
        is_incomplete = os.path.exists(f"{self.location}/{name}/{INCOMPLETE_MARK}")  # Path.exists raises for links
        return ModelListing(functools.partial(self.open_model, name), is_incomplete=is_incomplete)

    def open_model(self, name: str) -> ModelEntry:
        """Describe the model in subdirectory `name`.

        Raises InferError for a bad name, and for a model that is not there or cannot be read.
        """
        check_model_name(name)
        model_dir = self._root / name
        try:
            if is_visible(name) and stat.S_ISDIR(model_dir.stat().st_mode):
                entry = entry_of_directory(name, model_dir, config_name=self._config_name)
                return replace(entry, notes=self._notes)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise invalid_argument(f"model '{name}': {model_dir} cannot be read: {error.strerror}") from error
        raise not_found(f"model '{name}' is not found in model repository {self._root}")


class RenamingStore(LocalStore):
    """A repository where the model of one directory has another name. Triton: `model_mapping` of a repository."""

    def __init__(self, root: Path, directory: str, name: str) -> None:
        super().__init__(root)
        self._directory = directory
        self._name = name

    def list_models(self) -> Sequence[str]:
        """Return the names of the models."""
        return [self._name if each == self._directory else each for each in super().list_models()]

    def open_model(self, name: str) -> ModelEntry:
        """Describe a model. Raises InferError as `LocalStore`."""
        if name != self._name:
            return super().open_model(name)
        return replace(super().open_model(self._directory), name=name, is_renamed=True)


class SingleModelStore(Store):
    """A virtual repository with one model: a bare model file, or one model directory."""

    def __init__(self, entry: ModelEntry, location: Path) -> None:
        """`location` is the path that was given."""
        self.location = str(location)
        if location.is_dir() and location == entry.model_dir:
            entry = replace(entry, notes=DirectoryNotes(location.parent))
        self._entry = entry

    def look(self) -> Mapping[str, ModelListing]:
        """Return the one model."""
        is_incomplete = (self._entry.model_dir / INCOMPLETE_MARK).exists()
        return {self._entry.name: ModelListing(lambda: self._entry, is_incomplete=is_incomplete)}

    def open_model(self, name: str) -> ModelEntry:
        """Return the model. Raises InferError(NOT_FOUND) for any other name."""
        if name != self._entry.name:
            raise not_found(f"model '{name}' is not found in {self.location}")
        return self._entry


def check_model_name(name: str) -> None:
    """Refuse names that cannot be a directory of a repository. Raises InferError(INVALID_ARG)."""
    if not name.strip():
        raise invalid_argument("Model name cannot be empty. Please enter a valid name to deploy.")
    if _ESCAPED_BYTE.search(name):
        raise invalid_argument(f"model name {shown(name)} has escaped bytes that are not UTF-8; rename the directory")
    if name in (".", "..") or "/" in name or "\\" in name or "\0" in name:
        raise invalid_argument(
            f"invalid model name {shown(name)}, model name must not contain path traversal characters; it must not "
            "be a path: '/', '\\' and '..' are refused"
        )
    if not name.isprintable():
        raise invalid_argument(
            f"model name {shown(name)} has characters that cannot be printed; rename its directory"
        )
    if len(name) > _MAX_NAME:
        raise invalid_argument(f"model name {shown(name)} has {len(name)} characters; the most is {_MAX_NAME}")


def shown(name: str) -> str:
    """Return a name in quotes, as it can be shown in one line of a log."""
    return f"'{excerpt(name)}'"


def entry_of_directory(name: str, model_dir: Path, *, config_name: str = "") -> ModelEntry:
    """Describe the model in `model_dir`; with `config_name`, `configs/<config_name>.pbtxt` comes first."""
    candidates = [model_dir / CONFIG_FILE]
    if config_name:
        candidates.insert(0, model_dir / "configs" / f"{config_name}.pbtxt")
    # Also what cannot be read, a link that leads nowhere: to go on without it would serve something else.
    config_path = next((path for path in candidates if os.path.lexists(path)), None)
    return ModelEntry(name, model_dir, list_version_dirs(model_dir), config_path, config_name=config_name)
