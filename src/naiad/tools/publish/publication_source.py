"""What can be published: a model file, or a directory of a model or of a framework."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from naiad.config.backends import filenames_of
from naiad.config.forms.pbtxt.text_format import format_config, parse_pbtxt
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import InferError
from naiad.files.below import COMPILED_DIR
from naiad.repository.stores.bare_files import bare_file, model_name
from naiad.repository.stores.new_version import NewVersion, shared_files
from naiad.repository.stores.store import CONFIG_FILE, check_model_name, list_version_dirs, read_file_text

_WEIGHTS = ".bin"
"""OpenVINO: the weights of `model.xml`, beside it."""


class SourceError(ValueError):
    """The path is no model that can be published; the message names path and fix."""


@dataclass(frozen=True, slots=True)
class PublicationSource:
    """A model that is about to be published."""

    model: str
    new: NewVersion

    def __post_init__(self) -> None:
        """Raise InferError(INVALID_ARG) for a name that is no name of a directory, such as a path."""
        check_model_name(self.model)


def read_source(path: Path, model: str = "") -> PublicationSource:
    """Return what a model file or a directory has; `model` is its name in the repository, by default the path's.

    Raises SourceError, OSError.
    """
    if not path.exists():
        raise SourceError(f"{path} does not exist; give a model file, the directory of a model, or a package")
    name = model or model_name(path)
    try:
        new = _of_model_directory(path, name) if _is_model_directory(path) else _of_framework(path)
        return PublicationSource(name, new)
    except InferError as error:
        raise SourceError(error.message) from error


def _is_model_directory(path: Path) -> bool:
    return path.is_dir() and ((path / CONFIG_FILE).exists() or bool(list_version_dirs(path)))


def _of_model_directory(path: Path, name: str) -> NewVersion:
    """Return the newest version of a directory as in a repository, with its configuration and labels."""
    versions = list_version_dirs(path)
    if not versions:
        raise SourceError(f"{path} has no version directory; put the model's files into {path / '1'}")
    newest = versions[max(versions)]
    return NewVersion(_files_of(newest), shared_files(path), _config_text(path / CONFIG_FILE, name))


def _of_framework(path: Path) -> NewVersion:
    """Return a version of a model file, or of a directory as its framework saves it."""
    entry = bare_file(path)
    if entry.version_dirs[1] == path:
        return NewVersion(_files_of(path))
    usual = filenames_of(entry.preset.backend)
    same = [each for each in usual if Path(each).suffix == path.suffix.lower()]
    filename = path.name if path.name in usual else next(iter(same or usual))
    files = {filename: path}
    weights = path.with_suffix(_WEIGHTS)
    if entry.preset.backend == "openvino" and weights.exists():
        files[Path(filename).with_suffix(_WEIGHTS).name] = weights
    return NewVersion(files)


def _files_of(directory: Path) -> Mapping[str, Path]:
    with os.scandir(directory) as children:
        return {
            child.name: Path(child.path)
            for child in children
            if not child.name.startswith(".") and child.name != COMPILED_DIR
        }


def _config_text(file: Path, name: str) -> str:
    if not file.exists():
        return ""
    try:
        text = read_file_text(file)
    except UnicodeDecodeError as error:
        raise SourceError(f"{file} is not UTF-8: {error}") from error
    config = parsed_config(text, str(file))
    if config.name in ("", name):
        return text
    config.name = name
    return format_config(config)


def parsed_config(text: str, file: str) -> ModelConfig:
    """Return a configuration. Raises SourceError for one that cannot be read."""
    parsed = parse_pbtxt(text, file)
    problems = [str(problem) for problem in parsed.problems if problem.is_error]
    if problems:
        raise SourceError("\n".join(problems))
    return parsed.config
