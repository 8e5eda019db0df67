"""Server options: the values of all flags of `naiad serve`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from naiad.options.bare_models import BareModelOptions
from naiad.options.execution_limits import DEFAULT_CALL_WAIT_TIMEOUT_S, DEFAULT_EXECUTE_TIMEOUT_S, RateLimitOptions
from naiad.options.flag import ValueKind, named_settings, option
from naiad.options.host_policy import HostPolicy, parse_host_policies
from naiad.options.load_limits import LoadLimitOptions
from naiad.options.network.access_options import AccessOptions, TlsOptions
from naiad.options.network.addresses import Place, is_one_port, is_unix
from naiad.options.network.cloud_options import AzureMlOptions, SageMakerOptions, VertexAiOptions
from naiad.options.network.endpoints import GrpcOptions, HttpOptions, MetricsOptions
from naiad.options.on_demand_options import OnDemandOptions
from naiad.options.trace import TraceOptions

REPOSITORY = "repository"
"""Value of `--rollout-state`: beside the models."""
_PICKLE_BACKENDS = ("sklearn", "mlflow")
"""Backends that `--allow-pickle` applies to."""


def _host_policies(texts: Sequence[str]) -> dict[str, HostPolicy]:
    return parse_host_policies(named_settings(texts))


LOG_FORMATS = ("default", "ISO8601", "json")
"""The values of `--log-format`. Triton has the first two."""


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Log options: levels, destination and format."""

    verbose: int = option(
        0,
        "log-verbose",
        "Level of verbose logging; 0 turns it off.",
        minimum=0,
        summary="Level of verbose logging; 1: with tracebacks.",
    )
    info: bool = option(True, "log-info", "Log informational messages.")
    warning: bool = option(True, "log-warning", "Log warnings.")
    error: bool = option(True, "log-error", "Log errors.")
    format: str = option(
        "default",
        "log-format",
        "Format of log lines: default (LMMDD hh:mm:ss.ssssss), ISO8601 (YYYY-MM-DDThh:mm:ssZ L) or json (naiad: one "
        "object a line).",
        choices=LOG_FORMATS,
    )
    file: str = option(
        "", "log-file", "Log to this file instead of the console.", summary="Log to this file instead of the console."
    )


@dataclass(frozen=True, slots=True)
class AccessLogOptions:
    """Where requests are logged, and how many of them."""

    file: str = option(
        "",
        "access-log",
        "naiad: log every request in this file, or on the console with 'stderr': key's name, client, path, model, "
        "status, bytes, time. In JSON with --log-format=json.",
        summary="Log every request in this file, or on stderr.",
    )
    sample: float = option(
        1.0,
        "access-log-sample",
        "naiad: the share of requests in the access log, from 0 to 1. Refused requests and control calls are always "
        "in it.",
        minimum=0,
        maximum=1,
    )


@dataclass(frozen=True, slots=True)
class RepositoryOptions:
    """Source of models, and how they are loaded."""

    paths: Sequence[str] = option(
        (),
        "model-repository",
        "A model repository: a directory or a URL (s3://bucket/path, gs://bucket/path, "
        "as://account/container/path); repeatable. The positional argument also accepts a model file or the "
        "directory of one model.",
        default_text="required",
        repeat=True,
        summary="Directory or URL, s3://bucket/path; repeatable.",
    )
    variable: str = ""
    """The environment variable that names the path; empty if an argument or a file does."""
    exit_on_error: bool = option(
        True,
        "exit-on-error",
        "Exit when a model fails to load at start.",
        summary="Exit when a model fails to load at start.",
    )
    auto_complete: bool = option(
        True,
        "disable-auto-complete-config",
        "Do not complete configurations from model files; every model needs a complete config.pbtxt.",
        kind=ValueKind.SWITCH,
        negate=True,
    )
    strict_readiness: bool = option(
        True,
        "strict-readiness",
        "The server is ready only if all models are ready; if false, as soon as it responds.",
    )
    ready_models: str = option(
        "all",
        "ready-models",
        "naiad: models that must be ready for the server to be ready: all, any, none, or names separated by commas.",
        summary="Models that must be ready: all, any, none or names.",
    )
    model_config_name: str = option(
        "",
        "model-config-name",
        "Read configs/<name>.pbtxt of a model, if it exists, instead of config.pbtxt.",
        needs_text=True,
    )
    cloud_cache_directory: str = option(
        "",
        "cloud-cache-directory",
        "naiad: directory for copies of models from object stores; servers can share it. Default: "
        "$NAIAD_CACHE/models, or naiad/models in the user's cache directory.",
        default_text="the user's cache",
    )
    cloud_cache_max_bytes: int = option(
        64 << 30,
        "cloud-cache-max-bytes",
        "naiad: maximum size of this directory; the server deletes the least recently used copies.",
        minimum=1,
    )
    control_mode: str = option(
        "none",
        "model-control-mode",
        "How models are loaded: none (all at start), poll (all, and changes in the repositories) or explicit "
        "(the models of --load-model; clients load and unload).",
        only=("none", "poll", "explicit"),
        summary="none: at start; poll: changes too; explicit.",
    )
    poll_s: int = option(
        15, "repository-poll-secs", "Seconds between checks of the repositories in mode poll; 0: never.", minimum=0
    )
    settle_s: float = option(
        2.0,
        "repository-settle-secs",
        "naiad: seconds that a model must be unchanged before mode poll loads it.",
        minimum=0,
    )
    is_development: bool = option(
        False,
        "dev",
        "naiad: for development: serves changes on disk within a second (a fast mode poll).",
        kind=ValueKind.SWITCH,
        summary="Serve changes on disk within a second.",
    )
    load_models: Sequence[str] = option(
        (),
        "load-model",
        "Load this model at start in mode explicit; repeatable, * for all.",
        repeat=True,
        summary="With explicit: load at start; repeatable, * for all.",
    )
    rollout_state: str = option(
        REPOSITORY,
        "rollout-state",
        "naiad: where the states of rollouts are kept: repository (beside the model, in the cache directory if the "
        "server cannot write there), or a directory, which all servers of the repository share.",
    )
    has_namespaces: bool = option(
        False,
        "model-namespacing",
        "Allow models with equal names in several repositories; requests select one by repository.",
    )
    load_thread_count: int = option(
        4, "model-load-thread-count", "Number of model versions that load at the same time.", minimum=1, maximum=1024
    )
    load_retry_count: int = option(0, "model-load-retry-count", "Number of retries after a failed load.", minimum=0)

    @property
    def ready_rule(self) -> str:
        """The readiness rule, in which `strict_readiness` has priority."""
        return self.ready_models if self.strict_readiness else "none"


@dataclass(frozen=True, slots=True)
class RecordingOptions:
    """Where traffic is recorded, and how much of it."""

    path: str = option(
        "",
        "record-traffic",
        "naiad: record arrival time, shapes, parameters and outcome of every inference request in this file, for "
        "naiad perf --replay.",
    )
    size_bytes: int = option(
        64 << 20,
        "record-traffic-size",
        "naiad: maximum size of the recording in bytes, in two files, the given one and <path>.1, which are "
        "replaced in turn.",
        minimum=1 << 20,
    )
    has_payloads: bool = option(
        False,
        "record-payloads",
        "naiad: also record the data of input tensors, which may be personal data.",
        kind=ValueKind.SWITCH,
    )

    @property
    def problem(self) -> str:
        """An error for flags that do not fit together; empty if they do."""
        if self.path or not self.has_payloads:
            return ""
        return "--record-payloads needs --record-traffic as well: the file to record in"


@dataclass(frozen=True, slots=True)
class SharedMemoryOptions:
    """Memory that clients share with the server."""

    is_allowed: bool = option(
        False,
        "allow-client-shm",
        "Let clients register shared memory: any object in /dev/shm that the server can read and write.",
        summary="Let clients register shared memory.",
    )
    max_regions: int = option(
        1024,
        "max-shared-memory-regions",
        "naiad: maximum of registered regions; each uses a file descriptor.",
        minimum=1,
        maximum=32768,
    )


@dataclass(frozen=True, slots=True)
class OverloadOptions:
    """Behavior under overload for models without a queue policy."""

    policy: str = option(
        "shed",
        "queue-overload-policy",
        "naiad: behavior under overload without a queue policy. shed: newest requests first, rejects the oldest. "
        "none: order of arrival, as in Triton.",
        choices=("shed", "none"),
    )
    target_ms: int = option(
        500,
        "queue-overload-target-ms",
        "naiad: a growing queue is overloaded when its oldest request has waited longer than this.",
        minimum=10,
    )
    max_wait_ms: int = option(
        10000,
        "queue-overload-max-wait-ms",
        "naiad: when an overloaded queue has grown for this long, the server rejects requests that have "
        "waited longer.",
        minimum=1000,
    )
    max_bytes: int = option(
        0,
        "queue-overload-max-bytes",
        "naiad: maximum of input bytes in an overloaded queue that grows; rejects the oldest requests above it. "
        "0: half of --max-request-bytes-in-flight.",
        minimum=0,
    )


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The values of all flags of `naiad serve`."""

    server_id: str = option("triton", "id", "Name of this server in its metadata.")
    config_file: str = option(
        "",
        "config",
        "naiad: TOML file with the names of flags as keys; the command line has priority.",
        summary="TOML file with flags as keys.",
    )
    exit_timeout_s: int = option(
        30,
        "exit-timeout-secs",
        "Seconds to wait for running requests when the server exits; the remaining ones get UNAVAILABLE, and the "
        "exit status is 1.",
        minimum=0,
        summary="Seconds to wait for running requests at exit.",
    )
    uses_triton_codes: bool = option(
        False,
        "triton-status-codes",
        "naiad: answer mistakes of clients with Triton's codes, some of which are 500 or 503 instead of 400 or 404.",
    )
    execute_timeout_s: float = option(
        DEFAULT_EXECUTE_TIMEOUT_S,
        "execute-timeout-secs",
        "naiad: seconds without progress after which an execution counts as hung: its requests get UNAVAILABLE "
        "and its worker process is restarted. 0: no limit.",
        minimum=0,
    )
    call_wait_timeout_s: float = option(
        DEFAULT_CALL_WAIT_TIMEOUT_S,
        "call-wait-timeout-secs",
        "naiad: seconds that a call of a model by another model may wait without being executed; then it gets "
        "UNAVAILABLE. 0: no limit.",
        minimum=0,
    )
    drain_s: float = option(
        0.0,
        "drain-seconds",
        "naiad: seconds to keep serving after SIGTERM while readiness is false, so that a load balancer can "
        "remove the server.",
        minimum=0,
    )
    process_count: int = option(
        1,
        "processes",
        "naiad: server processes that share the ports. Each loads all models and serves some of the connections.",
        minimum=1,
        maximum=256,
        summary="Server processes that share the ports.",
    )
    ready_file: str = option(
        "",
        "ready-file",
        "naiad: when the start is over, write the process id, the version and the URLs and ports as a JSON document "
        "to this file; removed when the server begins to exit.",
    )
    unix_socket_mode: int = option(
        0o600,
        "unix-socket-mode",
        "naiad: permissions of Unix sockets, in octal. 600: only the server's user can connect.",
        kind=ValueKind.MODE,
    )
    max_connections_per_address: int = option(
        0,
        "max-connections-per-address",
        "naiad: maximum of open connections per client address (IPv6: per /64 network); further ones get 503 or "
        "are closed. 0: no limit.",
        minimum=0,
    )
    max_request_bytes: int = option(
        0,
        "max-request-bytes-in-flight",
        "naiad: maximum of bytes of all request bodies in the server, after decompression. Further requests "
        "get 503 or RESOURCE_EXHAUSTED. 0: a quarter of the memory.",
        minimum=0,
    )
    log: LogOptions = field(default_factory=LogOptions)
    access_log: AccessLogOptions = field(default_factory=AccessLogOptions)
    repository: RepositoryOptions = field(default_factory=RepositoryOptions)
    bare_models: BareModelOptions = field(default_factory=BareModelOptions)
    http: HttpOptions = field(default_factory=HttpOptions)
    grpc: GrpcOptions = field(default_factory=GrpcOptions)
    metrics: MetricsOptions = field(default_factory=MetricsOptions)
    trace: TraceOptions = option(
        TraceOptions(),
        "trace-config",
        "A trace setting: level=OFF|TIMESTAMPS|TENSORS, rate=<trace one of N requests>, count=<traces in "
        "total>, triton,file=<path>, triton,log-frequency=<traces per file>, mode=opentelemetry, "
        "opentelemetry,url=<collector>, opentelemetry,resource=<key>=<value>, "
        "opentelemetry,bsp_max_queue_size=, bsp_schedule_delay=, bsp_max_export_batch_size=; repeatable.",
        repeat=True,
        summary="A trace setting, such as level=TIMESTAMPS; repeatable.",
    )
    recording: RecordingOptions = field(default_factory=RecordingOptions)
    http_tls: TlsOptions = field(default_factory=TlsOptions)
    grpc_tls: TlsOptions = field(default_factory=TlsOptions)
    access: AccessOptions = field(default_factory=AccessOptions)
    shared_memory: SharedMemoryOptions = field(default_factory=SharedMemoryOptions)
    sagemaker: SageMakerOptions = field(default_factory=SageMakerOptions)
    vertex_ai: VertexAiOptions = field(default_factory=VertexAiOptions)
    azure_ml: AzureMlOptions = field(default_factory=AzureMlOptions)
    rate_limit: RateLimitOptions = field(default_factory=RateLimitOptions)
    overload: OverloadOptions = field(default_factory=OverloadOptions)
    load_limits: LoadLimitOptions = field(default_factory=LoadLimitOptions)
    on_demand: OnDemandOptions = field(default_factory=OnDemandOptions)
    backend_config: Mapping[str, Mapping[str, str]] = option(
        {},
        "backend-config",
        "A setting of a backend, or without a name of all backends; repeatable.",
        kind=ValueKind.SETTING,
        repeat=True,
        read=named_settings,
        summary="A setting of a backend; repeatable.",
    )
    allow_pickle: bool = option(
        False,
        "allow-pickle",
        "naiad: load pickled models of scikit-learn (model.joblib, model.pkl) and MLflow. Loading a pickle "
        "executes its code.",
        kind=ValueKind.SWITCH,
    )
    backend_directory: str = option(
        "",
        "backend-directory",
        "Directory of Python-based backends: NAME/model.py executes all models with backend NAME.",
    )
    cache_config: Mapping[str, Mapping[str, str]] = option(
        {},
        "cache-config",
        "Response cache.",
        kind=ValueKind.SETTING,
        repeat=True,
        read=named_settings,
        summary="The response cache, such as local,size=1000000.",
    )
    host_policies: Mapping[str, HostPolicy] = option(
        {},
        "host-policy",
        "CPU cores for the instances of a policy: <policy>,cpu-cores=0-3,8 or <policy>,numa-node=1; repeatable. "
        "<policy> is the 'host_policy' of an instance group, by default cpu, model or gpu_N.",
        kind=ValueKind.SETTING,
        repeat=True,
        read=_host_policies,
    )
    cache_size_bytes: int = 0
    """The deprecated form of a local cache; `cache_config` contains it too."""
    no_effect: Sequence[str] = ()
    """Given flags that are accepted but have no effect; the log lists them once."""

    @property
    def backend_settings(self) -> Mapping[str, Mapping[str, str]]:
        """`backend_config`, with what other flags mean for backends."""
        if not self.allow_pickle:
            return self.backend_config
        loading = {name: {**self.backend_config.get(name, {}), "allow-pickle": "true"} for name in _PICKLE_BACKENDS}
        return {**self.backend_config, **loading}

    @property
    def most_connections(self) -> int:
        """Maximum number of connections over all ports; HTTP/2 has its limit per port."""
        http = self.http.max_connections + self.grpc.max_connections if self.http.allow else 0
        own_grpc_port = self.grpc.allow and not is_one_port(self.http_place, self.grpc_place)
        clouds = self.http.max_connections * sum(place.allow for place in self.cloud_places)
        return http + clouds + (self.grpc.max_connections if own_grpc_port else 0)

    @property
    def has_connection_limits(self) -> bool:
        """Whether a flag has changed the maximum number of connections."""
        chosen = self.http.max_connections, self.grpc.max_connections
        return chosen != (HttpOptions().max_connections, GrpcOptions().max_connections)

    @property
    def http_place(self) -> Place:
        """The address of HTTP."""
        http = self.http
        return Place("http", http.allow, http.address, http.port, self.http_tls, self.access.http_restricted)

    @property
    def grpc_place(self) -> Place:
        """The address of gRPC."""
        grpc = self.grpc
        return Place("grpc", grpc.allow, grpc.address, grpc.port, self.grpc_tls, self.access.grpc_restricted)

    @property
    def metrics_place(self) -> Place:
        """The address of the metrics, with defaults applied."""
        metrics, http = self.metrics, self.http.address
        return Place(
            "metrics", metrics.allow, metrics.address or ("127.0.0.1" if is_unix(http) else http), metrics.port
        )

    @property
    def cloud_places(self) -> Sequence[Place]:
        """The addresses of the cloud endpoints."""
        clouds = (("sagemaker", self.sagemaker), ("vertex-ai", self.vertex_ai), ("azure-ml", self.azure_ml))
        return [Place(name, cloud.allow, cloud.address, cloud.port) for name, cloud in clouds]
