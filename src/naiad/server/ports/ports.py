"""The ports of a server: addresses, protocols, access rules and handlers."""

import asyncio
import logging
import ssl
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from naiad.backend.cores import usable_cores
from naiad.core.errors import invalid_argument
from naiad.core.limits.request_limits import RequestBudget
from naiad.engine.engine import Engine
from naiad.frontend.access.access import AccessRule, AllOf, ApiKeyRule, Closed, Restrictions
from naiad.frontend.access.web_pages import CategoryOf, WebPageRule, allowed_hosts
from naiad.frontend.accounting.exchange import Accounting
from naiad.frontend.accounting.grpc import AccountedService, call_type_of
from naiad.frontend.accounting.http import HttpAccounting
from naiad.frontend.connections.endpoint import AddressLimit
from naiad.frontend.context import RejectEarly
from naiad.frontend.control.control import ControlCalls, Distribution
from naiad.frontend.dashboard.live_feed import AskLive, LiveFeed, ServerFacts
from naiad.frontend.grpc.compression import LEVELS, GrpcCompression
from naiad.frontend.grpc.service import InferenceGrpcService
from naiad.frontend.header_forwarding import GRPC_FIELDS, HeaderForwarding
from naiad.frontend.http1.connection import Http1Server
from naiad.frontend.http1.endpoint import Handle
from naiad.frontend.http2.connection import Http2Server
from naiad.frontend.http2.endpoint import RestSide
from naiad.frontend.long_work.slice_runner import SliceRunner
from naiad.frontend.long_work.thread_pool import ThreadPool
from naiad.frontend.one_port import OnePort
from naiad.frontend.rest.compression import ContentCodings
from naiad.frontend.rest.cors import Cors
from naiad.frontend.rest.metrics_port import Respond as RespondMetrics
from naiad.frontend.rest.metrics_port import in_slices, metrics_route
from naiad.frontend.rest.routes import RestApi
from naiad.frontend.router import Router
from naiad.operations.operation import MayBringFiles
from naiad.operations.repository import LOAD
from naiad.operations.table import served_operations
from naiad.options.flag import limits_of
from naiad.options.network.access_options import METRICS, RequiredHeader, TlsOptions, compile_header_pattern
from naiad.options.network.addresses import are_overheard, is_one_port, owner_of_tls, unsupported_reason
from naiad.options.network.endpoints import GrpcOptions, HttpOptions
from naiad.options.options import ServerOptions
from naiad.server.ports.endpoint import Connections, Service, ServiceEndpoint
from naiad.server.ports.file_watch import FileWatch, read_api_keys
from naiad.server.ports.listener import addresses
from naiad.server.ports.tls import load, server_context
from naiad.telemetry.logs.access_log import AccessLog
from naiad.telemetry.metrics.response_metrics import response_count
from naiad.wire.http1 import Http1Limits
from naiad.wire.http2.connection_limits import Http2Limits
from naiad.wire.http2.keepalive import KeepaliveRules

if TYPE_CHECKING:
    from naiad.frontend.clouds.clouds import VertexAi

_log = logging.getLogger(__name__)

_CONTROL_THREADS = 8
_METRICS_BODY_BYTES = 65536
"""Requests on the metrics port have no body."""

_ALPN = ("h2", "http/1.1")

OpenService: TypeAlias = Callable[[str, Connections, ssl.SSLContext | None], Service]
"""Opens the service of a port, from the prefix of its flags."""


class Ports:
    """Opens the ports from the options; each is bound, none listens yet. Raises InferError."""

    def __init__(
        self,
        options: ServerOptions,
        engine: Engine,
        loop: asyncio.AbstractEventLoop,
        budget: RequestBudget,
        distribution: Distribution | None = None,
        open_service: OpenService | None = None,
        respond_metrics: RespondMetrics | None = None,
        ask_live: AskLive | None = None,
    ) -> None:
        """One of several processes lets the other ones take part in operations (`distribution`), opens no port itself
        (`open_service`), and responds with the metrics (`respond_metrics`) and the live state (`ask_live`) of all.
        """
        self._open_service = open_service or self._open_port
        self._respond_metrics = respond_metrics or in_slices(engine.views.metrics_in_slices, loop.call_soon)
        self._budget = budget
        most = options.max_connections_per_address
        self._connections_of_addresses = AddressLimit(most) if most else None
        self._options = options
        self._addresses = addresses(options)
        self._engine = engine
        self._loop = loop
        self._watches: list[FileWatch] = []
        self._http2_servers: list[Http2Server] = []
        self._keys = self._watch_keys()
        self.accounting = self._open_accounting()
        """None without an access log and without API keys: requests then pay nothing for accounts."""
        self._side_threads = ThreadPool(loop, "side")
        """Threads for work of milliseconds: compression of large bodies."""
        self._index_threads = ThreadPool(loop, "index")
        """Threads for the repository index, which reads the stores: an unreachable one blocks no other work."""
        self._control_threads = ThreadPool(loop, "control", _CONTROL_THREADS)
        """Threads for work that may take minutes: loading and unloading."""
        self._codings = ContentCodings(
            self._side_threads.run,
            engine.models,
            options.http.max_decompressed_bytes or options.http.max_input_bytes,
            options.http.max_decompression_ratio,
        )
        self.control_calls = self._make_control_calls(distribution)
        self.live = LiveFeed(engine, _facts(options), ask_live, self._index_threads.run)
        """The live streams."""
        self._service = self._make_service()
        self._front = self._make_front()
        self.services: list[Service] = []
        """In Triton's start order: gRPC, HTTP, SageMaker, Vertex AI."""
        self._vertex_ai: VertexAi | None = None
        """Set if it is served."""
        self.metrics: Service | None = None
        self._open_services()

    def _open_services(self) -> None:
        options = self._options
        if is_one_port(options.http_place, options.grpc_place):
            self.services.append(self._one_port())
        else:
            if options.grpc.allow:
                self.services.append(self._grpc())
            if options.http.allow:
                self.services.append(self._http())
        if any(place.allow for place in options.cloud_places):
            self.services += self._clouds()
        if options.metrics.allow:
            self.metrics = self._metrics()
            self._router.metrics_port = self.metrics.port

    async def listen(self) -> None:
        """Start to accept connections, and to watch certificates and keys. Raises InferError.

        Ports that other servers may share stay closed until `listen_shared`.
        """
        for endpoint in self.endpoints():
            if not endpoint.is_shared:
                await endpoint.listen()
        for watch in self._watches:
            watch.start()

    async def listen_shared(self) -> None:
        """Start to accept connections on shared ports. Raises InferError.

        The kernel divides new connections among the servers of a port, so each of them must be ready.
        """
        for endpoint in self.endpoints():
            if endpoint.is_shared:
                await endpoint.listen()

    def check_models(self) -> None:
        """Raise InferError if an endpoint has no model to serve, after the models of the start have loaded."""
        if self._vertex_ai is not None:
            self._vertex_ai.check_model()

    def delay_control(self, delay_s: float) -> None:
        """Delay gRPC calls other than inference; for tests of client time-outs."""
        self._service.control_delay_s = delay_s

    def close(self) -> None:
        """Close everything after the services have drained."""
        if self.accounting is not None and self.accounting.log is not None:
            self.accounting.log.close()
        self._side_threads.close()
        self._index_threads.close()
        self._control_threads.close()
        for watch in self._watches:
            watch.stop()
        if self.metrics is not None:
            self.metrics.close()
            self.metrics.connections.abort()

    def abort(self) -> None:
        """Close everything at once: the start has failed."""
        for service in self.services:
            service.close()
            service.connections.abort()
        self.close()

    def endpoints(self) -> list[Service]:
        """Return every port."""
        return [*self.services, self.metrics] if self.metrics is not None else self.services

    # --- handlers -------------------------------------------------------------------------------------------------

    def _make_control_calls(self, distribution: Distribution | None) -> ControlCalls:
        loop = self._loop
        runner = SliceRunner(loop.call_soon, call_later=loop.call_later, response_count=response_count)
        return ControlCalls(self._engine, self._index_threads.run, self._control_threads.run, runner, distribution)

    def _make_service(self) -> InferenceGrpcService:
        options = self._options.grpc
        pattern = compile_header_pattern(options.header_forward_pattern)
        forwarding = HeaderForwarding(pattern, GRPC_FIELDS) if pattern else None
        level = LEVELS.get(options.compression_level)
        compression = None if level is None else GrpcCompression(level, self._side_threads.run)
        may_bring_files = self._may_bring_files(self._options.access.grpc_restricted)
        return InferenceGrpcService(self._engine, forwarding, compression, self.control_calls, may_bring_files)

    def _make_front(self) -> Router | Cors:
        options, access = self._options.http, self._options.access
        pattern = compile_header_pattern(options.header_forward_pattern)
        forwarding = HeaderForwarding(pattern) if pattern else None
        api = RestApi(
            self._engine,
            max_input_bytes=options.max_input_bytes,
            forwarding=forwarding,
            codings=self._codings,
            calls=self.control_calls,
            may_bring_files=self._may_bring_files(access.http_restricted),
            run_in_thread=self._index_threads.run,
            operations=served_operations(
                docs=options.docs, dashboard_page=options.serves_dashboard, tools=options.serves_mcp
            ),
            live=self.live,
            dashboard_is_local=options.dashboard_is_local,
            mcp_is_local=options.mcp_is_local,
        )
        router = self._router = api.router()
        rule = self._rule(access.http_restricted, "API")
        if rule is not None:
            router.restrict(rule)
        origins = access.http_cors_origins
        return Cors(origins, router.handle, router.reject) if origins else router

    # --- access ---------------------------------------------------------------------------------------------------

    def _watch_keys(self) -> ApiKeyRule | None:
        path = self._options.access.api_key_file
        if not path:
            return None
        rule = ApiKeyRule(read_api_keys(path))

        def reload() -> None:
            rule.keys = read_api_keys(path)
            if self.accounting is not None:
                self.accounting.keys_changed()
            for server in self._http2_servers:
                server.rule_changed()

        self._watches.append(FileWatch(self._loop, (path,), reload))
        if are_overheard(self._options.http_place, self._options.grpc_place):
            _log.warning("API keys travel in plain text on ports without TLS; see --http-use-ssl and --grpc-use-ssl")
        return rule

    def _open_accounting(self) -> Accounting | None:
        options = self._options.access_log
        if not options.file and self._keys is None:
            return None
        try:
            log = AccessLog(options, self._options.log.format) if options.file else None
        except OSError as error:
            raise invalid_argument(
                f"--access-log {options.file}: {error.strerror}; choose a file that can be written, or 'stderr'"
            ) from None
        return Accounting(log, self._keys, self._options.process_count)

    def _accounted(self, handle: Handle, reject: RejectEarly | None = None) -> tuple[Handle, RejectEarly | None]:
        """Return the handlers of a port with their accounts, if there are any."""
        if self.accounting is None:
            return handle, reject
        counted = HttpAccounting(self.accounting, handle, reject or (lambda context: None))
        return counted.handle, None if reject is None else counted.reject

    def _may_bring_files(self, restricted: Mapping[str, RequiredHeader]) -> MayBringFiles:
        """Return the rule for `file:` parameters of loads over a protocol with these restrictions."""
        is_allowed = self._options.access.allow_client_model_files or LOAD.category in restricted
        keys = self._keys
        return lambda: is_allowed or (keys is not None and not keys.is_open(LOAD.category))

    def _tls(self, options: TlsOptions, protocol: str, *alpn: str) -> ssl.SSLContext | None:
        context = server_context(options, protocol, alpn)
        if context is not None:
            # Check the files on a separate context: invalid ones would damage the one in use.
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

    # --- addresses ------------------------------------------------------------------------------------------------

    def _one_port(self) -> Service:
        owner = owner_of_tls(self._options.http_place, self._options.grpc_place)
        return self._open("http", self._both(""), self._tls(owner.tls, owner.name, *_ALPN))

    def _http(self) -> Service:
        connections = self._both(unsupported_reason(self._options.grpc_place, self._options.http_place))
        return self._open("http", connections, self._tls(self._options.http_tls, "http", *_ALPN))

    def _grpc(self) -> Service:
        server = self._http2("grpc", rest=not unsupported_reason(self._options.http_place, self._options.grpc_place))
        return self._open("grpc", server, self._tls(self._options.grpc_tls, "grpc", "h2"))

    def _clouds(self) -> Iterator[Service]:
        # Most servers do not need these modules.
        from naiad.frontend.clouds.clouds import VertexAi, azure_ml_router, sagemaker_router
        from naiad.frontend.clouds.multi_model import MultiModelRoutes

        options, engine, rest = self._options, self._engine, self._front
        if options.sagemaker.allow:
            reason = f"--processes={options.process_count}; use --processes=1" if options.process_count > 1 else ""
            directory = Path(options.sagemaker.base_directory).absolute() / "models"
            models = MultiModelRoutes(engine, self._control_threads.run, directory, reason)
            router = sagemaker_router(options.sagemaker, rest, models)
            rule = self._rule(options.access.http_restricted, "API")
            if rule is not None:
                router.restrict(rule)
            yield self._cloud("sagemaker", router)
        if options.vertex_ai.allow:
            self._vertex_ai = VertexAi(options.vertex_ai, engine, rest, self._metrics_route())
            yield self._cloud("vertex-ai", self._vertex_ai.router())
        if options.azure_ml.allow:
            yield self._cloud("azure-ml", azure_ml_router(options.azure_ml, engine, rest))

    def _cloud(self, flag: str, router: Router) -> Service:
        limits, per_address = _http1_limits(self._options.http), self._connections_of_addresses
        handle, reject = self._accounted(router.handle, router.reject)
        check = self._pages(flag, router.category).check
        server = Http1Server(handle, self._loop, limits, self._budget, reject, per_address, check)
        return self._open(flag, self._noting(server))

    def _noting(self, server: Http1Server) -> Http1Server:
        """Let a server write what it refuses to the access log as well."""
        if self.accounting is not None:
            server.note_invalid = self.accounting.note_invalid
        return server

    def _metrics_route(self) -> Handle:
        return metrics_route(self._respond_metrics, self._keys)

    def _metrics(self) -> Service:
        handle, _ = self._accounted(self._codings.wrap_responses(self._metrics_route()))
        limits = Http1Limits(body_bytes=_METRICS_BODY_BYTES)
        pages = self._pages("metrics", lambda path: METRICS)
        server = Http1Server(handle, self._loop, limits, self._budget, check=pages.check)
        return self._open("metrics", self._noting(server))

    def _open(self, flag: str, connections: Connections, tls: ssl.SSLContext | None = None) -> Service:
        return self._open_service(flag, connections, tls)

    def _open_port(self, flag: str, connections: Connections, tls: ssl.SSLContext | None) -> Service:
        return ServiceEndpoint(self._addresses[flag], connections, tls)

    def _both(self, grpc_unsupported_reason: str) -> OnePort:
        """Return the connections for REST over both versions of HTTP, and for gRPC unless a reason excludes it."""
        limits = _http1_limits(self._options.http)
        handle, reject = self._accounted(self._front.handle, self._front.reject)
        http1 = Http1Server(
            handle,
            self._loop,
            limits,
            self._budget,
            reject,
            self._connections_of_addresses,
            self._pages("http", self._router.category).check,
        )
        http2 = self._http2("http", rest=True, grpc_unsupported_reason=grpc_unsupported_reason)
        return OnePort(self._noting(http1), http2)

    def _pages(self, flag: str, category_of: CategoryOf) -> WebPageRule:
        """Return the rule of an address for requests of web pages."""
        access = self._options.access
        hosts = allowed_hosts(self._addresses[flag].host, access.http_allowed_hosts)
        return WebPageRule(category_of, access.http_cors_origins, hosts)

    def _http2(self, flag: str, *, rest: bool, grpc_unsupported_reason: str = "") -> Http2Server:
        options = self._options
        if grpc_unsupported_reason:
            rule: AccessRule | None = Closed(grpc_unsupported_reason)
        else:
            rule = self._rule(options.access.grpc_restricted, "protocol")
        handle, reject = self._accounted(self._front.handle, self._front.reject)
        rest_side = RestSide(handle, options.http.max_body_bytes, reject)
        counted = self.accounting
        server = Http2Server(
            self._service if counted is None else AccountedService(counted, self._service),
            self._loop,
            _http2_limits(options.http, options.grpc),
            addresses=self._connections_of_addresses,
            rule=rule,
            run_in_thread=self._side_threads.run,
            rest=rest_side if rest else None,
            budget=self._budget,
        )
        server.pages = self._pages(flag, self._router.category)
        if counted is not None:
            server.call_type = call_type_of(counted)
            rest_side.note_invalid = counted.note_invalid
        self._http2_servers.append(server)
        return server


def _facts(options: ServerOptions) -> ServerFacts:
    repository = options.repository
    mode = "poll" if repository.is_development else repository.control_mode
    return ServerFacts(options.process_count, usable_cores() * options.process_count, mode)


def _http1_limits(options: HttpOptions) -> Http1Limits:
    target_bytes = min(options.max_header_bytes, Http1Limits().target_bytes)
    return Http1Limits(target_bytes=target_bytes, **limits_of(options, Http1Limits))


def _http2_limits(http: HttpOptions, grpc: GrpcOptions) -> Http2Limits:
    """Return the limits of connections for gRPC and REST: options of gRPC, and of HTTP where gRPC has none."""
    return Http2Limits(
        resets_burst=20 * grpc.max_resets_per_s,
        control_frames_burst=10 * grpc.max_control_frames_per_s,
        keepalive=_keepalive_rules(grpc),
        **{**limits_of(http, Http2Limits), **limits_of(grpc, Http2Limits)},
    )


def _keepalive_rules(options: GrpcOptions) -> KeepaliveRules:
    return KeepaliveRules(
        time_s=options.keepalive_time_ms / 1e3,
        timeout_s=options.keepalive_timeout_ms / 1e3,
        permits_without_calls=options.keepalive_permit_without_calls,
        pings_without_data=options.max_pings_without_data,
        peer_interval_s=options.min_recv_ping_interval_ms / 1e3,
        peer_strikes=options.max_ping_strikes,
        age_s=options.max_connection_age_ms / 1e3,
        age_grace_s=options.max_connection_age_grace_ms / 1e3,
    )
