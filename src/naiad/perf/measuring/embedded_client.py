"""What a run reads about models in this process, in the form of a client."""

from typing import Any

from naiad import __version__
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.model import ModelMetadata, ServerMetadata
from naiad.protocol.json.client import decode_statistics
from naiad.protocol.json.control import encode_statistics
from naiad.server.embedded import EmbeddedServer


class EmbeddedClient:
    """Reads metadata, configuration and statistics of an embedded server. Raises InferError as a client does."""

    def __init__(self, server: EmbeddedServer) -> None:
        self._server = server

    async def server_metadata(self) -> ServerMetadata:
        """Return name and version."""
        return ServerMetadata("naiad", __version__, ())

    async def model_metadata(self, model: str, version: str = "") -> ModelMetadata:
        """Return inputs, outputs and versions of a model."""
        return self._server.model_metadata(model, version)

    async def model_config(self, model: str, version: str = "") -> ModelConfig:
        """Return the complete configuration of a model."""
        return self._server.model_config(model, version)

    async def statistics(self, *, timeout_s: float | None = None) -> list[dict[str, Any]]:
        """Return counts and durations, a row per version."""
        return decode_statistics(encode_statistics(self._server.statistics()))

    def close(self) -> None:
        """The models belong to the target."""
