"""What a repository agent implements: it looks at a model's files before they are loaded, or brings others.

A third party ships an agent as a package with an entry point in the group `naiad.repository_agents`, whose name is
the `name` in `model_repository_agents` of `config.pbtxt` and whose object is a `RepositoryAgent` class.

Methods are called from threads of loading, for different models at the same time.
"""

import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class AgentContext:
    """One load of one model, as one agent of its chain sees it."""

    model_name: str
    model_dir: Path
    """The model's directory: the repository's, or the one that an earlier agent of the chain has returned."""
    parameters: Mapping[str, str]
    """The `parameters` of this agent in the configuration."""
    new_directory: Callable[[], Path]
    """Returns a new, empty directory, readable by this user alone, that is removed when the model is unloaded."""


class RepositoryAgent(abc.ABC):
    """One kind of agent. The server makes one object for each name that a configuration uses."""

    name: ClassVar[str]

    @abc.abstractmethod
    def load(self, context: AgentContext) -> Path | None:
        """Called before a model is loaded or loaded anew, in the order of the configuration.

        Returns the directory to load from instead of `context.model_dir`, which has a configuration of its own, or
        None to leave it as it is. Raise any exception to refuse the model: its text is told as the reason.
        """

    def load_complete(self, context: AgentContext) -> None:  # noqa: B027 - an agent that only checks needs no more
        """Called when the model that `load` was called for is ready; the last agent first, as in Triton."""

    def load_failed(self, context: AgentContext) -> None:  # noqa: B027
        """Called when it was not loaded, whatever the reason."""

    def unload(self, context: AgentContext) -> None:  # noqa: B027
        """Called before what was loaded goes, because the model is unloaded or another load has replaced it."""

    def unload_complete(self, context: AgentContext) -> None:  # noqa: B027
        """Called when it has gone; the directories of `context` are removed after that."""
