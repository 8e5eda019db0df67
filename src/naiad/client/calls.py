"""What a client asks of a server, whichever protocol carries it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.model import IndexEntry, ModelMetadata, ServerMetadata
from naiad.core.request import RequestHeader
from naiad.core.response import InferResponse
from naiad.core.tensor import Buffer

Decoded: TypeAlias = tuple[str, InferResponse, Iterable[tuple[bytes, bytes]]]
"""Request id, response, and header fields with lower-case names; over gRPC also trailing metadata."""


class Calls(Protocol):
    """The calls of one protocol. Each raises InferError with the server's code and message."""

    async def infer(
        self, header: RequestHeader, request_id: str, data: Sequence[Buffer], timeout_s: float | None
    ) -> Decoded:
        """Execute a model; `timeout_s` is the deadline that the server gets, where the protocol has one."""

    async def is_live(self) -> bool:
        """Return whether the server responds."""

    async def is_ready(self) -> bool:
        """Return whether the server is ready."""

    async def is_model_ready(self, model: str, version: str) -> bool:
        """Return whether a model can execute requests."""

    async def server_metadata(self) -> ServerMetadata:
        """Return name, version and extensions of the server."""

    async def model_metadata(self, model: str, version: str) -> ModelMetadata:
        """Return inputs, outputs and versions of a model."""

    async def model_config(self, model: str, version: str) -> ModelConfig:
        """Return the complete configuration of a model."""

    async def statistics(self, model: str, version: str) -> list[dict[str, Any]]:
        """Return counts and durations, a row per version; of all models for an empty name."""

    async def explain(self, model: str, version: str) -> dict[str, Any]:
        """Return how requests of a model are scheduled."""

    async def repository_index(self, *, only_ready: bool) -> list[IndexEntry]:
        """Return models, versions and states."""

    async def load(self, model: str, config: str, files: Mapping[str, bytes]) -> None:
        """Load or reload a model."""

    async def unload(self, model: str, *, unload_dependents: bool) -> None:
        """Unload a model."""

    async def register_system(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Register a part of a POSIX shared-memory object."""

    async def register_cuda(self, name: str, handle: bytes, device_id: int, byte_size: int) -> None:
        """Register an allocation of a GPU."""

    async def unregister_system(self, name: str) -> None:
        """Unregister a system region."""

    async def unregister_cuda(self, name: str) -> None:
        """Unregister a CUDA region."""

    def close(self) -> None:
        """Close all connections."""
