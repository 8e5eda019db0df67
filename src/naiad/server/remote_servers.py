"""Other servers, which the models of `backend: "remote"` reach over gRPC."""

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from naiad.config.remote_settings import RemoteAccess
    from naiad.server.grpc_server import GrpcServer


class GrpcServers:
    """Makes connections to other servers; the port of the engine."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def connect(self, url: str, access: "RemoteAccess") -> "GrpcServer":
        """Return a server, without connecting yet. Reads the files of `access`.

        Raises InferError(INVALID_ARG) for a wrong address, and for a file that cannot be read.
        """
        from naiad.server.grpc_server import GrpcServer  # most servers have no such models
        from naiad.server.remote_access import tls_context, token_header

        return GrpcServer(url, self._loop, tls_context(access), token_header(access))
