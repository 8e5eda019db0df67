"""What one load command is about, and what is remembered of it once it has been carried out."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from naiad.config.model_config_pb2 import ModelConfig
from naiad.repository.control.override import Override, UploadedFiles
from naiad.repository.model_plan import ModelPlan
from naiad.repository.stores.fingerprint import FileState
from naiad.repository.stores.store import ModelEntry


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

    def let_go(self) -> None:
        """Delete the files, which are not in use any more."""
        if self.files is not None:
            self.files.remove()
        if self.release is not None:
            self.release()


@dataclass(slots=True)
class LoadOrder:
    """What one load command is about: the model, and the members that it needs."""

    name: str
    override: Override | None
    is_forced: bool = False
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
    releases: dict[str, Callable[[], None]] = field(default_factory=dict)
    """Of the stores' files that were opened and are not in use."""

    @property
    def forced(self) -> Mapping[str, str]:
        """The model with the reason, if it is loaded although nothing has changed."""
        if self.is_forced:
            return {self.name: "the command forces it"}
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
