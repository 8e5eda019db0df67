"""The flags of `naiad serve`: Triton's, by name and value format, and naiad's own.

A flag is implemented when it has a `target`. One without is either accepted because the thing that it tunes does not
exist here (`no_effect`), or refused for every value that asks for something this server cannot do (`only`).
"""

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from naiad.config.rate_limit import EXECUTION_COUNT
from naiad.config.security import CATEGORIES, GRPC_HEADER_PREFIX


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
        "Seconds that requests in flight may take to finish when the server exits; then those that are left are "
        "answered UNAVAILABLE, and it exits with status 1.",
        target="exit_timeout_s",
        minimum=0,
    ),
    Flag(
        "execute-timeout-secs",
        _FLOAT,
        "naiad: an execution that makes no progress for so many seconds counts as hung: its requests are answered "
        "UNAVAILABLE, and a worker process is killed and started again. 0 for no limit. A model's parameter "
        "execute_timeout_s wins.",
        target="execute_timeout_s",
        minimum=0,
    ),
    Flag(
        "drain-seconds",
        _FLOAT,
        "naiad: after SIGTERM keep serving for this long while readiness is already false, so that a load balancer "
        "can take the server out first. In Kubernetes give it a few seconds more than the readiness period.",
        target="drain_s",
        minimum=0,
    ),
    Flag(
        "processes",
        _INTEGER,
        "naiad: server processes behind the same ports; each loads all models and serves its share of connections.",
        target="process_count",
        minimum=1,
        maximum=256,
    ),
    Flag(
        "unix-socket-mode",
        Kind.MODE,
        "naiad: permissions of Unix sockets, in octal; who may write may connect. 600 is the server's own user.",
        target="unix_socket_mode",
    ),
    Flag(
        "max-connections-per-address",
        _INTEGER,
        "naiad: most open HTTP and gRPC connections of one address, of IPv6 one /64 network; more are closed, over "
        "HTTP with 503. Unix sockets are not counted. 0 for no limit.",
        target="max_connections_per_address",
        minimum=0,
    ),
    Flag(
        "max-request-bytes-in-flight",
        _INTEGER,
        "naiad: most bytes of request bodies, decompressed ones too, that are received or wait for their answers, "
        "over all connections; more get 503 or RESOURCE_EXHAUSTED. 0: a quarter of the memory that there is.",
        target="max_request_bytes",
        minimum=0,
    ),
    Flag(
        "queue-overload-policy",
        _STRING,
        "naiad: what is done when more requests come than a model can execute, where its configuration has no queue "
        "policy. shed: the newest go first, and after --queue-overload-max-wait-ms the oldest are refused. none: all "
        "wait in order of arrival, without end, as in Triton.",
        target="overload.policy",
        choices=("shed", "none"),
    ),
    Flag(
        "queue-overload-target-ms",
        _INTEGER,
        "naiad: a queue that goes on growing is overloaded when its oldest request has waited for longer than this.",
        target="overload.target_ms",
        minimum=10,
    ),
    Flag(
        "queue-overload-max-wait-ms",
        _INTEGER,
        "naiad: when an overloaded queue has grown for this long, requests that have waited for longer are refused.",
        target="overload.max_wait_ms",
        minimum=1000,
    ),
    Flag(
        "queue-overload-max-bytes",
        _INTEGER,
        "naiad: most bytes of inputs that may wait in an overloaded queue that grows; the oldest requests beyond it "
        "are refused. 0: half of --max-request-bytes-in-flight.",
        target="overload.max_bytes",
        minimum=0,
    ),
)

_LOGGING = (
    Flag("log-verbose", _INTEGER, "Verbose logging from 1 on.", target="log.verbose", minimum=0),
    Flag("log-info", _BOOLEAN, "Log informational messages.", target="log.info"),
    Flag("log-warning", _BOOLEAN, "Log warnings.", target="log.warning"),
    Flag("log-error", _BOOLEAN, "Log errors.", target="log.error"),
    Flag(
        "log-format",
        _STRING,
        "Form of a log line: default (LMMDD hh:mm:ss.ssssss) or ISO8601 (YYYY-MM-DDThh:mm:ssZ L).",
        target="log.format",
        choices=("default", "ISO8601"),
    ),
    Flag("log-file", _STRING, "Log to this file instead of the console.", target="log.file"),
)

_REPOSITORY = (
    Flag(
        "model-repository",
        _STRING,
        "A model repository: a directory, or a URL s3://bucket/path, gs://bucket/path, as://account/container/path; "
        "repeatable. A model that is in two of them is not available. "
        "A positional MODEL path does the same, and may be a bare model file or one model's directory.",
        target="repository.paths",
        repeat=True,
    ),
    Flag("model-store", _STRING, "The same as --model-repository.", target="repository.paths", repeat=True),
    Flag("exit-on-error", _BOOLEAN, "Exit when a model fails to load at start.", target="repository.exit_on_error"),
    Flag(
        "disable-auto-complete-config",
        Kind.SWITCH,
        "Do not complete configurations from model files; every config.pbtxt must be there and complete.",
        target="repository.auto_complete",
        negate=True,
    ),
    Flag(
        "strict-readiness",
        _BOOLEAN,
        "The server is ready only when all models are; if false, whenever it answers.",
        target="repository.strict_readiness",
    ),
    Flag(
        "ready-models",
        _STRING,
        "naiad: which models must be ready for the server to be: all, any, none, or names separated by commas.",
        target="repository.ready_models",
    ),
    Flag(
        "model-control-mode",
        _STRING,
        "How models come and go: none (all are loaded at start), poll (what is served follows the repositories) or "
        "explicit (those of --load-model are loaded, and clients load and unload).",
        target="repository.control_mode",
        only=("none", "poll", "explicit"),
    ),
    Flag(
        "dev",
        Kind.SWITCH,
        "naiad: for who writes a model: what changes on disk is served within a second (a quick mode poll).",
        target="repository.is_development",
    ),
    Flag(
        "repository-poll-secs",
        _INTEGER,
        "Seconds between looks at the repositories in mode poll; 0 never looks again.",
        target="repository.poll_s",
        minimum=0,
    ),
    Flag(
        "repository-settle-secs",
        _FLOAT,
        "naiad: seconds for which a model must not have changed before mode poll loads it.",
        target="repository.settle_s",
        minimum=0,
    ),
    Flag(
        "load-model",
        _STRING,
        "Load this model at start, in mode explicit; repeatable, * alone for all.",
        target="repository.load_models",
        repeat=True,
    ),
    Flag(
        "model-config-name",
        _STRING,
        "Read a model's configs/<name>.pbtxt where it exists, instead of its config.pbtxt.",
        target="repository.model_config_name",
    ),
    Flag(
        "cloud-cache-directory",
        _STRING,
        "naiad: where copies of models from object stores are kept, for several servers if they like; else "
        "$NAIAD_CACHE/models, or naiad/models in the user's cache directory.",
        target="repository.cloud_cache_directory",
    ),
    Flag(
        "cloud-cache-max-bytes",
        _INTEGER,
        "naiad: how much that cache may hold; what was not used for the longest time goes first.",
        target="repository.cloud_cache_max_bytes",
        minimum=1,
    ),
    Flag(
        "model-load-thread-count",
        _INTEGER,
        "Model versions that load at the same time.",
        target="repository.load_thread_count",
        minimum=1,
        maximum=1024,
    ),
    Flag(
        "model-load-retry-count",
        _INTEGER,
        "How often a failed load is tried again.",
        target="repository.load_retry_count",
        minimum=0,
    ),
    Flag(
        "model-namespacing",
        _BOOLEAN,
        "Models of equal names in several repositories; the repository of each tells them apart.",
        target="repository.has_namespaces",
    ),
    Flag("enable-peer-access", _BOOLEAN, "Peer access between GPUs.", no_effect=True),
)


def _forward_flag(prefix: str, what: str) -> Flag:
    return Flag(
        f"{prefix}-header-forward-pattern",
        _STRING,
        f"Make {what} whose name has a match of this regular expression parameters of the inference request. Case "
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
            f"{mark}TLS for {protocol}, only for clients with a certificate that --{prefix}-root-cert signed.",
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
            f"{mark}PEM file of the certificates that sign those of clients; for --{prefix}-use-ssl-mutual.",
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
        "Largest JSON of a request and largest raw body, in bytes; a binary tensor tail may be larger.",
        target="http.max_input_bytes",
        minimum=1,
    ),
    Flag(
        "http-max-connections",
        _INTEGER,
        "naiad: most open HTTP connections; for further ones the longest idle makes way, else they get 503.",
        target="http.max_connections",
        minimum=1,
    ),
    Flag(
        "http-max-body-size",
        _INTEGER,
        "naiad: largest body of a request in bytes, binary tensors included; larger ones get 413.",
        target="http.max_body_bytes",
        minimum=1,
    ),
    Flag(
        "http-max-decompressed-size",
        _INTEGER,
        "naiad: largest body in bytes that a compressed request (gzip, deflate) may become; larger ones get 400.",
        target="http.max_decompressed_bytes",
        minimum=1,
    ),
    Flag(
        "http-max-decompression-ratio",
        _INTEGER,
        "naiad: how many times larger than its compressed form a body may be beyond 64 MiB; larger ones get 400.",
        target="http.max_decompression_ratio",
        minimum=1,
    ),
    Flag(
        "http-max-header-size",
        _INTEGER,
        "naiad: largest request line and fields together over HTTP/1.1, in bytes; larger ones get 431.",
        target="http.max_header_bytes",
        minimum=1024,
        maximum=2**24,
    ),
    Flag(
        "http-max-header-count",
        _INTEGER,
        "naiad: most fields of a request over HTTP/1.1; more get 431.",
        target="http.max_header_count",
        minimum=8,
    ),
    Flag(
        "http-max-pipelined-requests",
        _INTEGER,
        "naiad: how many requests of a connection may wait for their answers before the next is read.",
        target="http.max_pipelined_requests",
        minimum=1,
    ),
    Flag(
        "http-header-timeout-seconds",
        _FLOAT,
        "naiad: from the first byte of a request to the end of its fields; later ones get 408.",
        target="http.header_timeout_s",
        minimum=0.1,
    ),
    Flag(
        "http-body-timeout-seconds",
        _FLOAT,
        "naiad: how far a body, or a gRPC message, may fall behind 16 KiB a second; slower ones get 408.",
        target="http.body_timeout_s",
        minimum=0.1,
    ),
    Flag(
        "http-idle-timeout-seconds",
        _FLOAT,
        "naiad: how long a connection may stay open between two requests.",
        target="http.idle_timeout_s",
        minimum=0.1,
    ),
    *_tls_flags("http", "HTTP", "naiad: "),
    _forward_flag("http", "HTTP fields"),
    Flag(
        "http-restricted-api",
        Kind.RESTRICTION,
        f"Answer the HTTP routes of these categories only with this header; repeatable. {_CATEGORIES}",
        target="access.http_restricted",
        repeat=True,
    ),
    Flag("http-thread-count", _INTEGER, "Threads for HTTP; naiad has one event loop.", no_effect=True, minimum=1),
)

_KEEPALIVE = (
    Flag(
        "grpc-keepalive-time",
        _INTEGER,
        "Milliseconds without a byte from the peer after which it gets a PING. Times are kept to the second.",
        target="grpc.keepalive_time_ms",
        minimum=1,
    ),
    Flag(
        "grpc-keepalive-timeout",
        _INTEGER,
        "Milliseconds to wait for the peer after a PING; then the connection is dropped.",
        target="grpc.keepalive_timeout_ms",
        minimum=1,
    ),
    Flag(
        "grpc-keepalive-permit-without-calls",
        _BOOLEAN,
        "Send PINGs on connections without calls too, and let clients do so.",
        target="grpc.keepalive_permit_without_calls",
    ),
    Flag(
        "grpc-http2-max-pings-without-data",
        _INTEGER,
        "Most PINGs in a row without anything else sent; 0 for any number.",
        target="grpc.max_pings_without_data",
        minimum=0,
    ),
    Flag(
        "grpc-http2-min-recv-ping-interval-without-data",
        _INTEGER,
        "Milliseconds that clients must let pass between PINGs while nothing is answered.",
        target="grpc.min_recv_ping_interval_ms",
        minimum=0,
    ),
    Flag(
        "grpc-http2-max-ping-strikes",
        _INTEGER,
        "How many PINGs may come too soon before the connection is closed; 0 for any number.",
        target="grpc.max_ping_strikes",
        minimum=0,
    ),
    Flag(
        "grpc-max-connection-age",
        _INTEGER,
        "Milliseconds after which a client is asked to connect anew, give or take a tenth; 0 for never.",
        target="grpc.max_connection_age_ms",
        minimum=0,
    ),
    Flag(
        "grpc-max-connection-age-grace",
        _INTEGER,
        "Milliseconds that calls may go on after that; 0 for any time.",
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
        "naiad: most open HTTP/2 connections of a port; for further ones the longest idle makes way, or else they "
        "get GOAWAY.",
        target="grpc.max_connections",
        minimum=1,
    ),
    Flag(
        "grpc-max-concurrent-streams",
        _INTEGER,
        "naiad: most calls at a time on one HTTP/2 connection, gRPC and REST.",
        target="grpc.max_concurrent_streams",
        minimum=1,
    ),
    Flag(
        "grpc-max-message-size",
        _INTEGER,
        "naiad: largest gRPC message in bytes.",
        target="grpc.max_message_bytes",
        minimum=1,
        maximum=2**31 - 1,
    ),
    Flag(
        "grpc-max-decompressed-size",
        _INTEGER,
        "naiad: largest message in bytes that a compressed one (gzip, deflate) may become; larger ones get "
        "RESOURCE_EXHAUSTED.",
        target="grpc.max_decompressed_bytes",
        minimum=1,
        maximum=2**31 - 1,
    ),
    Flag(
        "grpc-max-decompression-ratio",
        _INTEGER,
        "naiad: how many times larger than its compressed form a message may be beyond 64 MiB; larger ones get "
        "RESOURCE_EXHAUSTED.",
        target="grpc.max_decompression_ratio",
        minimum=1,
    ),
    Flag(
        "grpc-max-header-size",
        _INTEGER,
        "naiad: largest header list of a request over HTTP/2, in bytes, each field as 32 more; larger ones get 431.",
        target="grpc.max_header_bytes",
        minimum=1024,
        maximum=2**24,
    ),
    Flag(
        "grpc-max-header-count",
        _INTEGER,
        "naiad: most header fields of a request over HTTP/2, pseudo-fields included; more get 431.",
        target="grpc.max_header_count",
        minimum=16,
        maximum=65536,
    ),
    Flag(
        "grpc-max-resets-per-second",
        _INTEGER,
        "naiad: how many calls an HTTP/2 connection may reset a second, 20 times as many at once; more end it.",
        target="grpc.max_resets_per_s",
        minimum=1,
    ),
    Flag(
        "grpc-max-control-frames-per-second",
        _INTEGER,
        "naiad: how many PING, SETTINGS and empty frames an HTTP/2 connection may send a second beside its calls, 10 "
        "times as many at once; more end it. 16 WINDOW_UPDATE or small DATA frames count as one.",
        target="grpc.max_control_frames_per_s",
        minimum=1,
    ),
    _forward_flag("grpc", "gRPC metadata"),
    Flag(
        "grpc-restricted-protocol",
        Kind.RESTRICTION,
        f"Answer the gRPC calls of these categories only with the metadata {GRPC_HEADER_PREFIX}<header>; repeatable. "
        f"{_CATEGORIES}",
        target="access.grpc_restricted",
        repeat=True,
    ),
    *_tls_flags("grpc", "gRPC"),
    Flag(
        "grpc-infer-response-compression-level",
        _STRING,
        "How hard answers of inference are compressed for clients that accept it: none, low, medium, high.",
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
        "naiad: answer only requests with a key of this file, over HTTP, gRPC and on the metrics port. Lines: name, "
        "categories separated by commas, SHA-256 of the key; naiad key new prints one. A change is seen at once.",
        target="access.api_key_file",
    ),
    Flag(
        "allow-client-model-files",
        _BOOLEAN,
        "naiad: let every client that may load models bring their files ('file:' of a load), code of Python models "
        "included. Without it they need an API key, or the category model-repository must be restricted.",
        target="access.allow_client_model_files",
    ),
    Flag(
        "http-cors-origin",
        Kind.ORIGIN,
        "naiad: let web pages of this origin call over HTTP; repeatable, * for all.",
        target="access.http_cors_origins",
        repeat=True,
    ),
)

_METRICS = (
    Flag("allow-metrics", _BOOLEAN, "Serve Prometheus metrics.", target="metrics.allow"),
    Flag("allow-cpu-metrics", _BOOLEAN, "Measure CPU and memory.", target="metrics.allow_cpu"),
    Flag(
        "allow-gpu-metrics",
        _BOOLEAN,
        "Measure NVIDIA GPUs, where there is one and its driver.",
        target="metrics.allow_gpu",
    ),
    Flag(
        "metrics-address",
        Kind.ADDRESS,
        "Address for metrics; that of HTTP by default, or 127.0.0.1 when HTTP has a Unix socket.",
        target="metrics.address",
    ),
    Flag("metrics-port", _INTEGER, "Port for metrics; 0 for any.", target="metrics.port", minimum=0, maximum=_PORT),
    Flag(
        "metrics-interval-ms",
        _FLOAT,
        "Milliseconds between two measurements of the machine.",
        target="metrics.interval_ms",
        minimum=1,
    ),
    Flag(
        "metrics-config",
        Kind.SETTING,
        "A setting of the metrics: counter_latencies=, histogram_latencies=, summary_latencies=, summary_quantiles=.",
        target="metrics.settings",
        repeat=True,
    ),
)

_BACKEND = (
    Flag(
        "backend-config",
        Kind.SETTING,
        "A setting for a backend, or without a name for all of them; repeatable.",
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
        "Rate limiter: execution_count lets instances execute when the resources that their 'rate_limiter' names are "
        "free, by turn; off ignores what configurations say.",
        target="rate_limit.mode",
        choices=("off", EXECUTION_COUNT),
    ),
    Flag(
        "rate-limit-resource",
        _STRING,
        "How much of a resource there is, <name>:<count> or <name>:<count>:<device>; repeatable. naiad: cpu:auto and "
        "memory_mb:auto are what the machine has. Without any: as much of each as its most demanding instance needs.",
        target="rate_limit.resources",
        repeat=True,
    ),
)

_TRACING = (
    Flag(
        "trace-config",
        _STRING,
        "A setting of tracing: level=OFF|TIMESTAMPS|TENSORS, rate=<one request in so many>, count=<so many in all>, "
        "triton,file=<path>, triton,log-frequency=<traces a file>, mode=opentelemetry, "
        "opentelemetry,url=<collector>, opentelemetry,resource=<key>=<value>, opentelemetry,bsp_max_queue_size=, "
        "bsp_schedule_delay=, bsp_max_export_batch_size=; repeatable.",
        target="trace",
        repeat=True,
    ),
    Flag("trace-level", _STRING, "Deprecated: --trace-config level=.", target="trace.level", repeat=True),
    Flag("trace-file", _STRING, "Deprecated: --trace-config triton,file=.", target="trace.file", repeat=True),
    Flag("trace-rate", _STRING, "Deprecated: --trace-config rate=.", target="trace.rate", repeat=True),
    Flag("trace-count", _STRING, "Deprecated: --trace-config count=.", target="trace.count", repeat=True),
    Flag(
        "trace-log-frequency",
        _STRING,
        "Deprecated: --trace-config triton,log-frequency=.",
        target="trace.log_frequency",
        repeat=True,
    ),
)

_DEVICE = (
    Flag(
        "allow-client-shm",
        _BOOLEAN,
        "Let clients register shared memory: any object in /dev/shm that the server may read and write. Off unless "
        "given.",
        target="shared_memory.is_allowed",
    ),
    Flag(
        "max-shared-memory-regions",
        _INTEGER,
        "naiad: most regions that are registered at a time; each holds a file descriptor.",
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
        "Cores that the instances of a policy run on: <policy>,cpu-cores=0-3,8 or <policy>,numa-node=1; repeatable. "
        "<policy> is the 'host_policy' of an instance group, else cpu, model or gpu_N by the kind of its instances.",
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
        "Deprecated: true is --disable-auto-complete-config.",
        target="repository.auto_complete",
        negate=True,
    ),
    Flag("response-cache-byte-size", _INTEGER, "Deprecated, see --cache-config.", "cache_size_bytes", minimum=0),
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
