"""Server options: what `naiad serve` was told, parsed from Triton's flags."""

import difflib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from naiad.config.address import check_address, is_unix
from naiad.config.flags import Flag, Kind, all_flags
from naiad.config.host_policy import HostPolicy, parse_host_policies
from naiad.config.places import Place, is_one_port, problem_of_places
from naiad.config.quantiles import parse_quantiles
from naiad.config.rate_limit import RateLimitOptions, ResourceAmount, parse_amounts
from naiad.config.security import (
    GRPC_HEADER_PREFIX,
    AccessOptions,
    TlsOptions,
    check_origin,
    compile_header_pattern,
    parse_restrictions,
)
from naiad.config.trace import TraceOptions, parse_trace_flags


class OptionError(Exception):
    """A command line that cannot be taken; the text names the flag, the value and what would be right."""


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
    max_decompressed_bytes: int = 64 * 1024 * 1024
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
    compression_level: str = "none"
    """Of the answers of inference: none, low, medium or high."""
    max_header_bytes: int = 65536
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
class ServerOptions:
    """Everything that `naiad serve` can be told."""

    server_id: str = "triton"
    exit_timeout_s: int = 30
    drain_s: float = 0.0
    process_count: int = 1
    """Server processes behind the same ports."""
    unix_socket_mode: int = 0o600
    """Permissions of the Unix sockets that the server makes."""
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
    backend_config: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Backend name to settings; the settings for all backends under ""."""
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


_SECTIONS: Mapping[str, type] = {
    "log": LogOptions,
    "repository": RepositoryOptions,
    "http": HttpOptions,
    "grpc": GrpcOptions,
    "metrics": MetricsOptions,
    "http_tls": TlsOptions,
    "grpc_tls": TlsOptions,
    "access": AccessOptions,
    "shared_memory": SharedMemoryOptions,
    "rate_limit": RateLimitOptions,
}

METRICS_SETTINGS = ("counter_latencies", "histogram_latencies", "summary_latencies", "summary_quantiles")
"""What `--metrics-config` knows."""


def parse_options(arguments: Sequence[str]) -> ServerOptions:
    """Parse the arguments of `naiad serve`. Raises OptionError for the first that is wrong."""
    flags = {flag.name: flag for flag in all_flags()}
    given: list[tuple[Flag, str]] = []
    paths: list[str] = []
    rest = list(reversed(arguments))
    while rest:
        argument = rest.pop()
        if not argument.startswith("-") or argument == "-":
            paths.append(argument)
            continue
        name, has_value, value = argument.lstrip("-").partition("=")
        flag = flags.get(name) if argument.startswith("--") else None
        if flag is None:
            raise OptionError(_unknown(argument, flags))
        if flag.kind is Kind.SWITCH:
            if has_value:
                raise OptionError(f"--{name} takes no value, got '{value}'")
        elif not has_value:
            if not rest:
                raise OptionError(f"--{name} needs a value: {flag.usage}")
            value = rest.pop()
        given.append((flag, value))
    options = _build(given, paths)
    _check(options)
    return options


def _unknown(argument: str, flags: Mapping[str, Flag]) -> str:
    name = argument.lstrip("-").partition("=")[0]
    near = difflib.get_close_matches(name, flags, n=1)
    hint = f"; did you mean --{near[0]}?" if near else "; see --help"
    return f"unknown flag {argument.partition('=')[0]}{hint}"


def _build(given: Sequence[tuple[Flag, str]], paths: Sequence[str]) -> ServerOptions:
    values: dict[str, dict[str, Any]] = {section: {} for section in ("", *_SECTIONS)}
    collected: dict[str, list[str]] = {"repository.paths": list(paths)}
    no_effect: list[str] = []
    for flag, text in given:
        value = _parse_value(flag, text)
        if flag.no_effect:
            no_effect.append(f"--{flag.name}")
        elif flag.target and flag.repeat:
            collected.setdefault(flag.target, []).append(text)
        elif flag.target:
            section, _, name = flag.target.rpartition(".")
            values[section][name] = (not value) if flag.negate else value
    values["repository"]["paths"] = tuple(collected["repository.paths"])
    values["repository"]["load_models"] = tuple(collected.get("repository.load_models", ()))
    values["metrics"]["settings"] = _metrics_settings(collected.get("metrics.settings", ()))
    values["rate_limit"]["resources"] = _amounts(collected.get("rate_limit.resources", ()))
    values["access"] |= _restrictions(collected)
    values["access"]["http_cors_origins"] = tuple(collected.get("access.http_cors_origins", ()))
    sections: dict[str, Any] = {name: kind(**values[name]) for name, kind in _SECTIONS.items()}
    cache_config = _cache_config(collected.get("cache_config", ()), values[""].get("cache_size_bytes", 0))
    no_effect += sections["http_tls"].unused("http") + sections["grpc_tls"].unused("grpc")
    return ServerOptions(
        **values[""],
        **sections,
        trace=_trace_options(collected),
        backend_config=_named_settings("backend-config", collected.get("backend_config", ())),
        cache_config=cache_config,
        host_policies=_host_policies(collected.get("host_policies", ())),
        no_effect=tuple(dict.fromkeys(no_effect)),
    )


# --- values ---------------------------------------------------------------------------------------------------------


def _parse_boolean(text: str) -> bool:
    # Triton: true, on and 1, false, off and 0, in any case.
    lowered = text.lower()
    if lowered in ("true", "on", "1"):
        return True
    if lowered in ("false", "off", "0"):
        return False
    raise ValueError("is not a boolean; use true or false")


def _parse_integer(text: str) -> int:
    digits = text[1:] if text[:1] in "+-" else text
    if not (digits.isascii() and digits.isdigit()):
        raise ValueError("is not an integer")
    return int(text)


def _parse_float(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError("is not a number") from None
    if not math.isfinite(value):
        raise ValueError("is not a finite number")
    return value


def _parse_mode(text: str) -> int:
    if not 3 <= len(text) <= 4 or not set(text) <= set("01234567"):
        raise ValueError("is not a file mode; write three octal digits such as 660")
    mode = int(text, 8)
    if mode > 0o777:
        raise ValueError("has bits beyond 777")
    return mode


def _parse_setting(text: str) -> str:
    if "=" not in text:
        raise ValueError(f"has no setting; write {Kind.SETTING.value} or <setting>=<value>")
    return text


_PARSERS: Mapping[Kind, Callable[[str], Any]] = {
    Kind.STRING: str,
    Kind.INTEGER: _parse_integer,
    Kind.FLOAT: _parse_float,
    Kind.BOOLEAN: _parse_boolean,
    Kind.SWITCH: lambda _: True,
    Kind.SETTING: _parse_setting,
    Kind.ADDRESS: check_address,
    Kind.MODE: _parse_mode,
    Kind.ORIGIN: check_origin,
    Kind.RESTRICTION: str,
}


def _parse_value(flag: Flag, text: str) -> Any:
    try:
        value = _PARSERS[flag.kind](text)
        _check_range(flag, value)
    except ValueError as error:
        raise OptionError(f"--{flag.name}: '{text}' {error}") from None
    if flag.only is not None and text.lower() not in (only.lower() for only in flag.only):
        allowed = f"; this server takes only {_listed(flag.only)}" if flag.only else ""
        raise OptionError(f"--{flag.name}={text} is not supported by this server{allowed}")
    return text.lower() if flag.only is not None and flag.kind is Kind.STRING else value


def _check_range(flag: Flag, value: Any) -> None:
    if flag.choices and value not in flag.choices:
        raise ValueError(f"is not one of {_listed(flag.choices)}")
    if flag.minimum is not None and value < flag.minimum:
        raise ValueError(f"is too small; the least is {flag.minimum:g}")
    if flag.maximum is not None and value > flag.maximum:
        raise ValueError(f"is too large; the most is {flag.maximum:g}")


def _listed(values: Sequence[str]) -> str:
    return ", ".join(f"'{value}'" for value in values)


def _cache_config(texts: Sequence[str], size_bytes: int) -> dict[str, dict[str, str]]:
    """Return the settings of the cache. Triton: --response-cache-byte-size means local,size."""
    if size_bytes and texts:
        raise OptionError("--response-cache-byte-size and --cache-config exclude each other; use --cache-config")
    if size_bytes:
        return {"local": {"size": str(size_bytes)}}
    return _named_settings("cache-config", texts)


def _named_settings(flag: str, texts: Sequence[str]) -> dict[str, dict[str, str]]:
    """Split `[<name>,]<setting>=<value>`; a comma after the first `=` belongs to the value."""
    config: dict[str, dict[str, str]] = {}
    for text in texts:
        left, _, value = text.partition("=")
        backend, _, setting = left.rpartition(",")
        if not setting:
            raise OptionError(f"--{flag}: '{text}' names no setting; write <name>,<setting>=<value>")
        config.setdefault(backend, {})[setting] = value
    return config


def _restrictions(collected: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    parsed: dict[str, Any] = {}
    for target, flag, noun, prefix in (
        ("http_restricted", "--http-restricted-api", "api", ""),
        ("grpc_restricted", "--grpc-restricted-protocol", "protocol", GRPC_HEADER_PREFIX),
    ):
        try:
            parsed[target] = parse_restrictions(collected.get(f"access.{target}", ()), noun, prefix)
        except ValueError as error:
            raise OptionError(f"{flag}: {error}") from None
    return parsed


def _trace_options(collected: Mapping[str, Sequence[str]]) -> TraceOptions:
    names = ("level", "rate", "count", "file", "log_frequency")
    deprecated = {name.replace("_", "-"): collected.get(f"trace.{name}", ()) for name in names}
    try:
        return parse_trace_flags(collected.get("trace", ()), deprecated)
    except ValueError as error:
        raise OptionError(f"--trace-config: {error}") from None


def _amounts(texts: Sequence[str]) -> Sequence[ResourceAmount]:
    try:
        return parse_amounts(texts)
    except ValueError as error:
        raise OptionError(f"--rate-limit-resource: {error}") from None


def _host_policies(texts: Sequence[str]) -> dict[str, HostPolicy]:
    try:
        return parse_host_policies(_named_settings("host-policy", texts))
    except ValueError as error:
        raise OptionError(f"--host-policy: {error}") from None


def _metrics_settings(texts: Sequence[str]) -> dict[str, str]:
    settings: dict[str, str] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if name not in METRICS_SETTINGS:
            raise OptionError(f"--metrics-config: unknown setting '{name}'; known are {_listed(METRICS_SETTINGS)}")
        try:
            if name == "summary_quantiles":
                parse_quantiles(value)
            else:
                value = str(_parse_boolean(value)).lower()
        except ValueError as error:
            raise OptionError(f"--metrics-config: {name}: '{value}' {error}") from None
        settings[name] = value
    return settings


def _check_models_at_start(options: RepositoryOptions) -> None:
    names = options.load_models
    if names and options.control_mode != "explicit":
        # Triton: "Use of '--load-model' requires setting '--model-control-mode=explicit' as well."
        raise OptionError(f"--load-model={names[0]} needs --model-control-mode=explicit as well")
    if "*" in names and len(names) > 1:
        raise OptionError("--load-model=* stands for all models and must be the only --load-model")


def _check_pattern(flag: str, pattern: str) -> None:
    try:
        compile_header_pattern(pattern)
    except re.error as error:
        raise OptionError(f"{flag}: '{pattern}' is not a regular expression: {error}") from None


# --- the whole ------------------------------------------------------------------------------------------------------


def _check(options: ServerOptions) -> None:
    for problem in (options.http_tls.problem("http"), options.grpc_tls.problem("grpc")):
        if problem:
            raise OptionError(problem)
    _check_pattern("--http-header-forward-pattern", options.http.header_forward_pattern)
    _check_pattern("--grpc-header-forward-pattern", options.grpc.header_forward_pattern)
    _check_models_at_start(options.repository)
    if not options.repository.paths:
        # Triton: "--model-repository must be specified".
        raise OptionError("--model-repository must be specified: a repository, a model directory or a model file")
    places = problem_of_places(options.http_place, options.grpc_place, options.metrics_place)
    if places:
        raise OptionError(places)
    if not (options.http.allow or options.grpc.allow):
        raise OptionError("--allow-http and --allow-grpc are both false: nothing would be served")
