"""The ports of a server: what listens where, what it answers and whom."""

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping
from typing import Protocol

from naiad.config.options import GrpcOptions, HttpOptions, ServerOptions
from naiad.config.security import RequiredHeader, TlsOptions, compile_header_pattern
from naiad.engine.inference import Engine
from naiad.frontend.access import AccessRule, AllOf, Restrictions
from naiad.frontend.api_key_rule import ApiKeyRule
from naiad.frontend.cors import Cors
from naiad.frontend.grpc_service import InferenceGrpcService
from naiad.frontend.header_forwarding import GRPC_FIELDS, HeaderForwarding
from naiad.frontend.http1 import Http1Server
from naiad.frontend.http1_limits import Http1Limits
from naiad.frontend.http2 import Http2Server
from naiad.frontend.metrics_route import MetricsRoute
from naiad.frontend.rest import RestApi
from naiad.frontend.router import Router
from naiad.server.addresses import addresses
from naiad.server.api_keys import read_api_keys
from naiad.server.endpoint import Connections, Endpoint, Service, bind
from naiad.server.file_watch import FileWatch
from naiad.server.tls import load, server_context
from naiad.wire.limits import Http2Limits

_log = logging.getLogger(__name__)


class Group(Protocol):
    """What is different for a process that serves the ports together with others."""

    def service(
        self,
        flag: str,
        connections: Connections,
        protocol: Callable[[], asyncio.BaseProtocol],
        tls: ssl.SSLContext | None,
    ) -> Service:
        """Return the service of a port whose connections come from somewhere else."""

    def grpc_service(self, forwarding: HeaderForwarding | None) -> InferenceGrpcService:
        """Return the gRPC service."""

    def share(self, router: Router, alone: Router) -> None:
        """Have the routes of `router` answer for all processes; `alone` is an equal one that nobody reaches."""

    def metrics_route(self, rule: AccessRule | None) -> MetricsRoute:
        """Return what answers on the metrics port."""


class Ports:
    """Opens the ports that the options ask for; each is bound, none listens yet. Raises InferError."""

    def __init__(
        self,
        options: ServerOptions,
        engine: Engine,
        loop: asyncio.AbstractEventLoop,
        group: Group | None = None,
    ) -> None:
        """`group` is given when this process is not the only one behind the ports."""
        self._options = options
        self._group = group
        self._addresses = addresses(options)
        self._engine = engine
        self._loop = loop
        self._watches: list[FileWatch] = []
        self._http2_servers: list[Http2Server] = []
        self._keys = self._watch_keys()
        self.services: list[Service] = []
        """In Triton's order of starting: gRPC, HTTP."""
        self.metrics: Service | None = None
        if options.grpc.allow:
            self.services.append(self._grpc())
        if options.http.allow:
            self.services.append(self._http())
        if options.metrics.allow:
            self.metrics = self._metrics()

    async def listen(self) -> None:
        """Begin to accept, and to look for changes of certificates and keys. Raises InferError."""
        for endpoint in self._all():
            await endpoint.listen()
        for watch in self._watches:
            watch.start()

    def close(self) -> None:
        """Close what is still open once the services have drained."""
        for watch in self._watches:
            watch.stop()
        if self.metrics is not None:
            self.metrics.stop_listening()
            self.metrics.connections.abort()

    def _all(self) -> list[Service]:
        return [*self.services, self.metrics] if self.metrics is not None else self.services

    def _watch_keys(self) -> ApiKeyRule | None:
        path = self._options.access.api_key_file
        if not path:
            return None
        rule = ApiKeyRule(read_api_keys(path))

        def reload() -> None:
            rule.keys = read_api_keys(path)
            for server in self._http2_servers:
                server.rule_changed()

        self._watches.append(FileWatch(self._loop, (path,), reload))
        if not (self._options.http_tls.is_on and self._options.grpc_tls.is_on):
            _log.warning("API keys travel in plain text on ports without TLS; see --http-use-ssl and --grpc-use-ssl")
        return rule

    def _tls(self, options: TlsOptions, protocol: str, *alpn: str) -> ssl.SSLContext | None:
        context = server_context(options, protocol, alpn)
        if context is not None:
            # Checked on a context of its own: files that do not fit would spoil the one in use.
            def reload() -> None:
                server_context(options, protocol, alpn)
                load(context, options, protocol)

            self._watches.append(FileWatch(self._loop, options.files, reload))
        return context

    def _rule(self, restricted: Mapping[str, RequiredHeader], noun: str) -> AccessRule | None:
        rules: list[AccessRule] = [] if self._keys is None else [self._keys]
        if restricted:
            rules.append(Restrictions(restricted, noun))
        return AllOf(*rules) if rules else None

    def _grpc(self) -> Service:
        options = self._options.grpc
        pattern = compile_header_pattern(options.header_forward_pattern)
        forwarding = HeaderForwarding(pattern, GRPC_FIELDS) if pattern else None
        group = self._group
        server = Http2Server(
            InferenceGrpcService(self._engine, forwarding) if group is None else group.grpc_service(forwarding),
            self._loop,
            _http2_limits(options),
            max_connections=options.max_connections,
            rule=self._rule(self._options.access.grpc_restricted, "protocol"),
        )
        self._http2_servers.append(server)
        return self._service("grpc", server, self._tls(self._options.grpc_tls, "grpc", "h2"))

    def _http(self) -> Service:
        options = self._options.http
        pattern = compile_header_pattern(options.header_forward_pattern)
        forwarding = HeaderForwarding(pattern) if pattern else None
        rest = RestApi(self._engine, max_input_bytes=options.max_input_bytes, forwarding=forwarding)
        router = rest.router()
        if self._group is not None:
            self._group.share(router, rest.router())
        rule = self._rule(self._options.access.http_restricted, "API")
        if rule is not None:
            router.restrict(rule)
        origins = self._options.access.http_cors_origins
        handle = Cors(origins, router.handle).handle if origins else router.handle
        server = Http1Server(handle, self._loop, _http1_limits(options))
        return self._service("http", server, self._tls(self._options.http_tls, "http", "http/1.1"))

    def _metrics(self) -> Service:
        if self._group is None:
            route = MetricsRoute(self._engine.metrics_text, self._keys)
        else:
            route = self._group.metrics_route(self._keys)
        return self._service("metrics", Http1Server(route.handle, self._loop))

    def _service(self, flag: str, server: "Http1Server | Http2Server", tls: ssl.SSLContext | None = None) -> Service:
        protocol: Callable[[], asyncio.BaseProtocol] = server.protocol
        if self._group is not None:
            return self._group.service(flag, server, protocol, tls)
        address = self._addresses[flag]
        return Endpoint(address, bind(address), server, protocol, tls)


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
