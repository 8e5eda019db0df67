"""What a load command is about: the configuration and files that it brings along, and what is remembered of it."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from naiad.backend.load_stop import LoadStop
from naiad.config.forms.json_form import config_from_json
from naiad.config.forms.pbtxt.text_format import parse_pbtxt
from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.problem import errors_of
from naiad.config.validate.file_names import is_outside, name_problem
from naiad.core.errors import InferError, excerpt, invalid_argument, permission_denied, wrong_request
from naiad.files.temporary import OwnDirectory
from naiad.repository.model_plan import ModelPlan
from naiad.repository.stores.fingerprint import FileState
from naiad.repository.stores.known_texts import known_texts
from naiad.repository.stores.store import CONFIG_FILE, ModelEntry, check_model_name, list_version_dirs, read_file_text

_FILE = "file:"
FORCE = "force"
"""naiad: a load command with this parameter true reloads a model although nothing has changed."""
DRY_RUN = "dry_run"
"""naiad: a load command with this parameter true does everything but put the model in place."""
_MAX_FILES = 1024


@dataclass(frozen=True, slots=True)
class Override:
    """A configuration and files by their path in the model's directory."""

    config: ModelConfig
    files: Mapping[str, bytes] = field(default_factory=dict)
    is_limited: bool = False
    """Whether the configuration may change only what `config.override` lists."""


def read_override(name: str, parameters: Mapping[str, object]) -> Override | None:
    """Return what the parameters of a load command bring along, None for nothing.

    `config` is the JSON text of a configuration, `file:<path>` the content of a file.
    Raises InferError: INTERNAL for a configuration that cannot be used, otherwise INVALID_ARG.
    """
    check_model_name(name)
    files: dict[str, bytes] = {}
    for key, value in parameters.items():
        if key in (FORCE, DRY_RUN):
            continue
        if key.startswith(_FILE) and isinstance(value, bytes):
            files[_checked_path(name, key.removeprefix(_FILE))] = value
        elif key != "config":
            raise invalid_argument(f"unrecognized load parameter '{excerpt(key)}'.")
    text = parameters.get("config")
    if text is None:
        if files:
            raise invalid_argument(
                f"load of model '{excerpt(name)}' has '{_FILE}' parameters without a 'config'; give the "
                "configuration as well"
            )
        return None
    if len(files) > _MAX_FILES:
        raise invalid_argument(f"load of model '{excerpt(name)}' has {len(files)} files; the most is {_MAX_FILES}")
    return Override(_read_config(name, str(text)), files)


def _read_config(name: str, text: str) -> ModelConfig:
    try:
        config = config_from_json(text)
    except InferError as error:
        raise _poll_failure(name, error.message) from None
    if config.name not in ("", name):
        raise _poll_failure(
            name,
            f"Invalid config override: its name is '{excerpt(config.name)}', that of the model to load is "
            f"'{excerpt(name)}'",
        )
    config.name = name
    return config


def _poll_failure(name: str, reason: str) -> InferError:
    # Triton: a configuration that cannot be used counts as a failure to look at the repository.
    return wrong_request(f"failed to load '{excerpt(name)}', failed to poll from model repository: {reason}")


def _checked_path(name: str, text: str) -> str:
    # Triton: joins the paths, whether or not this one begins with a slash.
    path = PurePosixPath(text.lstrip("/"))
    if not path.parts or is_outside(str(path)) or "\0" in text or "\\" in text:
        raise invalid_argument(
            f"load parameter '{_FILE}{excerpt(text)}': the path must lie in the model's directory, such as "
            "1/model.onnx"
        )
    if str(path) == CONFIG_FILE:
        raise invalid_argument(f"load parameter '{_FILE}{excerpt(text)}': give the configuration as 'config' instead")
    problem = name_problem(str(path))
    if problem:
        # Triton's opening: a file that cannot be written counts as a failure to look at the repository.
        raise invalid_argument(
            f"failed to load '{excerpt(name)}', failed to poll from model repository: load parameter "
            f"'{_FILE}{excerpt(text)}': the path {problem}; use another name"
        )
    return str(path)


def with_config(entry: ModelEntry, override: Override) -> ModelEntry:
    """Return an entry of the repository with another configuration than the one on disk."""
    config = ModelConfig()
    config.CopyFrom(override.config)
    if not config.default_model_filename:
        config.default_model_filename = entry.preset.default_model_filename  # of a bare model file
    return replace(entry, config_path=None, preset=config)


def config_of_files(entry: ModelEntry) -> ModelConfig:
    """Return the configuration that an override replaces, as far as its file can be read."""
    if entry.config_path is None:
        return entry.preset
    try:
        text = read_file_text(entry.config_path)
    except (OSError, UnicodeDecodeError):
        return ModelConfig()
    return known_texts.parse(text, str(entry.config_path)).config


def owner_config(entry: ModelEntry) -> ModelConfig:
    """Return the configuration on disk, which limits what other clients may change.

    Raises InferError(PERMISSION_DENIED) if it is broken: in a part of it, a protection could be missing.
    """
    if entry.config_path is None:
        return entry.preset
    try:
        parsed = parse_pbtxt(read_file_text(entry.config_path), str(entry.config_path))
    except (OSError, UnicodeDecodeError) as error:
        raise _unknown_owner(entry, str(error)) from error
    if errors_of(parsed.problems):
        raise _unknown_owner(entry, str(errors_of(parsed.problems)[0]))
    return parsed.config


def _unknown_owner(entry: ModelEntry, reason: str) -> InferError:
    return permission_denied(
        f"config override of model '{excerpt(entry.name)}': its {CONFIG_FILE} cannot be read, so what the owner has "
        f"set is unknown; repair it: {reason}"
    )


class UploadedFiles:
    """The files of a load command, in a directory of their own for as long as the model is loaded."""

    def __init__(self, name: str, files: Mapping[str, bytes]) -> None:
        """Write them. Raises OSError when there is no room, InferError when two paths exclude each other."""
        self._held = OwnDirectory("model")
        self._directory = self._held.path
        self._name = name
        try:
            for path, content in files.items():
                self._write(path, content)
        except BaseException:
            self.remove()
            raise

    def _write(self, path: str, content: bytes) -> None:
        target = self._directory / path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
            raise invalid_argument(
                f"load parameter '{_FILE}{excerpt(path)}': another file of the same load is in its way"
            ) from error

    def entry(self, config: ModelConfig) -> ModelEntry:
        """Return the model as it lies here."""
        return ModelEntry(self._name, self._directory, list_version_dirs(self._directory), None, config)

    def remove(self) -> None:
        """Remove the directory; what cannot be removed stays in the temporary directory."""
        self._held.remove()


@dataclass(slots=True)
class LoadRecord:
    """Why a model is loaded, and from what."""

    files_seen: FileState | None
    """How its files looked; None for files that a command brought along."""
    plan: ModelPlan
    members: frozenset[str]
    member_generations: Mapping[str, int] = field(default_factory=dict)
    """How often each member had been loaded by then."""
    is_explicit: bool = False
    """A command named it; otherwise an ensemble needs it."""
    is_overridden: bool = False
    files: UploadedFiles | None = None
    release: Callable[[], None] | None = None
    """Gives the store's files back."""
    retirement: threading.Thread | None = None
    """Stops what the last load replaced."""

    def release_files(self) -> None:
        """Delete the files, which are not in use any more."""
        if self.files is not None:
            self.files.remove()
        if self.release is not None:
            self.release()


@dataclass(slots=True, eq=False)
class LoadOrder:
    """What one load command is about: the model, and the members that it needs."""

    name: str
    override: Override | None
    is_forced: bool = False
    is_beside: bool = False
    """Versions are added to those that serve, which stay."""
    is_by_client: bool = True
    """Whether a client has asked for it: when it fails, other clients have lost nothing."""
    files: UploadedFiles | None = None
    replaced_config: ModelConfig | None = None
    """The configuration of the files, which the override replaces."""
    plans: dict[str, ModelPlan] = field(default_factory=dict)
    files_seen: dict[str, FileState | None] = field(default_factory=dict)
    borrowed: set[str] = field(default_factory=set)
    """Models that seemed to be loaded as they are, so that their plans describe the served versions."""
    loaded: set[str] = field(default_factory=set)
    """Models that were loaded."""
    stop: LoadStop = field(default_factory=LoadStop)
    """Whether it has to end before all is loaded."""
    releases: dict[str, Callable[[], None]] = field(default_factory=dict)
    """Of the stores' files that were opened and are not in use."""

    @property
    def forced(self) -> Mapping[str, str]:
        """The model with the reason, if it is loaded although nothing has changed."""
        if self.is_forced:
            return {self.name: "the command forces it"}
        if self.is_beside:
            return {self.name: "its rollout needs other versions"}
        return {} if self.override is None else {self.name: "the command has a configuration"}

    def note_opened(self, entry: ModelEntry) -> None:
        """Remember a store's files, to be released unless they come to be loaded."""
        if entry.key in self.releases:
            self.releases[entry.key]()
        self.releases[entry.key] = entry.release

    def release(self) -> None:
        """Release what was prepared and not loaded."""
        for name, plan in self.plans.items():
            if plan.agents is not None and name not in self.borrowed:
                plan.agents.load_failed()
        if self.files is not None:
            self.files.remove()
        for release in self.releases.values():
            release()
