"""A server without ports: its models execute requests of this process."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.model import ModelMetadata
from naiad.core.request import InferRequest
from naiad.options.options import RepositoryOptions, ServerOptions
from naiad.server.app import Server
from naiad.telemetry.statistics.version import VersionStatistics

if TYPE_CHECKING:
    from naiad.engine.serving.served import Served
    from naiad.repository.control.triggers import RepositoryControl

_UNLOAD_S = 10.0


class EmbeddedServer(Server):
    """Models of a repository in this process, for one event loop."""

    def __init__(self, repository: str, models: Sequence[str] = (), *, may_unpickle: bool = False) -> None:
        """Serve `models` of a repository, with the models that they consist of; without names, all of them.

        With `may_unpickle` also pickles of `torch.save`, whose load executes code.
        """
        self._models = models
        mode = "explicit" if models else "none"
        self._control: RepositoryControl[Served] | None = None
        settings = {"pytorch": {"allow-pickle": "true"}} if may_unpickle else {}
        options = RepositoryOptions(paths=(repository,), control_mode=mode)
        super().__init__(ServerOptions(repository=options, backend_config=settings))

    async def start(self) -> None:
        """Load the models. Raises InferError if the repository cannot be opened or one of `models` does not load."""
        loop = asyncio.get_running_loop()
        control = self._control = self._make_control(self._make_catalog(self._make_loader(loop, None)), loop)
        self._engine.attach(control)
        for model in self._models:
            await asyncio.to_thread(control.load_model, model, {})
        if not self._models:
            await asyncio.to_thread(control.load_at_start)
        self._engine.set_started()

    async def close(self) -> None:
        """Unload the models when their requests have ended, within 10 s."""
        if self._control is not None:
            await asyncio.to_thread(self._control.unload_all, _UNLOAD_S)

    def submit(self, request: InferRequest) -> None:
        """Submit a request; its responses arrive through `request.on_response`, perhaps before this returns.

        Raises InferError if it is rejected; then `on_response` is not called.
        """
        self._engine.submit(request)

    def cancel(self, request: InferRequest) -> None:
        """Cancel a submitted request."""
        self._engine.cancel(request)

    def model_metadata(self, name: str, version: str = "") -> ModelMetadata:
        """Return names, datatypes and shapes of a model. Raises InferError if it is not ready."""
        return self._engine.model_metadata(name, version)

    def model_config(self, name: str, version: str = "") -> ModelConfig:
        """Return the complete configuration of a model. Raises InferError if it is not ready."""
        return self._engine.model_config(name, version)

    def statistics(self, name: str = "", version: str = "") -> Sequence[VersionStatistics]:
        """Return statistics of one version, of all versions of a model, or of all models (no name)."""
        return self._engine.statistics(name, version)
