"""Options of the server of bound models: fields with the names of PyTriton, which are flags of `naiad serve`."""

import os
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from naiad.bind.exceptions import PyTritonBadParameterError, PyTritonValidationError
from naiad.config.problem import nearest
from naiad.options.flag import OptionError, ValueKind
from naiad.options.flags import all_flags
from naiad.options.network.access_options import CATEGORIES
from naiad.options.options import ServerOptions
from naiad.options.sources.command_line import parse_options

PREFIX = "PYTRITON_TRITON_CONFIG_"
"""Of environment variables: PYTRITON_TRITON_CONFIG_GRPC_PORT=8001."""
ACCESS_HEADER = "triton-access-token"
DEFAULT_PROTECTED_ENDPOINTS = ("shared-memory", "model-repository", "statistics", "trace", "logging")
_INDEXED = re.compile(r"(.+?)_(\d+)")


@dataclass(kw_only=True)
class TritonConfig:
    """Server options; None for the default of `naiad serve`, which `naiad serve --help-all` describes."""

    model_repository: str | Path | None = None
    """A repository whose models are served beside the bound ones."""
    id: str | None = None
    log_verbose: int | None = None
    log_file: str | Path | None = None
    exit_timeout_secs: int | None = None
    exit_on_error: bool | None = None
    strict_readiness: bool | None = None
    allow_http: bool | None = None
    http_address: str | None = None
    http_port: int | None = None
    http_header_forward_pattern: str | None = None
    http_thread_count: int | None = None
    http_restricted_api: str | None = None
    allow_grpc: bool | None = None
    grpc_address: str | None = None
    grpc_port: int | None = None
    grpc_header_forward_pattern: str | None = None
    grpc_infer_allocation_pool_size: int | None = None
    grpc_use_ssl: bool | None = None
    grpc_use_ssl_mutual: bool | None = None
    grpc_server_cert: str | Path | None = None
    grpc_server_key: str | Path | None = None
    grpc_root_cert: str | Path | None = None
    grpc_infer_response_compression_level: str | None = None
    grpc_keepalive_time: int | None = None
    grpc_keepalive_timeout: int | None = None
    grpc_keepalive_permit_without_calls: bool | None = None
    grpc_http2_max_pings_without_data: int | None = None
    grpc_http2_min_recv_ping_interval_without_data: int | None = None
    grpc_http2_max_ping_strikes: int | None = None
    grpc_restricted_protocol: str | None = None
    allow_metrics: bool | None = None
    allow_gpu_metrics: bool | None = None
    allow_cpu_metrics: bool | None = None
    metrics_interval_ms: int | None = None
    metrics_port: int | None = None
    metrics_address: str | None = None
    allow_sagemaker: bool | None = None
    sagemaker_port: int | None = None
    sagemaker_safe_port_range: str | None = None
    sagemaker_thread_count: int | None = None
    allow_vertex_ai: bool | None = None
    vertex_ai_port: int | None = None
    vertex_ai_thread_count: int | None = None
    vertex_ai_default_model: str | None = None
    metrics_config: Sequence[str] | None = None
    trace_config: Sequence[str] | None = None
    cache_config: Sequence[str] | None = None
    cache_directory: str | None = None
    buffer_manager_thread_count: int | None = None
    flags: Sequence[str] = ()
    """naiad: further flags of `naiad serve`, such as `--drain-seconds=10`."""

    def __post_init__(self) -> None:
        """Raise PyTritonValidationError if neither HTTP nor gRPC is served."""
        if self.allow_http is False and self.allow_grpc is False:
            raise PyTritonValidationError(
                "allow_http and allow_grpc are both False: nothing would be served; allow one of them"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return all fields."""
        return asdict(self)

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> Self:
        """Return the configuration of a dictionary; texts become the values that the fields expect.

        Raises PyTritonBadParameterError for an unknown field and for a value that does not fit.
        """
        known = [each.name for each in fields(cls)]
        for name in config:
            if name not in known:
                raise _unknown_field(name, known)
        return cls(**{name: _converted(name, value) for name, value in config.items()})

    @classmethod
    def from_env(cls) -> Self:
        """Return the configuration of the environment. Lists are numbered: PYTRITON_TRITON_CONFIG_CACHE_CONFIG_0.

        Raises PyTritonBadParameterError, which names the variable.
        """
        return cls.from_dict(_environment_settings(os.environ))


def _environment_settings(environ: Mapping[str, str]) -> dict[str, Any]:
    lists: dict[str, dict[int, str]] = {}
    found: dict[str, Any] = {}
    known = {each.name for each in fields(TritonConfig)}
    for variable, value in environ.items():
        if not variable.startswith(PREFIX):
            continue
        name = variable[len(PREFIX) :].lower()
        indexed = _INDEXED.fullmatch(name)
        if name not in known and indexed is not None:
            lists.setdefault(indexed[1], {})[int(indexed[2])] = value
        else:
            found[name] = value
    return found | {name: [values[index] for index in sorted(values)] for name, values in lists.items()}


def _unknown_field(name: str, known: Sequence[str]) -> PyTritonBadParameterError:
    meant = nearest(name, known)
    hint = f"did you mean '{meant}'?" if meant else "for a flag of naiad serve write flags=['--flag=value']"
    return PyTritonBadParameterError(f"TritonConfig has no field '{name}' ({PREFIX}{name.upper()}); {hint}")


def _converted(name: str, value: Any) -> Any:
    kind = _FLAGS[name].kind if name in _FLAGS else None
    if not isinstance(value, str):
        return value
    if kind is ValueKind.BOOLEAN:
        if value.lower() not in ("true", "false", "1", "0", "on", "off"):
            raise PyTritonBadParameterError(f"TritonConfig.{name} is '{value}', expected true or false")
        return value.lower() in ("true", "1", "on")
    if kind is ValueKind.INTEGER:
        try:
            return int(value)
        except ValueError:
            raise PyTritonBadParameterError(f"TritonConfig.{name} is '{value}', expected a whole number") from None
    return value.split(",") if name in _LISTS and name != "flags" else value


_FLAGS = {flag.name.replace("-", "_"): flag for flag in all_flags()}
_LISTS = frozenset({"metrics_config", "trace_config", "cache_config", "flags"})


@dataclass
class TritonSecurityConfig:
    """Parts of the protocols that need an access token, in the header `triton-access-token`."""

    access_token: str | None = field(default=None, repr=False)
    """By default a random one, see `Triton.get_access_token`."""
    restricted_endpoints: Sequence[str] | None = None
    """By default shared-memory, model-repository, statistics, trace and logging; [] for none."""

    def __post_init__(self) -> None:
        """Choose the defaults. Raises PyTritonValidationError for an unknown endpoint."""
        if self.restricted_endpoints is None:
            self.restricted_endpoints = list(DEFAULT_PROTECTED_ENDPOINTS)
        unknown = sorted(set(self.restricted_endpoints) - set(CATEGORIES))
        if unknown:
            raise PyTritonValidationError(
                f"Invalid endpoint names: {', '.join(unknown)}. Valid endpoints are: {', '.join(CATEGORIES)}"
            )
        if self.access_token is None and self.restricted_endpoints:
            self.access_token = secrets.token_urlsafe(32)


def server_options(
    config: TritonConfig | None, security: TritonSecurityConfig | None, model_store: Path
) -> ServerOptions:
    """Return the options of a server for the models in `model_store`.

    A field comes from `config`, otherwise from the environment. Raises PyTritonBadParameterError.
    """
    own = {} if config is None else _given(config)
    settings = {**_given(TritonConfig.from_env()), **own}
    arguments = [f"--model-repository={model_store}", "--model-control-mode=explicit", "--load-model=*"]
    for name, value in settings.items():
        if name == "flags":
            arguments += list(value)
        else:
            arguments += _flag_texts(name, value)
    if security is not None and security.access_token and security.restricted_endpoints:
        rule = f"{','.join(security.restricted_endpoints)}:{ACCESS_HEADER}={security.access_token}"
        arguments += [f"--http-restricted-api={rule}", f"--grpc-restricted-protocol={rule}"]
    try:
        return parse_options(arguments, {})
    except OptionError as error:
        raise PyTritonBadParameterError(f"TritonConfig: {error}") from None


def _given(config: TritonConfig) -> dict[str, Any]:
    return {name: value for name, value in config.to_dict().items() if value is not None and value != ()}


def _flag_texts(name: str, value: Any) -> list[str]:
    texts = [value] if isinstance(value, str) or not isinstance(value, Sequence) else list(value)
    flag = f"--{name.replace('_', '-')}"
    return [f"{flag}={str(text).lower() if isinstance(text, bool) else text}" for text in texts]
