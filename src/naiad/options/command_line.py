"""The command line of `naiad serve`: Triton's flags, parsed to server options."""

import difflib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from naiad.options.access import (
    GRPC_HEADER_PREFIX,
    AccessOptions,
    TlsOptions,
    check_origin,
    compile_header_pattern,
    parse_restrictions,
)
from naiad.options.addresses import check_address, problem_of_places
from naiad.options.flags import Flag, Kind, all_flags
from naiad.options.host_policy import HostPolicy, parse_host_policies
from naiad.options.limits import RateLimitOptions, ResourceAmount, parse_amounts
from naiad.options.options import (
    GrpcOptions,
    HttpOptions,
    LogOptions,
    MetricsOptions,
    OverloadOptions,
    RepositoryOptions,
    ServerOptions,
    SharedMemoryOptions,
    parse_quantiles,
)
from naiad.options.trace import TraceOptions, parse_trace_flags


class OptionError(Exception):
    """A command line that cannot be taken; the text names the flag, the value and what would be right."""


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
    "overload": OverloadOptions,
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
    if options.process_count > 1 and options.rate_limit.is_on:
        raise OptionError(
            f"--processes={options.process_count} and --rate-limit={options.rate_limit.mode} exclude each other: the "
            "rate limiter works within one process; use --processes=1 or --rate-limit=off"
        )
    if not (options.http.allow or options.grpc.allow):
        raise OptionError("--allow-http and --allow-grpc are both false: nothing would be served")
