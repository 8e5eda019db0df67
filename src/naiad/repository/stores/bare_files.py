"""Model files and model directories of frameworks, without a directory of Triton's layout.

Each is version 1 of a model with its name.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from naiad.config.backends import BUILT_IN, FILENAMES, FORMATS, SERVABLE_FILENAMES
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import invalid_argument, not_found
from naiad.options.bare_models import BareModelOptions
from naiad.repository.stores.model_file import GENERAL_SUFFIXES, kind_of, way_out
from naiad.repository.stores.store import CONFIG_FILE, ModelEntry, ModelListing, Store, is_visible, parse_version

_SUFFIXES = sorted({Path(known.filename).suffix for known in FORMATS if known.backend in BUILT_IN} - {""})
BARE_MODELS = BareModelOptions()
"""What holds for bare model files without flags."""
_PICKLE_SUFFIXES = frozenset({".joblib", ".pkl"})
"""Suffixes of data too: in a folder, such files are models only under a backend's usual name."""
_PYTHON_CLASS = b"TritonPythonModel"
_MAX_SOURCE_BYTES = 4 << 20
_MOST_NOTES = 3
"""Maximum of files that an error about a repository without models explains."""


def bare_backend(path: Path) -> str:
    """Return the backend that serves a file or directory, by its name and content; empty if none does."""
    kind = kind_of(path)
    return kind.backend if kind is not None and kind.is_served else ""


def bare_file(path: Path, *, name: str = "", options: BareModelOptions = BARE_MODELS) -> ModelEntry:
    """Return the model of one file or directory. Raises InferError(INVALID_ARG) if no backend serves it."""
    parent = kind_of(path.parent)
    if parent is not None and parent.is_served and path.name == parent.marker and not parent.beside:
        path = path.parent  # saved_model.pb, MLmodel: the model is the directory
    backend = bare_backend(path)
    if not backend:
        known = f"neither its name nor its content is that of a known format; known suffixes: {', '.join(_SUFFIXES)}"
        raise invalid_argument(f"{path}: this file cannot be served: {way_out(path) or known}")
    check_file_name(path)
    is_version = path.is_dir() and backend != "tensorflow"
    preset = ModelConfig(name=name or model_name(path), backend=backend)
    options.configure(preset)
    size = options.max_batch_size
    if is_version:
        return ModelEntry(preset.name, path, {1: path}, None, preset, default_max_batch_size=size)
    preset.default_model_filename = path.name
    return ModelEntry(preset.name, path.parent, {1: path.parent}, None, preset, default_max_batch_size=size)


def check_file_name(path: Path) -> None:
    """Raise InferError(INVALID_ARG) for a name with bytes that are not UTF-8, which no configuration can have."""
    try:
        path.name.encode()
    except UnicodeEncodeError:
        raise invalid_argument(f"the name of {str(path)!a} has bytes that are not UTF-8; rename it") from None


def model_name(path: Path) -> str:
    """Return the name of a file without its suffix; a point in the name of a directory is part of it."""
    return path.name if path.is_dir() and path.suffix != ".savedmodel" else path.stem


def usual_file_in(directory: Path) -> Path | None:
    """Return the model file in a directory by its usual name, such as model.onnx; None without one."""
    return next((path for name in SERVABLE_FILENAMES if (path := directory / name).exists()), None)


def files_of_folder(directory: Path) -> Mapping[str, Path]:
    """Return the model files of a folder of bare ones, by model; empty if the directory is something else.

    A model's directory and a repository with model directories are something else: other files in them are not
    models. Raises InferError as `bare_files`.
    """
    if (directory / CONFIG_FILE).is_file() or any(map(_is_model_dir, _directories(directory))):
        return {}
    files = list(model_files(directory))
    named = {path.name for path in files if path.name in SERVABLE_FILENAMES}
    if "model.py" in named or (named and len(files) == len(named)):
        return {}
    return bare_files(directory)


def bare_files(directory: Path) -> Mapping[str, Path]:
    """Return the model files in a directory by model name. Raises InferError(INVALID_ARG) for two of one name."""
    found: dict[str, Path] = {}
    for path in model_files(directory):
        other = found.setdefault(path.stem, path)
        if other is not path:
            raise invalid_argument(
                f"{directory}: {other.name} and {path.name} are both model '{path.stem}'; rename one of them"
            )
    return found


def model_files(directory: Path) -> Iterator[Path]:
    """Yield the files in a directory that can be served, sorted."""
    # Paths are made of files alone: a repository has a thousand directories, and paths are slow to sort.
    with os.scandir(directory) as children:
        names = sorted(child.name for child in children if not child.name.startswith(".") and _is_file(child))
    for path in (directory / name for name in names):
        is_model = bool(_backend_in_folder(path))
        if path.suffix in _PICKLE_SUFFIXES:
            is_model = is_model and path.name in SERVABLE_FILENAMES
        elif path.suffix == ".py":
            # Other Python files are modules of a model, or scripts.
            is_model = is_model and _has_model_class(path)
        if is_model:
            yield path


def _is_file(child: "os.DirEntry[str]") -> bool:
    try:
        return child.is_file()
    except OSError:
        return False  # a link to itself


def _backend_in_folder(path: Path) -> str:
    """Return the backend of a file; a file of an unknown suffix is no model here, with any content."""
    is_known = path.suffix in _SUFFIXES or path.suffix in GENERAL_SUFFIXES - {""}
    return bare_backend(path) if is_known else ""


def _has_model_class(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return _PYTHON_CLASS in file.read(_MAX_SOURCE_BYTES)
    except OSError:
        return False


def _directories(directory: Path) -> Iterator[Path]:
    return (child for child in directory.iterdir() if is_visible(child.name) and os.path.isdir(child))


def _is_model_dir(directory: Path) -> bool:
    """Return whether a directory is a version, or a model of a repository."""
    if parse_version(directory.name) is not None:
        return True
    try:
        names = {child.name for child in directory.iterdir()}
    except OSError:
        return True  # its load reports the error
    return any(name == CONFIG_FILE or name in FILENAMES or parse_version(name) is not None for name in names)


class BareFilesStore(Store):
    """A folder of model files; its subdirectories are no models."""

    def __init__(self, directory: Path, *, options: BareModelOptions = BARE_MODELS) -> None:
        self.location = str(directory)
        self._directory = directory
        self._options = options

    def look(self) -> Mapping[str, ModelListing]:
        """Return the files by name without suffix. Raises InferError as `bare_files`."""
        return {name: ModelListing(partial(self.open_model, name)) for name in bare_files(self._directory)}

    def open_model(self, name: str) -> ModelEntry:
        """Describe the model of a file. Raises InferError(NOT_FOUND) for one that is not there."""
        path = bare_files(self._directory).get(name)
        if path is None:
            raise not_found(f"model '{name}' is not found in {self._directory}")
        return bare_file(path, options=self._options)


def nothing_to_serve(paths: Sequence[str]) -> str:
    """Return the message about repositories without any model; it explains model files of other formats."""
    message = (
        f"there is no model in {' and '.join(paths)}; a repository has a directory for each, as in model/1/model.onnx"
    )
    notes = [note for path in paths if Path(path).is_dir() for note in other_formats(Path(path))]
    return "; ".join([message, *notes[:_MOST_NOTES]])


def other_formats(directory: Path) -> list[str]:
    """Return what the model files in a directory are that no backend serves, and what to do with each."""
    models = set(model_files(directory))
    served = set(_SUFFIXES) - GENERAL_SUFFIXES - _PICKLE_SUFFIXES
    files = [path for path in sorted(directory.iterdir()) if path.suffix not in served and os.path.isfile(path)]
    return [f"{path.name}: {found}" for path in files if path not in models and (found := way_out(path))]
