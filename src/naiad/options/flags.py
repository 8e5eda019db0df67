"""The flags of `naiad serve`, in the order of `--help`: Triton's, by name and value format, and naiad's own.

Flags with an effect are declared with the options that they set. This module adds Triton's flags without an effect.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace

from naiad.options.flag import Flag, ValueKind, flags_of, no_effect
from naiad.options.network.access_options import TlsOptions
from naiad.options.options import ServerOptions

SECTIONS: Mapping[str, type] = {
    each.name: each.type
    for each in fields(ServerOptions)
    if isinstance(each.type, type) and is_dataclass(each.type) and not each.metadata
}
"""Fields of ServerOptions that are groups of options; a field with a flag of its own is none."""

CONFIG = "config"
"""The flag that names a file with further flags."""
_STRING, _BOOLEAN = ValueKind.STRING, ValueKind.BOOLEAN

_REPOSITORY_MORE = (
    Flag("model-store", _STRING, "The same as --model-repository.", "repository.paths", repeat=True),
    no_effect("enable-peer-access", "Peer access between GPUs.", _BOOLEAN),
)
_HTTP_MORE = (no_effect("http-thread-count", "Threads for HTTP; naiad has one event loop.", minimum=1),)
_GRPC_MORE = (
    no_effect("grpc-infer-thread-count", "Threads for gRPC.", minimum=2, maximum=128),
    no_effect("grpc-infer-allocation-pool-size", "Pooled request objects."),
    no_effect("grpc-max-response-pool-size", "Pooled response objects."),
)
_BACKEND_MORE = (
    no_effect("repoagent-directory", "Directory of repository agents.", _STRING),
    no_effect("cache-directory", "Directory of response cache libraries.", _STRING),
)
_TRACING = (
    Flag("trace-level", _STRING, "Deprecated: use --trace-config level=.", "trace.level", repeat=True),
    Flag("trace-file", _STRING, "Deprecated: use --trace-config triton,file=.", "trace.file", repeat=True),
    Flag("trace-rate", _STRING, "Deprecated: use --trace-config rate=.", "trace.rate", repeat=True),
    Flag("trace-count", _STRING, "Deprecated: use --trace-config count=.", "trace.count", repeat=True),
    Flag(
        "trace-log-frequency",
        _STRING,
        "Deprecated: use --trace-config triton,log-frequency=.",
        "trace.log_frequency",
        repeat=True,
    ),
)
_DEVICE_MORE = (
    no_effect("pinned-memory-pool-byte-size", "Pinned host memory for GPUs."),
    no_effect("cuda-memory-pool-byte-size", "CUDA memory by device.", _STRING, repeat=True),
    no_effect("cuda-virtual-address-size", "CUDA addresses by device.", _STRING, repeat=True),
    no_effect("min-supported-compute-capability", "Oldest GPU to use.", ValueKind.FLOAT),
    no_effect("buffer-manager-thread-count", "Threads that copy tensors."),
    no_effect("model-load-gpu-limit", "GPU memory limit for loading.", _STRING, repeat=True),
)
_CLOUD_MORE = (
    no_effect("sagemaker-thread-count", "Threads for SageMaker."),
    no_effect("vertex-ai-thread-count", "Threads for Vertex AI."),
)
_DEPRECATED = (
    Flag(
        "strict-model-config",
        _BOOLEAN,
        "Deprecated: true means --disable-auto-complete-config.",
        "repository.auto_complete",
        default=True,
        negate=True,
    ),
    Flag(
        "response-cache-byte-size",
        ValueKind.INTEGER,
        "Deprecated: use --cache-config.",
        "cache_size_bytes",
        default=0,
        minimum=0,
    ),
)
_SERVER = tuple(flags_of(ServerOptions))
_BACKENDS = ("backend-config", "backend-directory", "cache-config")
_ELSEWHERE = (*_BACKENDS, "trace-config", "host-policy")


def _tls(prefix: str, protocol: str, mark: str = "") -> Iterator[Flag]:
    """Yield the TLS flags of an endpoint, which are declared once for both."""
    for flag in flags_of(TlsOptions, f"{prefix}_tls"):
        help_ = mark + flag.help.format(prefix=prefix, protocol=protocol)
        summary = flag.summary.format(prefix=prefix)
        yield replace(flag, name=f"{prefix}-{flag.name}", help=help_, summary=summary)


def _section(name: str) -> Iterable[Flag]:
    return flags_of(SECTIONS[name], name)


def _server(*names: str) -> Iterator[Flag]:
    return (flag for flag in _SERVER if flag.name in names)


GROUPS: Sequence[tuple[str, Sequence[Flag]]] = (
    ("Server", (*(flag for flag in _SERVER if flag.name not in _ELSEWHERE), *_section("overload"))),
    ("Logging", (*_section("log"), *_section("access_log"))),
    ("Model repository", (*_section("repository"), *_section("bare_models"), *_REPOSITORY_MORE)),
    ("Models on demand", (*_section("on_demand"),)),
    ("Limits of a load", (*_section("load_limits"),)),
    ("HTTP", (*_section("http"), *_tls("http", "HTTP", "naiad: "), *_HTTP_MORE)),
    ("gRPC", (*_section("grpc"), *_tls("grpc", "gRPC"), *_GRPC_MORE)),
    ("Access", (*_section("access"),)),
    ("Metrics", (*_section("metrics"),)),
    ("Backends, cache and rate limiter", (*_server(*_BACKENDS), *_section("rate_limit"), *_BACKEND_MORE)),
    ("Tracing", (*_server("trace-config"), *_TRACING)),
    ("Recording", (*_section("recording"),)),
    ("Memory and devices", (*_section("shared_memory"), *_server("host-policy"), *_DEVICE_MORE)),
    ("Clouds", (*_section("sagemaker"), *_section("vertex_ai"), *_section("azure_ml"), *_CLOUD_MORE)),
    ("Deprecated", _DEPRECATED),
)
"""Every flag, in the order of `--help`."""


def all_flags() -> Iterator[Flag]:
    """Yield every flag."""
    for _, flags in GROUPS:
        yield from flags
