"""The calls over gRPC: `inference.GRPCInferenceService`; `rest.RestCalls` has the same over HTTP."""

import contextlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from naiad.client.connecting import DecodedResponse, ServerAddress
from naiad.client.live_events import LiveEvent
from naiad.client.transport.http2 import MAX_UNREAD_BYTES, CallResponse, Http2Pool
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import ErrorCode, InferError, unsupported
from naiad.core.model import IndexEntry, ModelMetadata, ServerMetadata
from naiad.core.request import RequestHeader
from naiad.core.response import InferResponse
from naiad.core.tensor import Buffer
from naiad.protocol.grpc import client as messages
from naiad.wire.grpc import encode_timeout, request_fields
from naiad.wire.http2.headers import encode_fields

NO_HEADERS: Mapping[str, str] = MappingProxyType({})
_SERVICE = "/inference.GRPCInferenceService/"


class GrpcCalls:
    """Calls over a pool of connections; `headers` are the metadata of each.

    Each raises InferError with the server's code and message.
    """

    def __init__(self, pool: Http2Pool, address: ServerAddress, headers: Mapping[str, str]) -> None:
        self._pool = pool
        self._authority = address.authority
        self._scheme = "https" if address.uses_tls else "http"
        self._metadata = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
        self._request_heads, self._response_heads = messages.KeptRequestHeads(), messages.KeptResponseHeads()
        self._blocks: dict[str, bytes] = {}
        """Method to header block without a deadline; one for each method that is called."""

    async def infer(
        self,
        header: RequestHeader,
        request_id: str,
        data: Sequence[Buffer],
        timeout_s: float | None,
        headers: Mapping[str, str],
    ) -> DecodedResponse:
        """Execute a model; `headers` are further metadata of this call."""
        message = messages.encode_request(header, request_id, data)
        response = await self._pool.call(self._header_block("ModelInfer", timeout_s, headers), message)
        return *messages.decode_response(response.message), response.fields

    async def infer_again(
        self,
        header: RequestHeader,
        request_id: str,
        data: Sequence[Buffer],
        timeout_s: float | None,
        headers: Mapping[str, str],
    ) -> InferResponse:
        """Execute a model with a header object that comes again and again; no tensor is in shared memory."""
        message = self._request_heads.encode(header, request_id, data)
        response = await self._pool.call(self._header_block("ModelInfer", timeout_s, headers), message)
        return self._response_heads.decode(response.message)[1]

    async def infer_stream(
        self,
        header: RequestHeader,
        request_id: str,
        data: Sequence[Buffer],
        headers: Mapping[str, str],
        max_unread_bytes: int = MAX_UNREAD_BYTES,
    ) -> AsyncGenerator[DecodedResponse, None]:
        """Execute a model and yield its responses, of which a decoupled model may have any number.

        The server waits while `max_unread_bytes` of them have arrived and are not taken.
        """
        message = messages.encode_request(header, request_id, data)
        block = self._header_block("ModelStreamInfer", None, headers)
        async with contextlib.aclosing(self._pool.stream(block, message, max_unread_bytes)) as received:
            async for each in received:
                yield *messages.decode_stream_response(each), ()

    async def is_live(self) -> bool:
        """Return whether the server responds."""
        return messages.decode_flag(await self._call("ServerLive"))

    async def is_ready(self) -> bool:
        """Return whether the server is ready."""
        return messages.decode_flag(await self._call("ServerReady"))

    async def is_model_ready(self, model: str, version: str) -> bool:
        """Return whether a model can execute requests."""
        try:
            return messages.decode_flag(await self._of_model("ModelReady", model, version))
        except InferError as error:
            if error.code is ErrorCode.NOT_FOUND:
                return False
            raise

    async def server_metadata(self) -> ServerMetadata:
        """Return name, version and extensions of the server."""
        return messages.decode_server_metadata(await self._call("ServerMetadata"))

    async def model_metadata(self, model: str, version: str) -> ModelMetadata:
        """Return inputs, outputs and versions of a model."""
        return messages.decode_model_metadata(await self._of_model("ModelMetadata", model, version))

    async def model_config(self, model: str, version: str) -> ModelConfig:
        """Return the complete configuration of a model."""
        return messages.decode_model_config(await self._of_model("ModelConfig", model, version))

    async def statistics(self, model: str, version: str) -> list[dict[str, Any]]:
        """Return counts and durations, a row per version; of all models for an empty name."""
        return messages.decode_statistics(await self._of_model("ModelStatistics", model, version))

    async def explain(self, model: str, version: str) -> dict[str, Any]:
        """Raise InferError(UNSUPPORTED): the protocol has no such call."""
        raise unsupported("explain is available over HTTP only; use an http:// address")

    def live(self, query: Mapping[str, str]) -> AsyncGenerator[LiveEvent, None]:
        """Raise InferError(UNSUPPORTED)."""
        raise unsupported("the live stream is available over HTTP only; use an http:// address")

    async def rollout(self, model: str) -> dict[str, Any]:
        """Raise InferError(UNSUPPORTED)."""
        raise _no_rollouts()

    async def change_rollout(self, model: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Raise InferError(UNSUPPORTED)."""
        raise _no_rollouts()

    async def end_rollout(self, model: str) -> dict[str, Any]:
        """Raise InferError(UNSUPPORTED)."""
        raise _no_rollouts()

    async def repository_index(self, *, only_ready: bool) -> list[IndexEntry]:
        """Return models, versions and states."""
        message = messages.encode_index_request(only_ready=only_ready)
        return messages.decode_repository_index(await self._call("RepositoryIndex", (message,)))

    async def load(self, model: str, config: str, files: Mapping[str, bytes]) -> None:
        """Load or reload a model."""
        await self._call("RepositoryModelLoad", (messages.encode_load(model, config, files),))

    async def unload(self, model: str, *, unload_dependents: bool) -> None:
        """Unload a model."""
        message = messages.encode_unload(model, unload_dependents=unload_dependents)
        await self._call("RepositoryModelUnload", (message,))

    async def register_system(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Register a part of a POSIX shared-memory object."""
        message = messages.encode_system_registration(name, key, offset, byte_size)
        await self._call("SystemSharedMemoryRegister", (message,))

    async def register_cuda(self, name: str, handle: bytes, device_id: int, byte_size: int) -> None:
        """Register an allocation of a GPU."""
        message = messages.encode_cuda_registration(name, handle, device_id, byte_size)
        await self._call("CudaSharedMemoryRegister", (message,))

    async def unregister_system(self, name: str) -> None:
        """Unregister a system region."""
        await self._call("SystemSharedMemoryUnregister", (messages.encode_region_name(name),))

    async def unregister_cuda(self, name: str) -> None:
        """Unregister a CUDA region."""
        await self._call("CudaSharedMemoryUnregister", (messages.encode_region_name(name),))

    def renew(self) -> None:
        """Open new connections for further calls; calls in flight go on."""
        self._pool.renew()

    def close(self) -> None:
        """Close all connections."""
        self._pool.close()

    async def _of_model(self, method: str, model: str, version: str) -> Buffer:
        return await self._call(method, (messages.encode_model_reference(model, version),))

    async def _call(self, method: str, message: Sequence[Buffer] = ()) -> Buffer:
        return (await self._exchange(method, message)).message

    async def _exchange(self, method: str, message: Sequence[Buffer]) -> CallResponse:
        return await self._pool.call(self._header_block(method), message)

    def _header_block(
        self, method: str, timeout_s: float | None = None, headers: Mapping[str, str] = NO_HEADERS
    ) -> bytes:
        block = self._blocks.get(method)
        if block is None:
            fields = request_fields(_SERVICE + method, self._authority, self._scheme, self._metadata)
            block = self._blocks[method] = encode_fields(fields)
        if timeout_s is not None:
            block += encode_fields(((b"grpc-timeout", encode_timeout(max(1, int(timeout_s * 1e9)))),))
        if headers:
            block += encode_fields(
                [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
            )
        return block


def _no_rollouts() -> InferError:
    return unsupported("rollouts are available over HTTP only; use an http:// address")
