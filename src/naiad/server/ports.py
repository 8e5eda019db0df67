"""The ports of a server: what listens where, what it answers and whom."""

import asyncio
import ssl
from collections.abc import Callable

from naiad.config.options import GrpcOptions, HttpOptions, MetricsOptions, ServerOptions
from naiad.config.security import compile_header_pattern
from naiad.engine.inference import Engine
from naiad.frontend.access import Restrictions
from naiad.frontend.grpc_service import InferenceGrpcService
from naiad.frontend.header_forwarding import GRPC_FIELDS, HeaderForwarding
from naiad.frontend.http1 import Http1Server
from naiad.frontend.http1_limits import Http1Limits
from naiad.frontend.http2 import Http2Server
from naiad.frontend.metrics_route import MetricsRoute
from naiad.frontend.rest import RestApi
from naiad.server.endpoint import Address, Endpoint, bind
from naiad.server.tls import server_context
from naiad.wire.limits import Http2Limits


class Ports:
    """Opens the ports that the options ask for; each is bound, none listens yet. Raises InferError."""

    def __init__(self, options: ServerOptions, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self._options = options
        self._engine = engine
        self._loop = loop
        self.services: list[Endpoint] = []
        """In Triton's order of starting: gRPC, HTTP."""
        self.metrics: Endpoint | None = None
        if options.grpc.allow:
            self.services.append(self._grpc())
        if options.http.allow:
            self.services.append(self._http())
        if options.metrics.allow:
            self.metrics = self._metrics()

    def _grpc(self) -> Endpoint:
        options, access = self._options.grpc, self._options.access
        pattern = compile_header_pattern(options.header_forward_pattern)
        forwarding = HeaderForwarding(pattern, GRPC_FIELDS) if pattern else None
        server = Http2Server(
            InferenceGrpcService(self._engine, forwarding),
            self._loop,
            _http2_limits(options),
            max_connections=options.max_connections,
            rule=Restrictions(access.grpc_restricted, "protocol") if access.grpc_restricted else None,
        )
        tls = server_context(self._options.grpc_tls, "grpc", ("h2",))
        return _endpoint(_grpc_address(options), server, tls)

    def _http(self) -> Endpoint:
        options, access = self._options.http, self._options.access
        pattern = compile_header_pattern(options.header_forward_pattern)
        forwarding = HeaderForwarding(pattern) if pattern else None
        rest = RestApi(self._engine, max_input_bytes=options.max_input_bytes, forwarding=forwarding)
        router = rest.router()
        if access.http_restricted:
            router.restrict(Restrictions(access.http_restricted, "API"))
        server = Http1Server(router.handle, self._loop, _http1_limits(options))
        tls = server_context(self._options.http_tls, "http", ("http/1.1",))
        return _endpoint(_http_address(options), server, tls)

    def _metrics(self) -> Endpoint:
        server = Http1Server(MetricsRoute(self._engine.metrics_text).handle, self._loop)
        return _endpoint(_metrics_address(self._options.metrics, self._options.http), server)


def _endpoint(
    address: Address, connections: "Http1Server | Http2Server", tls: ssl.SSLContext | None = None
) -> Endpoint:
    protocol: Callable[[], asyncio.BaseProtocol] = connections.protocol
    return Endpoint(address, bind(address), connections, protocol, tls)


def _grpc_address(options: GrpcOptions) -> Address:
    return Address("GRPCInferenceService", "grpc", options.address, options.port, options.reuse_port)


def _http_address(options: HttpOptions) -> Address:
    return Address("HTTPService", "http", options.address, options.port, options.reuse_port)


def _metrics_address(options: MetricsOptions, http: HttpOptions) -> Address:
    return Address("Metrics Service", "metrics", options.address or http.address, options.port)


def _http1_limits(options: HttpOptions) -> Http1Limits:
    return Http1Limits(
        connections=options.max_connections,
        body_bytes=options.max_body_bytes,
        head_timeout_s=options.header_timeout_s,
        body_timeout_s=options.body_timeout_s,
        idle_timeout_s=options.idle_timeout_s,
    )


def _http2_limits(options: GrpcOptions) -> Http2Limits:
    return Http2Limits(concurrent_streams=options.max_concurrent_streams, message_bytes=options.max_message_bytes)
