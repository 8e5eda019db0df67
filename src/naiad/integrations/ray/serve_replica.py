"""A replica of Ray Serve: a naiad server in its process, and requests of Serve's proxy passed on to it.

The server listens on a Unix socket in a directory of its own, which needs no port and no network. Requests and
responses pass unchanged, so all routes, headers and errors are as in `naiad serve`. A request that Serve cancels
closes its connection, which cancels it in the server.
"""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from naiad.client.connecting import ConnectionFailedError, Connector, parse_address
from naiad.client.transport.http1 import Http1Pool
from naiad.core.errors import InferError, unavailable
from naiad.files.temporary import OwnDirectory
from naiad.integrations.ray.queue_scaling import PENDING
from naiad.options.sources.command_line import parse_options
from naiad.server.hosted import HostedServer
from naiad.wire.http1_client import Http1ClientLimits, Response, encode_request

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response as ServeResponse

_CONNECT_S = 5.0
_MAX_CONNECTIONS = 1024
_OWN_FIELDS = {b"host", b"connection", b"keep-alive", b"content-length", b"transfer-encoding", b"te", b"upgrade"}
"""Fields of one connection (RFC 9110 7.6.1), and what is derived from the body."""
_OWN_RESPONSE_FIELDS = _OWN_FIELDS | {b"date"}
_OK = 200


class ServeReplica:
    """Made by Serve in the process of each replica."""

    def __init__(self, repository: str, flags: Sequence[str], *, has_model_ids: bool) -> None:
        """Start the server, and return when its models are loaded. Raises InferError if one does not load."""
        from ray import serve

        self._model_id = serve.get_multiplexed_model_id if has_model_ids else _no_model_id
        self._directory = OwnDirectory("ray")
        socket = self._directory.path / "http"
        own = (f"--http-address=unix:{socket}", "--allow-grpc=false", "--allow-metrics=false")
        self._server = HostedServer(parse_options([f"--model-repository={repository}", *flags, *own], {}))
        try:
            self._server.start()
        except BaseException:
            self._directory.remove()
            raise
        connector = Connector(parse_address(f"http+unix://{socket}"), None, _CONNECT_S)
        self._pool = Http1Pool(connector, _MAX_CONNECTIONS, Http1ClientLimits())

    async def __call__(self, request: "Request") -> "ServeResponse":
        """Answer a request of the proxy."""
        from starlette.responses import Response as ServeResponse

        if model_id := self._model_id():
            with contextlib.suppress(InferError):  # the server answers the request itself, with the reason
                await self.open_model(model_id)
        try:
            found = await self._send(
                request.method, target_of(request.scope), request.headers.raw, await request.body()
            )
        except ConnectionFailedError as error:
            return ServeResponse(error.message, 503)
        response = ServeResponse(bytes(found.body), found.status)
        response.raw_headers += [
            (name, value) for name, value in found.headers.items() if name not in _OWN_RESPONSE_FIELDS
        ]
        return response

    async def open_model(self, model_id: str) -> str:
        """Have the server load a model on demand. Raises InferError, so that Serve does not note it as loaded."""
        found = await self._send("GET", f"/v2/models/{quote(model_id, safe='')}", (), b"")
        if found.status != _OK:
            raise unavailable(f"model '{model_id}' cannot be loaded: {bytes(found.body).decode(errors='replace')}")
        return model_id

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Return what the number of replicas follows."""
        return {PENDING: float(self._server.pending_count)}

    async def check_health(self) -> None:
        """Raise InferError if the server has ended: Serve replaces the replica."""
        if not self._server.is_alive:
            raise unavailable("the server of the replica has ended")

    def __del__(self) -> None:
        if hasattr(self, "_pool"):
            self._server.stop()
            self._directory.remove()

    async def _send(self, method: str, target: str, fields: Iterable[tuple[bytes, bytes]], body: bytes) -> Response:
        headers = [
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in fields
            if name.lower() not in _OWN_FIELDS
        ]
        parts = encode_request(method, target, [("Host", "localhost"), *headers], [body] if body else [])
        return await self._pool.request(parts, is_idempotent=method in ("GET", "HEAD"))


def target_of(scope: Mapping[str, Any]) -> str:
    """Return path and query of a request for the server: without the prefix of the application."""
    path: str = (scope.get("raw_path") or scope["path"].encode()).decode("latin-1").partition("?")[0]
    prefix: str = scope.get("root_path", "").rstrip("/")
    if prefix and path.startswith(prefix):
        path = path[len(prefix) :]
    query = scope.get("query_string", b"").decode("latin-1")
    return f"{path or '/'}?{query}" if query else path or "/"


def _no_model_id() -> str:
    return ""
