"""The commands about the repository: load and unload models."""

from collections.abc import Callable, Mapping

from naiad.core.errors import unavailable
from naiad.engine.phase import ServerPhase
from naiad.engine.processes import Processes
from naiad.engine.serving.served import Served
from naiad.repository.control.control_modes import RepositoryControl
from naiad.repository.stores.store import Store


class RepositoryCommands:
    """Loads and unloads models. All methods block, so they are not for the event loop, and raise InferError."""

    def __init__(self, phase: ServerPhase, processes: Processes) -> None:
        self._phase = phase
        self._processes = processes
        self.control: RepositoryControl[Served] | None = None
        """Set once, before the frontends start."""

    def load_model(self, name: str, parameters: Mapping[str, object], *, is_owner: bool = True) -> None:
        """Load or reload a model.

        Without `is_owner` a configuration in `parameters` may change only what `config.override` lists.
        """
        self._ready_control().load_model(name, parameters, is_owner=is_owner)

    def unload_model(
        self, name: str, parameters: Mapping[str, object], on_withdrawn: Callable[[], object] | None = None
    ) -> None:
        """Unload a model. `on_withdrawn` is called, on the same thread, once it accepts no more requests."""
        self._ready_control().unload_model(name, parameters, on_withdrawn)

    def load_from(self, store: Store, name: str) -> None:
        """Register a repository and load one of its models."""
        self._ready_control().load_from(store, name)

    def unload_from(self, store: Store, name: str) -> None:
        """Unload a model of a registered repository."""
        self._ready_control().unload_from(store, name)

    def load_beside(self, key: str) -> None:
        """Load the versions that the rollout of a model needs; the served ones stay."""
        self._ready_control().load_beside(key)

    def broadcast_load(self, name: str, parameters: Mapping[str, object]) -> None:
        """Load or reload a model in all processes of the server."""
        self._processes.load(name, parameters, lambda: self.load_model(name, parameters))

    def broadcast_unload(
        self, name: str, parameters: Mapping[str, object], on_withdrawn: Callable[[], object]
    ) -> None:
        """Unload a model in all processes of the server; return no later than when it accepts no more requests."""
        self._processes.unload(name, parameters, lambda: self.unload_model(name, parameters, on_withdrawn))

    def _ready_control(self) -> RepositoryControl[Served]:
        if self.control is None or self._phase.is_draining:
            raise unavailable("Server not ready")
        return self.control
