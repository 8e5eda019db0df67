"""The flags of `naiad serve`: Triton's, by name and value format, and naiad's own.

A flag is implemented when it has a `target`. One without is either accepted because the thing that it tunes does not
exist here (`no_effect`), or refused for every value that asks for something this server cannot do (`only`).
"""

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from naiad.options.access import CATEGORIES, GRPC_HEADER_PREFIX
from naiad.options.limits import EXECUTION_COUNT


class Kind(enum.Enum):
    """The value format of a flag; the value names it in `--help`."""

    STRING = "<string>"
    INTEGER = "<integer>"
    FLOAT = "<number>"
    BOOLEAN = "<boolean>"
    SWITCH = ""
    SETTING = "<name>,<setting>=<value>"
    ADDRESS = "<address>"
    MODE = "<octal>"
    ORIGIN = "<origin>"
    RESTRICTION = "<category>,...:<header>=<value>"


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag: how it is written, what it sets, what may be asked of it."""

    name: str
    kind: Kind
    help: str
    target: str = ""
    """`section.field` of ServerOptions; `field` alone for the options themselves."""
    repeat: bool = False
    negate: bool = False
    """The target gets the opposite of the value."""
    choices: Sequence[str] = ()
    minimum: float | None = None
    maximum: float | None = None
    only: Sequence[str] | None = None
    """Only these values are supported, in any case; without a target they ask for nothing. Empty: none is."""
    no_effect: bool = False

    @property
    def usage(self) -> str:
        """`--name <format>` as `--help` shows it."""
        return f"--{self.name} {self.kind.value}".rstrip()


_INTEGER, _STRING, _BOOLEAN, _FLOAT = Kind.INTEGER, Kind.STRING, Kind.BOOLEAN, Kind.FLOAT
_OFF = ("false", "off", "0")
_PORT = 65535
_ADDRESS_FORMS = ": a name, an IPv4 or IPv6 address (:: for all), or unix:/path (naiad) for a Unix socket."
_CATEGORIES = f"Categories: {', '.join(CATEGORIES)}."

_SERVER = (
    Flag("id", _STRING, "Name of this server in its metadata.", target="server_id"),
    Flag(
        "exit-timeout-secs",
        _INTEGER,
        "Seconds to wait for running requests when the server exits. Then it answers the remaining ones "
        "with UNAVAILABLE and exits with status 1.",
        target="exit_timeout_s",
        minimum=0,
    ),
    Flag(
        "execute-timeout-secs",
        _FLOAT,
        "naiad: seconds without progress after which an execution counts as hung: its requests get "
        "UNAVAILABLE and its worker process is restarted. 0: no limit. The model parameter "
        "execute_timeout_s overrides it.",
        target="execute_timeout_s",
        minimum=0,
    ),
    Flag(
        "drain-seconds",
        _FLOAT,
        "naiad: seconds to keep serving after SIGTERM while readiness is false, so that a load balancer "
        "can remove the server. In Kubernetes use a few seconds more than the readiness period.",
        target="drain_s",
        minimum=0,
    ),
    Flag(
        "processes",
        _INTEGER,
        "naiad: server processes that share the ports. Each loads all models and serves some of the connections. "
        "More than 1 excludes --rate-limit=execution_count.",
        target="process_count",
        minimum=1,
        maximum=256,
    ),
    Flag(
        "unix-socket-mode",
        Kind.MODE,
        "naiad: permissions of Unix sockets, in octal. Write permission allows a client to connect. 600: "
        "only the server's user.",
        target="unix_socket_mode",
    ),
    Flag(
        "max-connections-per-address",
        _INTEGER,
        "naiad: maximum of open connections per client address (IPv6: per /64 network); further ones get "
        "503 or are closed. Unix sockets do not count. 0: no limit.",
        target="max_connections_per_address",
        minimum=0,
    ),
    Flag(
        "max-request-bytes-in-flight",
        _INTEGER,
        "naiad: maximum of bytes of all request bodies in the server, after decompression. Further "
        "requests get 503 or RESOURCE_EXHAUSTED. 0: a quarter of the memory.",
        target="max_request_bytes",
        minimum=0,
    ),
    Flag(
        "queue-overload-policy",
        _STRING,
        "naiad: behavior under overload without a queue policy. shed: newest requests first, rejects the "
        "oldest. none: unlimited queue in order of arrival, as in Triton.",
        target="overload.policy",
        choices=("shed", "none"),
    ),
    Flag(
        "queue-overload-target-ms",
        _INTEGER,
        "naiad: a growing queue is overloaded when its oldest request has waited longer than this.",
        target="overload.target_ms",
        minimum=10,
    ),
    Flag(
        "queue-overload-max-wait-ms",
        _INTEGER,
        "naiad: when an overloaded queue has grown for this long, the server rejects requests that have "
        "waited longer.",
        target="overload.max_wait_ms",
        minimum=1000,
    ),
    Flag(
        "queue-overload-max-bytes",
        _INTEGER,
        "naiad: maximum of input bytes in an overloaded queue that grows; the server rejects the oldest "
        "requests above it. 0: half of --max-request-bytes-in-flight.",
        target="overload.max_bytes",
        minimum=0,
    ),
)

_LOGGING = (
    Flag("log-verbose", _INTEGER, "Level of verbose logging; 0 turns it off.", target="log.verbose", minimum=0),
    Flag("log-info", _BOOLEAN, "Log informational messages.", target="log.info"),
    Flag("log-warning", _BOOLEAN, "Log warnings.", target="log.warning"),
    Flag("log-error", _BOOLEAN, "Log errors.", target="log.error"),
    Flag(
        "log-format",
        _STRING,
        "Format of log lines: default (LMMDD hh:mm:ss.ssssss) or ISO8601 (YYYY-MM-DDThh:mm:ssZ L).",
        target="log.format",
        choices=("default", "ISO8601"),
    ),
    Flag("log-file", _STRING, "Log to this file instead of the console.", target="log.file"),
)

_REPOSITORY = (
    Flag(
        "model-repository",
        _STRING,
        "A model repository: a directory or a URL (s3://bucket/path, gs://bucket/path, "
        "as://account/container/path); repeatable. The positional argument does the same and also accepts "
        "a model file or the directory of one model.",
        target="repository.paths",
        repeat=True,
    ),
    Flag("model-store", _STRING, "The same as --model-repository.", target="repository.paths", repeat=True),
    Flag("exit-on-error", _BOOLEAN, "Exit when a model fails to load at start.", target="repository.exit_on_error"),
    Flag(
        "disable-auto-complete-config",
        Kind.SWITCH,
        "Do not complete configurations from model files; every model needs a complete config.pbtxt.",
        target="repository.auto_complete",
        negate=True,
    ),
    Flag(
        "strict-readiness",
        _BOOLEAN,
        "The server is ready only if all models are ready; if false, as soon as it responds.",
        target="repository.strict_readiness",
    ),
    Flag(
        "ready-models",
        _STRING,
        "naiad: models that must be ready for the server to be ready: all, any, none, or names separated by commas.",
        target="repository.ready_models",
    ),
    Flag(
        "model-control-mode",
        _STRING,
        "How models are loaded: none (all at start), poll (all, and changes in the repositories) or "
        "explicit (the models of --load-model; clients load and unload).",
        target="repository.control_mode",
        only=("none", "poll", "explicit"),
    ),
    Flag(
        "dev",
        Kind.SWITCH,
        "naiad: for development: serves changes on disk within a second (a fast mode poll).",
        target="repository.is_development",
    ),
    Flag(
        "repository-poll-secs",
        _INTEGER,
        "Seconds between checks of the repositories in mode poll; 0: never.",
        target="repository.poll_s",
        minimum=0,
    ),
    Flag(
        "repository-settle-secs",
        _FLOAT,
        "naiad: seconds that a model must be unchanged before mode poll loads it.",
        target="repository.settle_s",
        minimum=0,
    ),
    Flag(
        "load-model",
        _STRING,
        "Load this model at start in mode explicit; repeatable, * for all.",
        target="repository.load_models",
        repeat=True,
    ),
    Flag(
        "model-config-name",
        _STRING,
        "Read configs/<name>.pbtxt of a model, if it exists, instead of config.pbtxt.",
        target="repository.model_config_name",
    ),
    Flag(
        "cloud-cache-directory",
        _STRING,
        "naiad: directory for copies of models from object stores; servers can share it. Default: "
        "$NAIAD_CACHE/models, or naiad/models in the user's cache directory.",
        target="repository.cloud_cache_directory",
    ),
    Flag(
        "cloud-cache-max-bytes",
        _INTEGER,
        "naiad: maximum size of this directory; the server deletes the least recently used copies.",
        target="repository.cloud_cache_max_bytes",
        minimum=1,
    ),
    Flag(
        "model-load-thread-count",
        _INTEGER,
        "Number of model versions that load at the same time.",
        target="repository.load_thread_count",
        minimum=1,
        maximum=1024,
    ),
    Flag(
        "model-load-retry-count",
        _INTEGER,
        "Number of retries after a failed load.",
        target="repository.load_retry_count",
        minimum=0,
    ),
    Flag(
        "model-namespacing",
        _BOOLEAN,
        "Allow models with equal names in several repositories; requests select one by repository.",
        target="repository.has_namespaces",
    ),
    Flag("enable-peer-access", _BOOLEAN, "Peer access between GPUs.", no_effect=True),
)


def _forward_flag(prefix: str, what: str) -> Flag:
    return Flag(
        f"{prefix}-header-forward-pattern",
        _STRING,
        f"Pass {what} whose names match this regular expression to the model as request parameters. Case "
        "does not matter unless it begins with (?-i).",
        target=f"{prefix}.header_forward_pattern",
    )


def _tls_flags(prefix: str, protocol: str, mark: str = "") -> tuple[Flag, ...]:
    """Return the TLS flags of an endpoint; those for gRPC are Triton's."""
    return (
        Flag(f"{prefix}-use-ssl", _BOOLEAN, f"{mark}TLS for {protocol}.", target=f"{prefix}_tls.use_ssl"),
        Flag(
            f"{prefix}-use-ssl-mutual",
            _BOOLEAN,
            f"{mark}TLS for {protocol} with client certificates signed by --{prefix}-root-cert.",
            target=f"{prefix}_tls.use_ssl_mutual",
        ),
        Flag(
            f"{prefix}-server-cert",
            _STRING,
            f"{mark}PEM file of the server's certificate chain for {protocol}.",
            target=f"{prefix}_tls.server_cert",
        ),
        Flag(
            f"{prefix}-server-key",
            _STRING,
            f"{mark}PEM file of the certificate's key.",
            target=f"{prefix}_tls.server_key",
        ),
        Flag(
            f"{prefix}-root-cert",
            _STRING,
            f"{mark}PEM file of the root certificates for client certificates, for --{prefix}-use-ssl-mutual.",
            target=f"{prefix}_tls.root_cert",
        ),
    )


_HTTP = (
    Flag("allow-http", _BOOLEAN, "Serve HTTP.", target="http.allow"),
    Flag(
        "http-address",
        Kind.ADDRESS,
        f"Address to listen on for HTTP{_ADDRESS_FORMS}",
        target="http.address",
    ),
    Flag("http-port", _INTEGER, "Port for HTTP; 0 for any.", target="http.port", minimum=0, maximum=_PORT),
    Flag("reuse-http-port", _BOOLEAN, "Let several servers share the HTTP port.", target="http.reuse_port"),
    Flag(
        "http-max-input-size",
        _INTEGER,
        "Maximum size of JSON and raw bodies in bytes; binary tensors may be larger.",
        target="http.max_input_bytes",
        minimum=1,
    ),
    Flag(
        "http-max-connections",
        _INTEGER,
        "naiad: maximum of open HTTP connections. A further one replaces the longest idle connection, or gets 503.",
        target="http.max_connections",
        minimum=1,
    ),
    Flag(
        "http-max-body-size",
        _INTEGER,
        "naiad: maximum size of a request body in bytes, including binary tensors; larger ones get 413.",
        target="http.max_body_bytes",
        minimum=1,
    ),
    Flag(
        "http-max-decompressed-size",
        _INTEGER,
        "naiad: maximum size in bytes of a decompressed request body; larger ones get 400.",
        target="http.max_decompressed_bytes",
        minimum=1,
    ),
    Flag(
        "http-max-decompression-ratio",
        _INTEGER,
        "naiad: maximum ratio of decompressed to compressed size above 64 MiB; larger ones get 400.",
        target="http.max_decompression_ratio",
        minimum=1,
    ),
    Flag(
        "http-max-header-size",
        _INTEGER,
        "naiad: maximum size of request line and headers over HTTP/1.1, in bytes; larger ones get 431.",
        target="http.max_header_bytes",
        minimum=1024,
        maximum=2**24,
    ),
    Flag(
        "http-max-header-count",
        _INTEGER,
        "naiad: maximum number of headers over HTTP/1.1; more get 431.",
        target="http.max_header_count",
        minimum=8,
    ),
    Flag(
        "http-max-pipelined-requests",
        _INTEGER,
        "naiad: maximum of pipelined requests per connection; the server then stops reading.",
        target="http.max_pipelined_requests",
        minimum=1,
    ),
    Flag(
        "http-header-timeout-seconds",
        _FLOAT,
        "naiad: maximum time from the first byte of a request to the end of its headers; slower ones get 408.",
        target="http.header_timeout_s",
        minimum=0.1,
    ),
    Flag(
        "http-body-timeout-seconds",
        _FLOAT,
        "naiad: how many seconds a body or gRPC message may lag behind 16 KiB per second; slower ones get 408.",
        target="http.body_timeout_s",
        minimum=0.1,
    ),
    Flag(
        "http-idle-timeout-seconds",
        _FLOAT,
        "naiad: maximum idle time of a connection between requests.",
        target="http.idle_timeout_s",
        minimum=0.1,
    ),
    *_tls_flags("http", "HTTP", "naiad: "),
    _forward_flag("http", "HTTP headers"),
    Flag(
        "http-restricted-api",
        Kind.RESTRICTION,
        f"Require this header for the HTTP routes of these categories; repeatable. {_CATEGORIES}",
        target="access.http_restricted",
        repeat=True,
    ),
    Flag("http-thread-count", _INTEGER, "Threads for HTTP; naiad has one event loop.", no_effect=True, minimum=1),
)

_KEEPALIVE = (
    Flag(
        "grpc-keepalive-time",
        _INTEGER,
        "Idle milliseconds after which the server sends a PING. Precision: one second.",
        target="grpc.keepalive_time_ms",
        minimum=1,
    ),
    Flag(
        "grpc-keepalive-timeout",
        _INTEGER,
        "Milliseconds to wait for data after a PING before the server closes the connection.",
        target="grpc.keepalive_timeout_ms",
        minimum=1,
    ),
    Flag(
        "grpc-keepalive-permit-without-calls",
        _BOOLEAN,
        "Send and allow PINGs on connections without calls.",
        target="grpc.keepalive_permit_without_calls",
    ),
    Flag(
        "grpc-http2-max-pings-without-data",
        _INTEGER,
        "Maximum of consecutive PINGs without other data sent; 0: no limit.",
        target="grpc.max_pings_without_data",
        minimum=0,
    ),
    Flag(
        "grpc-http2-min-recv-ping-interval-without-data",
        _INTEGER,
        "Minimum interval in milliseconds between PINGs of a client while the server sends no response.",
        target="grpc.min_recv_ping_interval_ms",
        minimum=0,
    ),
    Flag(
        "grpc-http2-max-ping-strikes",
        _INTEGER,
        "Number of PINGs that may arrive too early before the server closes the connection; 0: no limit.",
        target="grpc.max_ping_strikes",
        minimum=0,
    ),
    Flag(
        "grpc-max-connection-age",
        _INTEGER,
        "Milliseconds, plus or minus a tenth, after which the server asks a client to reconnect; 0: never.",
        target="grpc.max_connection_age_ms",
        minimum=0,
    ),
    Flag(
        "grpc-max-connection-age-grace",
        _INTEGER,
        "Milliseconds that calls may continue after that; 0: no limit.",
        target="grpc.max_connection_age_grace_ms",
        minimum=0,
    ),
)

_GRPC = (
    Flag("allow-grpc", _BOOLEAN, "Serve gRPC.", target="grpc.allow"),
    Flag(
        "grpc-address",
        Kind.ADDRESS,
        f"Address to listen on for gRPC{_ADDRESS_FORMS}",
        target="grpc.address",
    ),
    Flag("grpc-port", _INTEGER, "Port for gRPC; 0 for any.", target="grpc.port", minimum=0, maximum=_PORT),
    Flag("reuse-grpc-port", _BOOLEAN, "Let several servers share the gRPC port.", target="grpc.reuse_port"),
    Flag(
        "grpc-max-connections",
        _INTEGER,
        "naiad: maximum of open HTTP/2 connections per port. A further one replaces the longest idle "
        "connection, or gets GOAWAY.",
        target="grpc.max_connections",
        minimum=1,
    ),
    Flag(
        "grpc-max-concurrent-streams",
        _INTEGER,
        "naiad: maximum of concurrent calls per HTTP/2 connection, gRPC and REST.",
        target="grpc.max_concurrent_streams",
        minimum=1,
    ),
    Flag(
        "grpc-max-message-size",
        _INTEGER,
        "naiad: maximum size of a gRPC message in bytes.",
        target="grpc.max_message_bytes",
        minimum=1,
        maximum=2**31 - 1,
    ),
    Flag(
        "grpc-max-decompressed-size",
        _INTEGER,
        "naiad: maximum size in bytes of a decompressed message; larger ones get RESOURCE_EXHAUSTED.",
        target="grpc.max_decompressed_bytes",
        minimum=1,
        maximum=2**31 - 1,
    ),
    Flag(
        "grpc-max-decompression-ratio",
        _INTEGER,
        "naiad: maximum ratio of decompressed to compressed size above 64 MiB; larger ones get RESOURCE_EXHAUSTED.",
        target="grpc.max_decompression_ratio",
        minimum=1,
    ),
    Flag(
        "grpc-max-header-size",
        _INTEGER,
        "naiad: maximum size of the headers over HTTP/2 in bytes, counting 32 more for each; larger ones get 431.",
        target="grpc.max_header_bytes",
        minimum=1024,
        maximum=2**24,
    ),
    Flag(
        "grpc-max-header-count",
        _INTEGER,
        "naiad: maximum number of headers over HTTP/2, including pseudo-headers; more get 431.",
        target="grpc.max_header_count",
        minimum=16,
        maximum=65536,
    ),
    Flag(
        "grpc-max-resets-per-second",
        _INTEGER,
        "naiad: maximum of calls per second that a client may reset on an HTTP/2 connection, with bursts "
        "of 20 times as many; more close the connection.",
        target="grpc.max_resets_per_s",
        minimum=1,
    ),
    Flag(
        "grpc-max-control-frames-per-second",
        _INTEGER,
        "naiad: maximum of PING, SETTINGS and empty frames per second on an HTTP/2 connection, besides "
        "its calls, with bursts of 10 times as many; more close the connection. 16 WINDOW_UPDATE or small "
        "DATA frames count as one.",
        target="grpc.max_control_frames_per_s",
        minimum=1,
    ),
    _forward_flag("grpc", "gRPC metadata"),
    Flag(
        "grpc-restricted-protocol",
        Kind.RESTRICTION,
        f"Require the metadata {GRPC_HEADER_PREFIX}<header> for the gRPC calls of these categories; repeatable. "
        f"{_CATEGORIES}",
        target="access.grpc_restricted",
        repeat=True,
    ),
    *_tls_flags("grpc", "gRPC"),
    Flag(
        "grpc-infer-response-compression-level",
        _STRING,
        "Compression of inference responses for clients that accept it.",
        target="grpc.compression_level",
        choices=("none", "low", "medium", "high"),
    ),
    Flag("grpc-infer-thread-count", _INTEGER, "Threads for gRPC.", no_effect=True, minimum=2, maximum=128),
    Flag("grpc-infer-allocation-pool-size", _INTEGER, "Pooled request objects.", no_effect=True),
    Flag("grpc-max-response-pool-size", _INTEGER, "Pooled response objects.", no_effect=True),
    *_KEEPALIVE,
)

_ACCESS = (
    Flag(
        "api-key-file",
        _STRING,
        "naiad: require an API key of this file, over HTTP, gRPC and on the metrics port. Each line has a "
        "name, categories separated by commas, and the SHA-256 of the key; naiad key new prints one. "
        "Changes apply at once.",
        target="access.api_key_file",
    ),
    Flag(
        "allow-client-model-files",
        _BOOLEAN,
        "naiad: let every client that may load models send model files (file: parameters), including "
        "Python code. Otherwise this needs an API key, or a restriction of the category model-repository.",
        target="access.allow_client_model_files",
    ),
    Flag(
        "http-cors-origin",
        Kind.ORIGIN,
        "naiad: let web pages of this origin call the server over HTTP; repeatable, * for all.",
        target="access.http_cors_origins",
        repeat=True,
    ),
)

_METRICS = (
    Flag("allow-metrics", _BOOLEAN, "Serve Prometheus metrics.", target="metrics.allow"),
    Flag("allow-cpu-metrics", _BOOLEAN, "Collect metrics of CPU and memory.", target="metrics.allow_cpu"),
    Flag(
        "allow-gpu-metrics",
        _BOOLEAN,
        "Collect metrics of NVIDIA GPUs, if there is a GPU with its driver.",
        target="metrics.allow_gpu",
    ),
    Flag(
        "metrics-address",
        Kind.ADDRESS,
        "Address for metrics. Default: the HTTP address, or 127.0.0.1 if HTTP uses a Unix socket.",
        target="metrics.address",
    ),
    Flag("metrics-port", _INTEGER, "Port for metrics; 0 for any.", target="metrics.port", minimum=0, maximum=_PORT),
    Flag(
        "metrics-interval-ms",
        _FLOAT,
        "Milliseconds between two measurements of CPU and GPU.",
        target="metrics.interval_ms",
        minimum=1,
    ),
    Flag(
        "metrics-config",
        Kind.SETTING,
        "A metrics setting: counter_latencies=, histogram_latencies=, summary_latencies=, summary_quantiles=.",
        target="metrics.settings",
        repeat=True,
    ),
)

_BACKEND = (
    Flag(
        "backend-config",
        Kind.SETTING,
        "A setting of a backend, or without a name of all backends; repeatable.",
        target="backend_config",
        repeat=True,
    ),
    Flag(
        "backend-directory",
        _STRING,
        "Directory of Python-based backends: NAME/model.py executes all models with backend NAME.",
        target="backend_directory",
    ),
    Flag("repoagent-directory", _STRING, "Directory of repository agents.", no_effect=True),
    Flag("cache-directory", _STRING, "Directory of response cache libraries.", no_effect=True),
    Flag("cache-config", Kind.SETTING, "Response cache.", "cache_config", repeat=True),
    Flag(
        "rate-limit",
        _STRING,
        "Rate limiter. execution_count: instances take turns and execute when the resources of their "
        "'rate_limiter' are free; needs --processes=1. off: ignores 'rate_limiter'.",
        target="rate_limit.mode",
        choices=("off", EXECUTION_COUNT),
    ),
    Flag(
        "rate-limit-resource",
        _STRING,
        "Amount of a resource, <name>:<count> or <name>:<count>:<device>; repeatable. naiad: cpu:auto and "
        "memory_mb:auto use the machine's values. Default: the largest amount that any instance needs.",
        target="rate_limit.resources",
        repeat=True,
    ),
)

_TRACING = (
    Flag(
        "trace-config",
        _STRING,
        "A trace setting: level=OFF|TIMESTAMPS|TENSORS, rate=<trace one of N requests>, count=<traces in "
        "total>, triton,file=<path>, triton,log-frequency=<traces per file>, mode=opentelemetry, "
        "opentelemetry,url=<collector>, opentelemetry,resource=<key>=<value>, "
        "opentelemetry,bsp_max_queue_size=, bsp_schedule_delay=, bsp_max_export_batch_size=; repeatable.",
        target="trace",
        repeat=True,
    ),
    Flag("trace-level", _STRING, "Deprecated: use --trace-config level=.", target="trace.level", repeat=True),
    Flag("trace-file", _STRING, "Deprecated: use --trace-config triton,file=.", target="trace.file", repeat=True),
    Flag("trace-rate", _STRING, "Deprecated: use --trace-config rate=.", target="trace.rate", repeat=True),
    Flag("trace-count", _STRING, "Deprecated: use --trace-config count=.", target="trace.count", repeat=True),
    Flag(
        "trace-log-frequency",
        _STRING,
        "Deprecated: use --trace-config triton,log-frequency=.",
        target="trace.log_frequency",
        repeat=True,
    ),
)

_DEVICE = (
    Flag(
        "allow-client-shm",
        _BOOLEAN,
        "Let clients register shared memory: any object in /dev/shm that the server can read and write.",
        target="shared_memory.is_allowed",
    ),
    Flag(
        "max-shared-memory-regions",
        _INTEGER,
        "naiad: maximum of registered regions; each uses a file descriptor.",
        target="shared_memory.max_regions",
        minimum=1,
        maximum=32768,
    ),
    Flag("pinned-memory-pool-byte-size", _INTEGER, "Pinned host memory for GPUs.", no_effect=True),
    Flag("cuda-memory-pool-byte-size", _STRING, "CUDA memory by device.", no_effect=True, repeat=True),
    Flag("cuda-virtual-address-size", _STRING, "CUDA addresses by device.", no_effect=True, repeat=True),
    Flag("min-supported-compute-capability", _FLOAT, "Oldest GPU to use.", no_effect=True),
    Flag("buffer-manager-thread-count", _INTEGER, "Threads that copy tensors.", no_effect=True),
    Flag(
        "host-policy",
        Kind.SETTING,
        "CPU cores for the instances of a policy: <policy>,cpu-cores=0-3,8 or <policy>,numa-node=1; "
        "repeatable. <policy> is the 'host_policy' of an instance group, or by default cpu, model or "
        "gpu_N by kind.",
        target="host_policies",
        repeat=True,
    ),
    Flag("model-load-gpu-limit", _STRING, "GPU memory limit for loading.", no_effect=True, repeat=True),
)

_CLOUD = (
    Flag("allow-sagemaker", _BOOLEAN, "SageMaker endpoint.", only=_OFF),
    Flag("sagemaker-port", _INTEGER, "SageMaker port.", no_effect=True),
    Flag("sagemaker-safe-port-range", _STRING, "SageMaker port range.", no_effect=True),
    Flag("sagemaker-thread-count", _INTEGER, "SageMaker threads.", no_effect=True),
    Flag("allow-vertex-ai", _BOOLEAN, "Vertex AI endpoint.", only=_OFF),
    Flag("vertex-ai-port", _INTEGER, "Vertex AI port.", no_effect=True),
    Flag("vertex-ai-thread-count", _INTEGER, "Vertex AI threads.", no_effect=True),
    Flag("vertex-ai-default-model", _STRING, "Vertex AI default model.", no_effect=True),
)

_DEPRECATED = (
    Flag(
        "strict-model-config",
        _BOOLEAN,
        "Deprecated: true means --disable-auto-complete-config.",
        target="repository.auto_complete",
        negate=True,
    ),
    Flag("response-cache-byte-size", _INTEGER, "Deprecated: use --cache-config.", "cache_size_bytes", minimum=0),
)

GROUPS: Sequence[tuple[str, Sequence[Flag]]] = (
    ("Server", _SERVER),
    ("Logging", _LOGGING),
    ("Model repository", _REPOSITORY),
    ("HTTP", _HTTP),
    ("gRPC", _GRPC),
    ("Access", _ACCESS),
    ("Metrics", _METRICS),
    ("Backends, cache and rate limiter", _BACKEND),
    ("Tracing", _TRACING),
    ("Memory and devices", _DEVICE),
    ("SageMaker and Vertex AI", _CLOUD),
    ("Deprecated", _DEPRECATED),
)
"""Every flag, in the order of `--help`."""


def all_flags() -> Iterator[Flag]:
    """Yield every flag."""
    for _, flags in GROUPS:
        yield from flags
