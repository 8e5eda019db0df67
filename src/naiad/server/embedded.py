"""Servers without ports: one whose models execute requests of this process, one that only tries to load a model."""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from naiad.backend.signature import DEFAULT_MAX_BATCH_SIZE_SETTING
from naiad.client.client import InferResult, encode_tensors
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import InferError
from naiad.core.model import IndexEntry, ModelMetadata, ModelState
from naiad.core.request import InferRequest, RequestedOutput, RequestHeader
from naiad.core.response import InferResponse
from naiad.core.tensor import Array
from naiad.options.options import RepositoryOptions, ServerOptions
from naiad.server.model_serving import ModelServing
from naiad.telemetry.statistics.version_statistics import VersionStatistics

if TYPE_CHECKING:
    from naiad.engine.serving.served import Served
    from naiad.repository.control.control_modes import RepositoryControl

_UNLOAD_S = 10.0
"""Time for models to unload."""


class EmbeddedServer:
    """Models of a repository in this process, for one event loop."""

    def __init__(
        self,
        repository: str,
        models: Sequence[str] = (),
        *,
        may_unpickle: bool = False,
        default_max_batch_size: int = 0,
    ) -> None:
        """Serve `models` of a repository, with the models that they consist of; without names, all of them.

        With `may_unpickle` also pickles, whose load executes code. `default_max_batch_size`: of models that can batch
        and name no size; 0 for that of their backend.
        """
        self._models = models
        mode = "explicit" if models else "none"
        self._control: RepositoryControl[Served] | None = None
        settings = {"pytorch": {"allow-pickle": "true"}} if may_unpickle else {}
        if default_max_batch_size:
            settings[""] = {DEFAULT_MAX_BATCH_SIZE_SETTING: str(default_max_batch_size)}
        options = RepositoryOptions(paths=(repository,), control_mode=mode)
        self._serving = ModelServing(
            ServerOptions(repository=options, backend_config=settings, allow_pickle=may_unpickle)
        )
        self._engine = self._serving.engine

    async def start(self) -> None:
        """Load the models. Raises InferError if the repository cannot be opened or one of `models` does not load."""
        control = self._control = self._serving.open()
        for model in self._models:
            await asyncio.to_thread(control.load_model, model, {})
        if not self._models:
            await asyncio.to_thread(control.load_at_start)
        self._engine.phase.is_starting = False

    async def close(self) -> None:
        """Unload the models when their requests have ended, within 10 s."""
        if self._control is not None:
            await asyncio.to_thread(self._control.unload_all, _UNLOAD_S)

    def submit(self, request: InferRequest) -> None:
        """Submit a request; its responses arrive through `request.on_response`, perhaps before this returns.

        Raises InferError if it is rejected; then `on_response` is not called.
        """
        self._engine.inference.submit(request)

    async def infer(
        self, model: str, inputs: Mapping[str, Array], *, version: str = "", outputs: Iterable[str] = ()
    ) -> InferResult:
        """Execute a model, as `naiad.client.Client.infer` does on a server. A cancelled call cancels its request.

        Raises InferError.
        """
        specs, data = encode_tensors(inputs)
        header = RequestHeader(
            model_name=model,
            model_version=version,
            inputs=specs,
            outputs=[RequestedOutput(name, binary=True) for name in outputs],
        )
        answer: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()

        def respond(request: InferRequest, response: InferResponse) -> None:
            if not answer.done():
                answer.set_result(response)

        request = InferRequest(header, data, respond, arrival_ns=time.monotonic_ns())
        self.submit(request)
        try:
            response = await answer
        except asyncio.CancelledError:
            self.cancel(request)
            raise
        if response.error is not None:
            raise response.error
        return InferResult(request.id, response)

    def cancel(self, request: InferRequest) -> None:
        """Cancel a submitted request."""
        self._engine.inference.cancel(request)

    def model_metadata(self, name: str, version: str = "") -> ModelMetadata:
        """Return names, datatypes and shapes of a model. Raises InferError if it is not ready."""
        return self._engine.views.model_metadata(name, version)

    def model_config(self, name: str, version: str = "") -> ModelConfig:
        """Return the complete configuration of a model. Raises InferError if it is not ready."""
        return self._engine.views.model_config(name, version)

    def statistics(self, name: str = "", version: str = "") -> Sequence[VersionStatistics]:
        """Return statistics of one version, of all versions of a model, or of all models (no name)."""
        return self._engine.views.statistics(name, version)


@dataclass(frozen=True, slots=True)
class TrialOutcome:
    """The result of loading one model."""

    failures: Sequence[str]
    """Why the model does not load; empty if it does."""
    seconds: float


def try_to_load(options: ServerOptions, model: str) -> TrialOutcome:
    """Load a model in explicit mode as a server would, with warm-up and members of an ensemble, and unload it again.

    Raises InferError if the repository cannot be opened.
    """
    return asyncio.run(_try_to_load(ModelServing(options), model))


async def _try_to_load(serving: ModelServing, model: str) -> TrialOutcome:
    control = serving.open()
    serving.engine.phase.is_starting = False
    start_s = time.monotonic()
    failures: Sequence[str] = ()
    try:
        await asyncio.to_thread(control.load_model, model, {})
    except InferError as error:
        failures = _reasons(control.catalog.index(), model) or (error.message.strip(),)
    seconds = time.monotonic() - start_s
    await asyncio.to_thread(control.unload_all, _UNLOAD_S)
    return TrialOutcome(failures, seconds)


def _reasons(rows: Sequence[IndexEntry], model: str) -> Sequence[str]:
    """Return why versions of a model are not ready, except those unloaded because another one failed."""
    return [
        f"version {row.version}: {row.reason.strip()}"
        for row in rows
        if row.name == model and row.state is not ModelState.READY and row.is_wanted and row.reason
    ]
