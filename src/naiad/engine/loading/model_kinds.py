"""The configurations of a server's models during their loads: each kind of model is prepared and checked once.

A server of a thousand models has few kinds of them: their configurations differ in the name alone. What becomes of a
configuration depends on its content, on the names of the files and on the number of versions, but not on the name of
the model, which only messages have. So what has passed all checks without a word is kept by this content, without the
name, and the next model of its kind gets a copy with its own name. A configuration with a mistake or a warning is not
kept: each model gets its messages, with their positions in its own file.
"""

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from naiad.backend.registry import BackendRegistry
from naiad.config.autofill import NO_VERSION, is_ensemble
from naiad.config.backends import PYTHON_RUNTIME, canonical_name
from naiad.config.forms.pbtxt.lexer import ParsedConfig
from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.naiad_parameters import is_isolated
from naiad.config.remote_settings import is_remote
from naiad.core.errors import ErrorCode, InferError, UnloadableError
from naiad.core.limits.bounded_cache import BoundedCache
from naiad.engine.loading.budget import LoadBudget
from naiad.engine.loading.load_configuration import finish_config, inspected_files, prepare_config
from naiad.repository.stores.store import ModelEntry

_MOST_KINDS = 512
"""Kinds of models that are kept; the oldest is dropped."""
_MOST_BYTES = 8 << 20
"""Of all of them together."""
_MOST_KIND_BYTES = 128 << 10
"""A larger one is not kept."""
_KIND_BYTES = 1024
"""Of a kind besides the configuration."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """A configuration without the name of its model."""

    content: bytes
    runtime: str
    """The `runtime` that the backend of this name brought along."""
    group_endings: Mapping[int, str]
    """What follows the name of the model in the generated names of instance groups, by their positions."""

    def named(self, name: str) -> ModelConfig:
        """Return a configuration for a model of this name."""
        config = ModelConfig.FromString(self.content)
        config.name = name
        for position, ending in self.group_endings.items():
            config.instance_group[position].name = name + ending
        return config


class ModelKinds:
    """Prepares and finishes configurations, and holds them against the budget of a load. For several threads."""

    def __init__(
        self,
        backends: BackendRegistry,
        budget: LoadBudget,
        settings_of: Callable[[ModelConfig], Mapping[str, str]],
        *,
        auto_complete: bool,
    ) -> None:
        """`settings_of` returns the `--backend-config` settings of a configuration's backend."""
        self._backends = backends
        self._budget = budget
        self._settings_of = settings_of
        self._auto_complete = auto_complete
        self._kinds: BoundedCache[Hashable, _Kind] = BoundedCache(
            max_entries=_MOST_KINDS, max_bytes=_MOST_BYTES, max_entry_bytes=_MOST_KIND_BYTES
        )
        self._lock = threading.Lock()
        """Held for a change of them."""

    def prepare(
        self, parsed: ParsedConfig, entry: ModelEntry, versions: Sequence[int]
    ) -> tuple[ModelConfig, InferError | None]:
        """Return a configuration with file names, defaults and runtime, and the error of its versions, if any.

        Raises InferError with every mistake, without a version to load, and if it asks for more than the budget.
        """
        files = inspected_files(entry, versions)
        backends = self._backends.names()
        key = None
        if _may_be_kept(parsed.config, entry.name):
            # Triton: without a known file the text after the first dot of the name is the backend.
            ending = entry.name.partition(".")[2]
            key = ("prepared", _nameless(parsed.config), ending, *backends, "", *files, len(versions))
            known = self._kinds.get(key)
            if known is not None:
                config = known.named(entry.name)
                # A directory with a backend of this name may be there now, or there no more.
                if known.runtime == self._backends.runtime_of(config.backend):
                    return config, None
        prepared = prepare_config(parsed, entry, files, backends, auto_complete=self._auto_complete)
        config = prepared.config
        runtime = self._backends.runtime_of(config.backend)
        config.runtime = config.runtime or runtime
        # Triton: only a valid configuration is compared with the version directories.
        if not versions:
            raise UnloadableError(
                ErrorCode.INVALID_ARG,
                f"{NO_VERSION.format(model_name=entry.name)}; version directories in {entry.model_dir}: "
                f"{', '.join(map(str, entry.version_dirs)) or 'none'}",
            )
        excess = self._excess(config, len(versions))
        if excess is not None:
            # The model is there and its configuration can be read: it counts as one that cannot be loaded.
            raise UnloadableError(excess.code, excess.message)
        if key is not None and prepared.unsupported_reason is None and not prepared.has_warnings:
            self._keep(key, config, runtime, {})
        return config, prepared.unsupported_reason

    def finish(
        self,
        config: ModelConfig,
        completed: ModelConfig,
        parsed: ParsedConfig | None,
        *,
        instance_count: int,
        gpu_count: int,
        version_count: int,
    ) -> ModelConfig:
        """Return `config` with the backend's completion and with instance groups, `instance_count` by default.

        Raises InferError as `finish_config`, and if it asks for more than the budget.
        """
        addition = b"" if completed is config else _nameless(completed)
        key = ("finished", _nameless(config), addition, instance_count, gpu_count, version_count)
        known = self._kinds.get(key)
        if known is not None:
            return known.named(config.name)
        final = finish_config(config, completed, parsed, instance_count, gpu_count)
        excess = self._excess(final, version_count)
        if excess is not None:
            raise excess
        endings = {position: f"_{position}" for position, group in enumerate(config.instance_group) if not group.name}
        self._keep(key, final, "", endings if config.instance_group else {0: ""})
        return final

    def _excess(self, config: ModelConfig, version_count: int) -> InferError | None:
        """Return the error of a configuration that asks for more than the budget of a load."""
        has_processes = (
            canonical_name(config.backend) == "python"
            or config.runtime == PYTHON_RUNTIME
            or (not is_ensemble(config) and is_isolated(config, self._settings_of(config)))
        )
        return self._budget.excess(config, version_count=version_count, has_processes=has_processes)

    def _keep(self, key: Hashable, config: ModelConfig, runtime: str, group_endings: Mapping[int, str]) -> None:
        content = _nameless(config, group_endings)
        with self._lock:
            # The key has a configuration too, of about this size.
            self._kinds.remember(key, _Kind(content, runtime, group_endings), 2 * len(content) + _KIND_BYTES)


def _may_be_kept(config: ModelConfig, name: str) -> bool:
    """Return whether what becomes of a configuration does not depend on the name of the model.

    An ensemble may name itself, a model of another server has its name there by default, and it is a mistake if the
    directory has another name.
    """
    return config.name in ("", name) and not is_ensemble(config) and not is_remote(config)


def _nameless(config: ModelConfig, groups: Mapping[int, str] | None = None) -> bytes:
    """Return a configuration as bytes without its name, and without the names of these instance groups."""
    copy = ModelConfig()
    copy.CopyFrom(config)
    copy.ClearField("name")
    for position in groups or ():
        copy.instance_group[position].ClearField("name")
    return copy.SerializeToString(deterministic=True)
