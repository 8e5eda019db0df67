"""Options of the three endpoints: HTTP, gRPC and metrics."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from naiad.options.flag import ValueKind, listed, option, parse_boolean

_ADDRESS_FORMS = ": a name, an IPv4 or IPv6 address (:: for all), or unix:/path (naiad) for a Unix socket."
DEFAULT_QUANTILES = "0.5:0.05,0.9:0.01,0.95:0.001,0.99:0.001,0.999:0.001"
"""Triton's `summary_quantiles`: quantile and allowed error. naiad's quantiles are exact, the errors are ignored."""
METRICS_SETTINGS = ("counter_latencies", "histogram_latencies", "summary_latencies", "summary_quantiles")
"""The settings of `--metrics-config`."""


def parse_quantiles(text: str) -> Sequence[float]:
    """Return the quantiles of `0.5:0.05,0.99:0.001`. Raises ValueError for an invalid quantile."""
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


def _metrics_settings(texts: Sequence[str]) -> dict[str, str]:
    settings: dict[str, str] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if name not in METRICS_SETTINGS:
            raise ValueError(f"unknown setting '{name}'; known are {listed(METRICS_SETTINGS)}")
        try:
            if name == "summary_quantiles":
                parse_quantiles(value)
            else:
                value = str(parse_boolean(value)).lower()
        except ValueError as error:
            raise ValueError(f"{name}: '{value}' {error}") from None
        settings[name] = value
    return settings


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """The HTTP endpoint."""

    allow: bool = option(True, "allow-http", "Serve HTTP.")
    address: str = option(
        "0.0.0.0",
        "http-address",
        f"Address to listen on for HTTP{_ADDRESS_FORMS}",
        kind=ValueKind.ADDRESS,
        summary="Address for HTTP, or unix:/path.",
    )
    port: int = option(
        8000, "http-port", "Port for HTTP; 0 for any.", minimum=0, maximum=65535, summary="Port for HTTP; 0 for any."
    )
    reuse_port: bool = option(False, "reuse-http-port", "Let several servers share the HTTP port.")
    max_input_bytes: int = option(
        64 * 1024 * 1024,
        "http-max-input-size",
        "Maximum size of JSON and raw bodies in bytes; binary tensors may be larger.",
        minimum=1,
        summary="Bytes of a JSON or raw body.",
    )
    max_connections: int = option(
        16384,
        "http-max-connections",
        "naiad: maximum of open HTTP connections. A further one replaces the longest idle connection, or gets 503.",
        minimum=1,
        limit="connections",
    )
    max_body_bytes: int = option(
        1 << 34,
        "http-max-body-size",
        "naiad: maximum size of a request body in bytes, including binary tensors; larger ones get 413.",
        minimum=1,
        limit="body_bytes",
    )
    max_decompressed_bytes: int = option(
        0,
        "http-max-decompressed-size",
        "naiad: maximum size in bytes of a decompressed request body; larger ones get 400.",
        default_text="--http-max-input-size",
        minimum=1,
    )
    max_decompression_ratio: int = option(
        200,
        "http-max-decompression-ratio",
        "naiad: maximum ratio of decompressed to compressed size above 64 MiB; larger ones get 400.",
        minimum=1,
    )
    max_header_bytes: int = option(
        32768,
        "http-max-header-size",
        "naiad: maximum size of request line and headers over HTTP/1.1, in bytes; larger ones get 431.",
        minimum=1024,
        maximum=1 << 24,
        limit="head_bytes",
    )
    max_header_count: int = option(
        128,
        "http-max-header-count",
        "naiad: maximum number of headers over HTTP/1.1; more get 431.",
        minimum=8,
        limit="header_count",
    )
    max_pipelined_requests: int = option(
        32,
        "http-max-pipelined-requests",
        "naiad: maximum of pipelined requests per connection; the server then stops reading.",
        minimum=1,
        limit="pipelined_requests",
    )
    header_timeout_s: float = option(
        30.0,
        "http-header-timeout-seconds",
        "naiad: maximum time from the first byte of a request to the end of its headers; slower ones get 408.",
        minimum=0.1,
        limit="head_timeout_s",
    )
    body_timeout_s: float = option(
        60.0,
        "http-body-timeout-seconds",
        "naiad: how many seconds a body or gRPC message may lag behind 16 KiB per second; slower ones get 408.",
        minimum=0.1,
        limit="body_timeout_s",
    )
    idle_timeout_s: float = option(
        600.0,
        "http-idle-timeout-seconds",
        "naiad: maximum idle time of a connection between requests.",
        minimum=0.1,
        limit="idle_timeout_s",
    )
    docs: bool = option(
        True, "http-docs", "naiad: serve a page for browsers at /docs and its OpenAPI document at /openapi.json."
    )
    dashboard: bool | None = option(
        None,
        "allow-dashboard",
        "naiad: serve the dashboard, a page for browsers, at /.",
        kind=ValueKind.BOOLEAN,
        default_text="to clients of this machine",
    )
    mcp: bool | None = option(
        None,
        "allow-mcp",
        "naiad: serve models as tools of language models, by the Model Context Protocol, at /mcp.",
        kind=ValueKind.BOOLEAN,
        default_text="to clients of this machine",
    )
    header_forward_pattern: str = option(
        "",
        "http-header-forward-pattern",
        "Pass HTTP headers whose names match this regular expression to the model as request parameters. Case"
        " does not matter unless it begins with (?-i).",
    )

    @property
    def serves_dashboard(self) -> bool:
        """Whether the dashboard is served, to any client."""
        return self.dashboard is not False

    @property
    def dashboard_is_local(self) -> bool:
        """Whether only clients of this machine may see the page and what the log says: unless the flag is true."""
        return self.dashboard is not True

    @property
    def serves_mcp(self) -> bool:
        """Whether models are served as tools, to any client."""
        return self.mcp is not False

    @property
    def mcp_is_local(self) -> bool:
        """Whether only clients of this machine may use models as tools: unless the flag is true."""
        return self.mcp is not True


@dataclass(frozen=True, slots=True)
class GrpcOptions:
    """The gRPC endpoint."""

    allow: bool = option(True, "allow-grpc", "Serve gRPC.")
    address: str = option(
        "0.0.0.0",
        "grpc-address",
        f"Address to listen on for gRPC{_ADDRESS_FORMS}",
        kind=ValueKind.ADDRESS,
        summary="Address for gRPC, or unix:/path.",
    )
    port: int = option(
        8001, "grpc-port", "Port for gRPC; 0 for any.", minimum=0, maximum=65535, summary="Port for gRPC; 0 for any."
    )
    reuse_port: bool = option(False, "reuse-grpc-port", "Let several servers share the gRPC port.")
    max_connections: int = option(
        16384,
        "grpc-max-connections",
        "naiad: maximum of open HTTP/2 connections per port. A further one replaces the longest idle "
        "connection, or gets GOAWAY.",
        minimum=1,
        limit="connections",
    )
    max_concurrent_streams: int = option(
        1024,
        "grpc-max-concurrent-streams",
        "naiad: maximum of concurrent calls per HTTP/2 connection, gRPC and REST.",
        minimum=1,
        limit="concurrent_streams",
    )
    max_message_bytes: int = option(
        2**31 - 1,
        "grpc-max-message-size",
        "naiad: maximum size of a gRPC message in bytes.",
        minimum=1,
        maximum=2**31 - 1,
        limit="message_bytes",
    )
    max_decompressed_bytes: int = option(
        64 * 1024 * 1024,
        "grpc-max-decompressed-size",
        "naiad: maximum size in bytes of a decompressed message; larger ones get RESOURCE_EXHAUSTED.",
        minimum=1,
        maximum=2**31 - 1,
        limit="decompressed_bytes",
    )
    max_decompression_ratio: int = option(
        200,
        "grpc-max-decompression-ratio",
        "naiad: maximum ratio of decompressed to compressed size above 64 MiB; larger ones get RESOURCE_EXHAUSTED.",
        minimum=1,
        limit="decompression_ratio",
    )
    compression_level: str = option(
        "none",
        "grpc-infer-response-compression-level",
        "Compression of inference responses for clients that accept it.",
        choices=("none", "low", "medium", "high"),
    )
    max_header_bytes: int = option(
        65536,
        "grpc-max-header-size",
        "naiad: maximum size of the headers over HTTP/2 in bytes, counting 32 more for each; "
        "larger ones get RESOURCE_EXHAUSTED or 431.",
        minimum=1024,
        maximum=1 << 24,
        limit="header_list_bytes",
    )
    max_header_count: int = option(
        128,
        "grpc-max-header-count",
        "naiad: maximum number of headers over HTTP/2, including pseudo-headers; more get RESOURCE_EXHAUSTED or 431.",
        minimum=16,
        maximum=65536,
        limit="header_fields",
    )
    max_resets_per_s: int = option(
        1000,
        "grpc-max-resets-per-second",
        "naiad: maximum of calls per second that a client may reset on an HTTP/2 connection, with bursts of "
        "20 times as many; more close the connection.",
        minimum=1,
        limit="resets_per_s",
    )
    max_control_frames_per_s: int = option(
        200,
        "grpc-max-control-frames-per-second",
        "naiad: maximum of PING, SETTINGS and empty frames per second on an HTTP/2 connection, besides its calls,"
        " with bursts of 10 times as many; more close it. 16 WINDOW_UPDATE or small DATA frames count as one.",
        minimum=1,
        limit="control_frames_per_s",
    )
    header_forward_pattern: str = option(
        "",
        "grpc-header-forward-pattern",
        "Pass gRPC metadata whose names match this regular expression to the model as request parameters. "
        "Case does not matter unless it begins with (?-i).",
    )
    keepalive_time_ms: int = option(
        7200000,
        "grpc-keepalive-time",
        "Idle milliseconds after which the server sends a PING. Precision: one second.",
        minimum=1,
    )
    keepalive_timeout_ms: int = option(
        20000,
        "grpc-keepalive-timeout",
        "Milliseconds to wait for data after a PING before the server closes the connection.",
        minimum=1,
    )
    keepalive_permit_without_calls: bool = option(
        False, "grpc-keepalive-permit-without-calls", "Send and allow PINGs on connections without calls."
    )
    max_pings_without_data: int = option(
        2,
        "grpc-http2-max-pings-without-data",
        "Maximum of consecutive PINGs without other data sent; 0: no limit.",
        minimum=0,
    )
    min_recv_ping_interval_ms: int = option(
        300000,
        "grpc-http2-min-recv-ping-interval-without-data",
        "Minimum interval in milliseconds between PINGs of a client while the server sends no response.",
        minimum=0,
    )
    max_ping_strikes: int = option(
        2,
        "grpc-http2-max-ping-strikes",
        "Number of PINGs that may arrive too early before the server closes the connection; 0: no limit.",
        minimum=0,
    )
    max_connection_age_ms: int = option(
        0,
        "grpc-max-connection-age",
        "Milliseconds, plus or minus a tenth, after which the server asks a client to reconnect; 0: never.",
        minimum=0,
    )
    max_connection_age_grace_ms: int = option(
        0, "grpc-max-connection-age-grace", "Milliseconds that calls may continue after that; 0: no limit.", minimum=0
    )


@dataclass(frozen=True, slots=True)
class MetricsOptions:
    """The metrics endpoint and the measured metrics."""

    allow: bool = option(True, "allow-metrics", "Serve Prometheus metrics.", summary="Serve Prometheus metrics.")
    allow_cpu: bool = option(True, "allow-cpu-metrics", "Collect metrics of CPU and memory.")
    allow_gpu: bool = option(
        True, "allow-gpu-metrics", "Collect metrics of NVIDIA GPUs, if there is a GPU with its driver."
    )
    address: str = option(
        "",
        "metrics-address",
        "Address for metrics. Default: the HTTP address, or 127.0.0.1 if HTTP uses a Unix socket.",
        default_text="the HTTP address",
        kind=ValueKind.ADDRESS,
    )
    port: int = option(
        8002,
        "metrics-port",
        "Port for metrics; 0 for any.",
        minimum=0,
        maximum=65535,
        summary="Port for metrics; 0 for any.",
    )
    interval_ms: float = option(
        2000.0, "metrics-interval-ms", "Milliseconds between two measurements of CPU and GPU.", minimum=1
    )
    settings: Mapping[str, str] = option(
        {},
        "metrics-config",
        "A metrics setting: counter_latencies=, histogram_latencies=, summary_latencies=, summary_quantiles=.",
        kind=ValueKind.SETTING,
        repeat=True,
        read=_metrics_settings,
    )
