"""The calls over HTTP/1.1: KServe's REST endpoints with binary tensor data."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from naiad.client.connecting import DecodedResponse
from naiad.client.live_events import LiveEvent, live_events
from naiad.client.transport.http1 import Http1Pool
from naiad.config.forms.json_form import config_of_server
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import ErrorCode, InferError, internal, unsupported
from naiad.core.model import IndexEntry, ModelMetadata, ServerMetadata
from naiad.core.request import RequestHeader
from naiad.core.tensor import Buffer
from naiad.protocol.json import client as bodies
from naiad.protocol.status_table import NOT_BEGUN, code_of_http
from naiad.wire.http1_client import Response, encode_request

_HEADER_LENGTH = "Inference-Header-Content-Length"
_OK = 200
_SERVICE_UNAVAILABLE, _BAD_REQUEST, _NOT_FOUND = 503, 400, 404


class RestCalls:
    """Calls over a pool of connections; `headers` are sent with each.

    Each raises InferError with the server's code and message.
    """

    def __init__(self, pool: Http1Pool, authority: str, headers: Mapping[str, str]) -> None:
        self._pool = pool
        self._headers = [("Host", authority), *headers.items()]

    async def infer(
        self,
        header: RequestHeader,
        request_id: str,
        data: Sequence[Buffer],
        timeout_s: float | None,
        headers: Mapping[str, str],
    ) -> DecodedResponse:
        """Execute a model; `headers` are further fields of this call.

        HTTP carries no deadline: the server cancels the request when the connection closes.
        """
        body, json_length = bodies.encode_request(header, request_id, data)
        path = _model_path(header.model_name, header.model_version) + "/infer"
        response = await self._send("POST", path, body, ((_HEADER_LENGTH, str(json_length)), *headers.items()))
        length = response.headers.get(b"inference-header-content-length")
        if length is not None and not (length.isdigit() and len(length) < 20):
            raise internal(f"the response has an invalid {_HEADER_LENGTH}")
        decoded = bodies.decode_response(response.body, None if length is None else int(length))
        return *decoded, response.headers.items()

    def infer_stream(
        self, header: RequestHeader, request_id: str, data: Sequence[Buffer], headers: Mapping[str, str]
    ) -> AsyncGenerator[DecodedResponse, None]:
        """Raise InferError(UNSUPPORTED): the protocol has no such call."""
        raise unsupported("responses of decoupled models are available over gRPC only; use a grpc:// address")

    async def is_live(self) -> bool:
        """Return whether the server responds."""
        return await self._is_ok("/v2/health/live")

    async def is_ready(self) -> bool:
        """Return whether the server is ready."""
        return await self._is_ok("/v2/health/ready")

    async def is_model_ready(self, model: str, version: str) -> bool:
        """Return whether a model can execute requests."""
        return await self._is_ok(_model_path(model, version) + "/ready")

    async def server_metadata(self) -> ServerMetadata:
        """Return name, version and extensions of the server."""
        return bodies.decode_server_metadata(await self._get("/v2"))

    async def model_metadata(self, model: str, version: str) -> ModelMetadata:
        """Return inputs, outputs and versions of a model."""
        return bodies.decode_model_metadata(await self._get(_model_path(model, version)))

    async def model_config(self, model: str, version: str) -> ModelConfig:
        """Return the complete configuration of a model."""
        return config_of_server(bodies.decode_object(await self._get(_model_path(model, version) + "/config")))

    async def statistics(self, model: str, version: str) -> list[dict[str, Any]]:
        """Return counts and durations, a row per version; of all models for an empty name."""
        path = _model_path(model, version) if model else "/v2/models"
        return bodies.decode_statistics(await self._get(path + "/stats"))

    async def explain(self, model: str, version: str) -> dict[str, Any]:
        """Return how requests of a model are scheduled."""
        return bodies.decode_object(await self._get(_model_path(model, version) + "/explain"))

    async def rollout(self, model: str) -> dict[str, Any]:
        """Return the rollout of a model and its figures."""
        return bodies.decode_object(await self._get(_model_path(model, "") + "/rollout"))

    async def change_rollout(self, model: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Change the rollout of a model and return it."""
        body = bodies.encode_object(fields)
        return bodies.decode_object((await self._send("POST", _model_path(model, "") + "/rollout", (body,))).body)

    async def end_rollout(self, model: str) -> dict[str, Any]:
        """End the rollout of a model and return what is left of it."""
        return bodies.decode_object((await self._send("DELETE", _model_path(model, "") + "/rollout")).body)

    def live(self, query: Mapping[str, str]) -> AsyncGenerator[LiveEvent, None]:
        """Yield the events of the live stream."""
        headers = [*self._headers, ("Accept", "text/event-stream")]
        return live_events(self._pool.connector, headers, query)

    async def repository_index(self, *, only_ready: bool) -> list[IndexEntry]:
        """Return models, versions and states."""
        body = bodies.encode_index_request(only_ready=only_ready)
        return bodies.decode_repository_index((await self._send("POST", "/v2/repository/index", (body,))).body)

    async def load(self, model: str, config: str, files: Mapping[str, bytes]) -> None:
        """Load or reload a model."""
        await self._send("POST", _repository_path(model) + "/load", (bodies.encode_load(config, files),))

    async def unload(self, model: str, *, unload_dependents: bool) -> None:
        """Unload a model."""
        body = bodies.encode_unload(unload_dependents=unload_dependents)
        await self._send("POST", _repository_path(model) + "/unload", (body,))

    async def register_system(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Register a part of a POSIX shared-memory object."""
        body = bodies.encode_system_registration(key, offset, byte_size)
        await self._send("POST", _region_path("system", name) + "/register", (body,))

    async def register_cuda(self, name: str, handle: bytes, device_id: int, byte_size: int) -> None:
        """Register an allocation of a GPU."""
        body = bodies.encode_cuda_registration(handle, device_id, byte_size)
        await self._send("POST", _region_path("cuda", name) + "/register", (body,))

    async def unregister_system(self, name: str) -> None:
        """Unregister a system region."""
        await self._send("POST", _region_path("system", name) + "/unregister")

    async def unregister_cuda(self, name: str) -> None:
        """Unregister a CUDA region."""
        await self._send("POST", _region_path("cuda", name) + "/unregister")

    def close(self) -> None:
        """Close all connections."""
        self._pool.close()

    async def _get(self, path: str) -> Buffer:
        return (await self._send("GET", path)).body

    async def _is_ok(self, path: str) -> bool:
        response = await self._exchange("GET", path)
        if response.status in (_OK, _SERVICE_UNAVAILABLE, _BAD_REQUEST, _NOT_FOUND):
            return response.status == _OK
        raise _failure(response)

    async def _send(
        self, method: str, path: str, body: Sequence[Buffer] = (), headers: Sequence[tuple[str, str]] = ()
    ) -> Response:
        """Return a response with status 200. Raises InferError for any other."""
        response = await self._exchange(method, path, body, headers)
        if response.status != _OK:
            raise _failure(response)
        return response

    async def _exchange(
        self, method: str, path: str, body: Sequence[Buffer] = (), headers: Sequence[tuple[str, str]] = ()
    ) -> Response:
        request = encode_request(method, path, (*self._headers, *headers), body)
        return await self._pool.request(request, is_idempotent=method == "GET")


def _failure(response: Response) -> InferError:
    message = bodies.decode_error(response.body) or f"the server answered with HTTP status {response.status}"
    error = InferError(code_of_http(response.status), message)
    if error.code is ErrorCode.UNAVAILABLE and response.headers.get(NOT_BEGUN):
        error.has_begun = False
    return error


def _model_path(model: str, version: str) -> str:
    path = f"/v2/models/{quote(model, safe='')}"
    return f"{path}/versions/{quote(version, safe='')}" if version else path


def _region_path(kind: str, name: str) -> str:
    return f"/v2/{kind}sharedmemory/region/{quote(name, safe='')}"


def _repository_path(model: str) -> str:
    return f"/v2/repository/models/{quote(model, safe='')}"
