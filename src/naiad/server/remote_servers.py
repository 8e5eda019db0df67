"""Other servers, which the models of `backend: "remote"` reach over gRPC."""

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from naiad.server.grpc_server import GrpcServer


class GrpcServers:
    """Makes connections to other servers; the port of the engine."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def connect(self, url: str) -> "GrpcServer":
        """Return a server, without connecting yet. Raises InferError(INVALID_ARG) for a wrong address."""
        from naiad.server.grpc_server import GrpcServer  # most servers have no such models

        return GrpcServer(url, self._loop)
