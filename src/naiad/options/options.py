"""Server options: everything that `naiad serve` can be told.

The quantiles of Triton's summaries: `--metrics-config summary_quantiles=`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from naiad.options.access import AccessOptions, TlsOptions
from naiad.options.addresses import Place, is_one_port, is_unix
from naiad.options.host_policy import HostPolicy
from naiad.options.limits import DEFAULT_EXECUTE_TIMEOUT_S, RateLimitOptions
from naiad.options.trace import TraceOptions

DEFAULT_QUANTILES = "0.5:0.05,0.9:0.01,0.95:0.001,0.99:0.001,0.999:0.001"
"""Triton's `summary_quantiles`: quantile and allowed error. naiad's quantiles are exact, the errors go unused."""


def parse_quantiles(text: str) -> Sequence[float]:
    """Return the quantiles of `0.5:0.05,0.99:0.001`. Raises ValueError for what is no quantile."""
    quantiles = []
    for pair in text.split(","):
        quantile, colon, error = pair.partition(":")
        try:
            numbers = float(quantile), float(error)
        except ValueError:
            numbers = -1.0, -1.0
        if not colon or not all(0.0 <= number <= 1.0 for number in numbers):
            raise ValueError("is not of the form QUANTILE:ERROR,..., each from 0 to 1")
        quantiles.append(numbers[0])
    return quantiles


@dataclass(frozen=True, slots=True)
class LogOptions:
    """What is logged, where and in which form."""

    verbose: int = 0
    info: bool = True
    warning: bool = True
    error: bool = True
    format: str = "default"
    file: str = ""


@dataclass(frozen=True, slots=True)
class RepositoryOptions:
    """Where models come from and how they are loaded."""

    paths: Sequence[str] = ()
    exit_on_error: bool = True
    auto_complete: bool = True
    strict_readiness: bool = True
    ready_models: str = "all"
    model_config_name: str = ""
    cloud_cache_directory: str = ""
    """Where copies of models from object stores are kept; empty: as the environment says."""
    cloud_cache_max_bytes: int = 64 << 30
    control_mode: str = "none"
    """none: everything is loaded at start; poll: what changes later, too; explicit: what `load_models` names, and
    what commands ask for."""
    poll_s: int = 15
    settle_s: float = 2.0
    is_development: bool = False
    """Mode poll with intervals for somebody who edits and tries."""
    load_models: Sequence[str] = ()
    has_namespaces: bool = False
    """Models of equal names may be in several repositories."""
    load_thread_count: int = 4
    load_retry_count: int = 0

    @property
    def ready_rule(self) -> str:
        """The readiness rule after `strict_readiness` has had its say."""
        return self.ready_models if self.strict_readiness else "none"


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """The HTTP endpoint."""

    allow: bool = True
    address: str = "0.0.0.0"
    port: int = 8000
    reuse_port: bool = False
    max_input_bytes: int = 64 * 1024 * 1024
    """Largest JSON of a request, and largest raw body; Triton: a binary tensor tail may be larger."""
    max_connections: int = 16384
    max_body_bytes: int = 1 << 34
    max_decompressed_bytes: int = 0
    """Of a body that came compressed; 0 for `max_input_bytes`."""
    max_decompression_ratio: int = 200
    """Beyond 64 MiB."""
    max_header_bytes: int = 32768
    max_header_count: int = 128
    max_pipelined_requests: int = 32
    header_timeout_s: float = 30.0
    body_timeout_s: float = 60.0
    idle_timeout_s: float = 600.0
    header_forward_pattern: str = ""
    """Fields whose name has a match become parameters of the request; empty for none."""


@dataclass(frozen=True, slots=True)
class GrpcOptions:
    """The gRPC endpoint."""

    allow: bool = True
    address: str = "0.0.0.0"
    port: int = 8001
    reuse_port: bool = False
    max_connections: int = 16384
    max_concurrent_streams: int = 1024
    max_message_bytes: int = 2**31 - 1
    max_decompressed_bytes: int = 64 * 1024 * 1024
    max_decompression_ratio: int = 200
    """Beyond 64 MiB."""
    compression_level: str = "none"
    """Of the answers of inference: none, low, medium or high."""
    max_header_bytes: int = 65536
    max_header_count: int = 128
    max_resets_per_s: int = 1000
    max_control_frames_per_s: int = 200
    header_forward_pattern: str = ""
    keepalive_time_ms: int = 7_200_000
    keepalive_timeout_ms: int = 20_000
    keepalive_permit_without_calls: bool = False
    max_pings_without_data: int = 2
    min_recv_ping_interval_ms: int = 300_000
    max_ping_strikes: int = 2
    max_connection_age_ms: int = 0
    """0 for no limit."""
    max_connection_age_grace_ms: int = 0
    """0 for no limit."""


@dataclass(frozen=True, slots=True)
class MetricsOptions:
    """The metrics endpoint and what is measured."""

    allow: bool = True
    allow_cpu: bool = True
    allow_gpu: bool = True
    address: str = ""
    """Empty: the address of HTTP, or this machine alone when HTTP has a Unix socket."""
    port: int = 8002
    interval_ms: float = 2000.0
    settings: Mapping[str, str] = field(default_factory=dict)
    """`--metrics-config`: counter_latencies, histogram_latencies, summary_latencies, summary_quantiles."""


@dataclass(frozen=True, slots=True)
class SharedMemoryOptions:
    """Memory that clients share with the server."""

    is_allowed: bool = False
    """Clients may register regions."""
    max_regions: int = 1024


@dataclass(frozen=True, slots=True)
class OverloadOptions:
    """What is done when more requests come than a model can execute, where its configuration has no queue policy."""

    policy: str = "shed"
    """shed: the newest go first, the oldest are refused in the end; none: in order of arrival, as Triton."""
    target_ms: int = 500
    max_wait_ms: int = 10_000
    max_bytes: int = 0
    """0: half of the request bytes in flight that the server allows."""


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Everything that `naiad serve` can be told."""

    server_id: str = "triton"
    exit_timeout_s: int = 30
    execute_timeout_s: float = DEFAULT_EXECUTE_TIMEOUT_S
    drain_s: float = 0.0
    process_count: int = 1
    """Server processes behind the same ports."""
    unix_socket_mode: int = 0o600
    """Permissions of the Unix sockets that the server makes."""
    max_connections_per_address: int = 0
    """Over HTTP and gRPC together; 0 for no limit."""
    max_request_bytes: int = 0
    """Of bodies in flight, over all connections; 0 for a share of the memory."""
    log: LogOptions = field(default_factory=LogOptions)
    repository: RepositoryOptions = field(default_factory=RepositoryOptions)
    http: HttpOptions = field(default_factory=HttpOptions)
    grpc: GrpcOptions = field(default_factory=GrpcOptions)
    metrics: MetricsOptions = field(default_factory=MetricsOptions)
    trace: TraceOptions = field(default_factory=TraceOptions)
    http_tls: TlsOptions = field(default_factory=TlsOptions)
    grpc_tls: TlsOptions = field(default_factory=TlsOptions)
    access: AccessOptions = field(default_factory=AccessOptions)
    shared_memory: SharedMemoryOptions = field(default_factory=SharedMemoryOptions)
    rate_limit: RateLimitOptions = field(default_factory=RateLimitOptions)
    overload: OverloadOptions = field(default_factory=OverloadOptions)
    backend_config: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Backend name to settings; the settings for all backends under ""."""
    backend_directory: str = ""
    """Directory of Python-based backends; empty for none."""
    cache_config: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Name of the response cache to its settings."""
    host_policies: Mapping[str, HostPolicy] = field(default_factory=dict)
    """Name of a policy to the cores of the instances that have it."""
    cache_size_bytes: int = 0
    """The deprecated way to ask for a local cache; `cache_config` says so too."""
    no_effect: Sequence[str] = ()
    """Flags that were given and accepted, but have nothing to act on; the log says so once."""

    @property
    def most_connections(self) -> int:
        """How many connections the limits allow, over all ports; HTTP/2 has its limit on each."""
        http = self.http.max_connections + self.grpc.max_connections if self.http.allow else 0
        own_grpc_port = self.grpc.allow and not is_one_port(self.http_place, self.grpc_place)
        return http + (self.grpc.max_connections if own_grpc_port else 0)

    @property
    def http_place(self) -> Place:
        """Where HTTP listens."""
        http = self.http
        return Place("http", http.allow, http.address, http.port, self.http_tls, self.access.http_restricted)

    @property
    def grpc_place(self) -> Place:
        """Where gRPC listens."""
        grpc = self.grpc
        return Place("grpc", grpc.allow, grpc.address, grpc.port, self.grpc_tls, self.access.grpc_restricted)

    @property
    def metrics_place(self) -> Place:
        """Where the metrics are, after the defaults have had their say."""
        metrics, http = self.metrics, self.http.address
        return Place(
            "metrics", metrics.allow, metrics.address or ("127.0.0.1" if is_unix(http) else http), metrics.port
        )
