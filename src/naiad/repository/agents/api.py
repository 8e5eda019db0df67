"""The interface of repository agents: an agent checks or replaces a model's files before they are loaded.

A third party ships an agent as a package with an entry point in the group `naiad.repository_agents`. The name of the
entry point is the `name` in `model_repository_agents` of `config.pbtxt`, its object is a `RepositoryAgent` class.

Methods are called on loading threads, for different models at the same time.
"""

import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class AgentContext:
    """One load of one model, for one agent of its chain."""

    model_name: str
    model_dir: Path
    """The model's directory: the repository's, or the result of an earlier agent of the chain."""
    parameters: Mapping[str, str]
    """The `parameters` of this agent in the configuration."""
    new_directory: Callable[[], Path]
    """Returns a new, empty directory, readable by this user alone, that is removed when the model is unloaded."""


class RepositoryAgent(abc.ABC):
    """One kind of agent. The server makes one object for each name that a configuration uses."""

    name: ClassVar[str]

    @abc.abstractmethod
    def load(self, context: AgentContext) -> Path | None:
        """Called before a model is loaded or reloaded, in the order of the configuration.

        Returns the directory to load from instead of `context.model_dir`, which has a configuration of its own, or
        None for no change. Raise any exception to reject the model: its text is the reason in the log and the index.
        """

    def load_complete(self, context: AgentContext) -> None:  # noqa: B027 - an agent that only checks needs no more
        """Called when the model of `load` is ready; the last agent first, as in Triton."""

    def load_failed(self, context: AgentContext) -> None:  # noqa: B027
        """Called when the load failed, for any reason."""

    def unload(self, context: AgentContext) -> None:  # noqa: B027
        """Called before the model is released, because of an unload or after another load has replaced it."""

    def unload_complete(self, context: AgentContext) -> None:  # noqa: B027
        """Called after the model is released; the directories of `context` are removed afterwards."""
