"""What a run reads from the server: metadata, configuration and statistics of its models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from naiad.client import Client, ConnectionFailedError, ErrorCode, InferError
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.model import ModelMetadata, ServerMetadata
from naiad.tools.perf.perf_plan import ModelLoad, Plan
from naiad.tools.perf.targets.connections import client_tls

_MISSING = (ErrorCode.NOT_FOUND, ErrorCode.UNSUPPORTED, ErrorCode.UNKNOWN, ErrorCode.INTERNAL, ErrorCode.INVALID_ARG)
"""What servers without an extension answer."""
_TIMEOUT_S = 10.0
_STATISTICS_TIMEOUT_S = 2.0
_MAX_COMPOSING = 256


class ModelReader(Protocol):
    """A client of a server, or of models in this process. All calls raise InferError."""

    async def server_metadata(self) -> ServerMetadata:
        """Return name and version."""

    async def model_metadata(self, model: str, version: str = "") -> ModelMetadata:
        """Return inputs, outputs and versions of a model."""

    async def model_config(self, model: str, version: str = "") -> ModelConfig:
        """Return the complete configuration of a model."""

    async def statistics(self, *, timeout_s: float | None = None) -> list[dict[str, Any]]:
        """Return counts and durations, a row per version."""

    def close(self) -> None:
        """Disconnect."""


@dataclass(frozen=True, slots=True)
class ServerModel:
    """A model on the server."""

    metadata: ModelMetadata
    config: ModelConfig | None
    """None for a server without the extension."""


def make_client(plan: Plan) -> Client:
    """Return a client of the plan's server. Raises InferError(INVALID_ARG)."""
    service = plan.service
    return Client(service.url, headers=service.headers, tls=client_tls(service), timeout_s=_TIMEOUT_S)


async def read_server(client: ModelReader) -> ServerMetadata:
    """Return the server's metadata. Raises ConnectionFailedError with the URL; empty without the endpoint."""
    try:
        return await client.server_metadata()
    except InferError as error:
        if error.code in _MISSING:
            return ServerMetadata("", "", ())
        raise


async def read_model(client: ModelReader, plan: Plan, model: ModelLoad) -> ServerModel:
    """Return a model. Raises InferError, which names URL and model."""
    try:
        metadata = await client.model_metadata(model.name, model.version)
    except ConnectionFailedError:
        raise
    except InferError as error:
        version = f" version {model.version}" if model.version else ""
        raise InferError(
            error.code, f"model '{model.name}'{version} at {plan.service.url}: {error.message}"
        ) from error
    return ServerModel(metadata, await _config(client, model.name, model.version))


async def _config(client: ModelReader, name: str, version: str) -> ModelConfig | None:
    try:
        return await client.model_config(name, version)
    except InferError as error:
        if error.code in _MISSING:
            return None
        raise


async def composing_models(client: ModelReader, models: Sequence[ServerModel]) -> dict[str, list[str]]:
    """Return the models of the steps of each ensemble, by its name, of nested ensembles as well."""
    composing: dict[str, list[str]] = {}
    waiting = [model.config for model in models if model.config is not None]
    while waiting and len(composing) < _MAX_COMPOSING:
        config = waiting.pop()
        steps = [
            step.model_name if step.model_version <= 0 else f"{step.model_name}:{step.model_version}"
            for step in config.ensemble_scheduling.step
        ]
        if not steps or config.name in composing:
            continue
        composing[config.name] = list(dict.fromkeys(steps))
        for step in composing[config.name]:
            name, _, version = step.partition(":")
            found = await _config(client, name, version)
            if found is not None:
                waiting.append(found)
    return composing


async def read_statistics(client: ModelReader) -> Mapping[str, Any]:
    """Return the rows of all models by `MODEL/VERSION`; empty for a server that has none or does not answer."""
    try:
        rows = await client.statistics(timeout_s=_STATISTICS_TIMEOUT_S)
    except InferError:
        return {}
    return {f"{row.get('name', '')}/{row.get('version', '')}": row for row in rows}
