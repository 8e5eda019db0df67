"""The chain of agents of a model, and the directories that they have filled for it."""

import functools
import importlib
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.problem import nearest
from naiad.core.errors import InferError, cause_of, internal, invalid_argument
from naiad.files.temporary import OwnDirectory
from naiad.repository.agents.api import AgentContext, RepositoryAgent
from naiad.repository.stores.store import ModelEntry, entry_of_directory

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_log = logging.getLogger(__name__)

ENTRY_POINT_GROUP = "naiad.repository_agents"

_BUILT_IN: Mapping[str, str] = {"checksum": f"{__package__}.checksum:ChecksumAgent"}
"""Known without metadata too, like the backends."""


class AgentRegistry:
    """Finds and keeps one `RepositoryAgent` object per name. Its methods may be called from several threads."""

    def __init__(self, announced: "Mapping[str, EntryPoint] | None" = None) -> None:
        """Look for agents among the installed packages, or take the `announced` ones instead."""
        self._announced = announced
        self._agents: dict[str, RepositoryAgent] = {}
        self._lock = threading.Lock()

    @functools.cached_property
    def _points(self) -> "dict[str, EntryPoint]":
        # Most servers have no model with agents: only a server with one imports the library and searches.
        from importlib.metadata import EntryPoint, entry_points

        announced = self._announced
        if announced is None:
            announced = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
        built_in = {name: EntryPoint(name, value, ENTRY_POINT_GROUP) for name, value in _BUILT_IN.items()}
        return {**built_in, **announced}

    def get(self, name: str) -> RepositoryAgent:
        """Return the agent called `name`. Raises InferError for an unknown agent or a failed import."""
        with self._lock:
            agent = self._agents.get(name)
            if agent is None:
                agent = self._agents[name] = self._create(name)
        return agent

    def _create(self, name: str) -> RepositoryAgent:
        point = self._points.get(name)
        if point is None:
            meant = nearest(name, self._points)
            hint = f", did you mean '{meant}'?" if meant else ";"
            raise invalid_argument(
                f"unknown repository agent '{name}'{hint} available agents: {', '.join(sorted(self._points))}. "
                f"Others come as packages with an entry point in the group '{ENTRY_POINT_GROUP}'"
            )
        try:
            agent_class = getattr(importlib.import_module(point.module), point.attr)
        except (ImportError, AttributeError) as error:
            raise internal(f"repository agent '{name}': importing {point.value} failed: {error}") from error
        if not (isinstance(agent_class, type) and issubclass(agent_class, RepositoryAgent)):
            raise internal(f"repository agent '{name}': {point.value} is no subclass of RepositoryAgent")
        return agent_class()


@dataclass(frozen=True, slots=True)
class _Link:
    agent: RepositoryAgent
    context: AgentContext


class AgentChain:
    """The agents of one load of a model, from the first check of its files to the end of the loaded model."""

    def __init__(self, registry: AgentRegistry, entry: ModelEntry, config: ModelConfig) -> None:
        """Call `load` of every agent that `config` names. Raises InferError if one rejects the model."""
        self.entry = entry
        """What is to be loaded: the entry given, or what the last agent to bring other files has brought."""
        self._name = entry.name
        self._directories: list[OwnDirectory] = []
        self._links: list[_Link] = []
        try:
            for description in config.model_repository_agents.agents:
                self._add(registry.get(description.name), dict(description.parameters))
        except BaseException:
            self.load_failed()
            raise

    def _add(self, agent: RepositoryAgent, parameters: Mapping[str, str]) -> None:
        context = AgentContext(self._name, self.entry.model_dir, parameters, self._new_directory)
        self._links.append(_Link(agent, context))
        try:
            directory = agent.load(context)
        except BaseException as error:
            reason = error.message if isinstance(error, InferError) else cause_of(error)
            raise invalid_argument(
                f"repository agent '{agent.name}' refuses model '{self._name}': {reason}"
            ) from error
        if directory is None or Path(directory) == self.entry.model_dir:
            return
        if not Path(directory).is_dir():
            raise internal(f"repository agent '{agent.name}' returned {directory}, which is no directory")
        brought = entry_of_directory(self._name, Path(directory), config_name=self.entry.config_name)
        # A configuration in a load request takes precedence over any file.
        self.entry = (
            brought if self.entry.config_path else replace(brought, preset=self.entry.preset, config_path=None)
        )

    def _new_directory(self) -> Path:
        directory = OwnDirectory("agent")
        self._directories.append(directory)
        return directory.path

    def load_complete(self) -> None:
        """Notify the agents that the model is ready."""
        self._notify(lambda link: link.agent.load_complete(link.context), last_first=True)

    def load_failed(self) -> None:
        """Notify the agents of the failed load, and remove their directories."""
        self._notify(lambda link: link.agent.load_failed(link.context), last_first=True)
        self._remove()

    def unload(self) -> None:
        """Notify the agents that the model is about to be released."""
        self._notify(lambda link: link.agent.unload(link.context))

    def stop(self, timeout_s: float) -> bool:
        """Notify the agents that the model is released, and remove their directories."""
        self._notify(lambda link: link.agent.unload_complete(link.context), last_first=True)
        self._remove()
        return True

    def _notify(self, method: Callable[[_Link], None], *, last_first: bool = False) -> None:
        """Call a method of all agents; the failure of one is logged and does not stop the rest."""
        for link in reversed(self._links) if last_first else self._links:
            try:
                method(link)
            except BaseException:
                _log.exception("repository agent '%s' failed on model '%s'", link.agent.name, self._name)

    def _remove(self) -> None:
        while self._directories:
            self._directories.pop().remove()
