"""The command line of `naiad serve`: Triton's flags, parsed to server options."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from naiad.options.access import check_origin, compile_header_pattern
from naiad.options.addresses import check_address, problem_of_places
from naiad.options.flag import Flag, Kind, listed, parse_boolean
from naiad.options.flags import SECTIONS, all_flags
from naiad.options.options import RepositoryOptions, ServerOptions
from naiad.options.trace import TraceOptions, parse_trace_flags


class OptionError(Exception):
    """An invalid command line; the text names the flag, the value and the fix."""


def parse_options(arguments: Sequence[str]) -> ServerOptions:
    """Parse the arguments of `naiad serve`. Raises OptionError for the first invalid one."""
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
    import difflib  # takes 4 ms to import

    name = argument.lstrip("-").partition("=")[0]
    near = difflib.get_close_matches(name, flags, n=1)
    hint = f"; did you mean --{near[0]}?" if near else "; see --help"
    return f"unknown flag {argument.partition('=')[0]}{hint}"


def _build(given: Sequence[tuple[Flag, str]], paths: Sequence[str]) -> ServerOptions:
    values: dict[str, dict[str, Any]] = {section: {} for section in ("", *SECTIONS)}
    texts: dict[str, list[str]] = {"repository.paths": list(paths)}
    readers: dict[str, Flag] = {}
    no_effect: list[str] = []
    for flag, text in given:
        value = _parse_value(flag, text)
        if flag.no_effect:
            no_effect.append(f"--{flag.name}")
        elif flag.repeat:
            texts.setdefault(flag.target, []).append(text)
            readers.setdefault(flag.target, flag)
        elif flag.target:
            section, _, name = flag.target.rpartition(".")
            values[section][name] = (not value) if flag.negate else value
    trace = _trace_options({name: texts.pop(name) for name in list(texts) if name.partition(".")[0] == "trace"})
    for target, collected in texts.items():
        section, _, name = target.rpartition(".")
        values[section][name] = _read(readers.get(target), collected)
    _check_cache(values[""])
    sections: dict[str, Any] = {name: kind(**values[name]) for name, kind in SECTIONS.items()}
    no_effect += sections["http_tls"].unused("http") + sections["grpc_tls"].unused("grpc")
    return ServerOptions(**values[""], **sections, trace=trace, no_effect=tuple(dict.fromkeys(no_effect)))


def _read(flag: Flag | None, texts: Sequence[str]) -> Any:
    """Return the value of a repeatable flag; without a flag, of the positional arguments."""
    if flag is None:
        return tuple(texts)
    try:
        return flag.read(texts)
    except ValueError as error:
        raise OptionError(f"--{flag.name}: {error}") from None


# --- values ---------------------------------------------------------------------------------------------------------


def _parse_integer(text: str) -> int:
    digits = text[1:] if text[:1] in "+-" else text
    if not (digits.isascii() and digits.isdigit()):
        raise ValueError("is not an integer; write digits only, such as 8000")
    return int(text)


def _parse_float(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError("is not a number; write one such as 2.5") from None
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
    Kind.BOOLEAN: parse_boolean,
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
        allowed = f"; this server supports only {listed(flag.only)}" if flag.only else ""
        raise OptionError(f"--{flag.name}={text} is not supported by this server{allowed}")
    return text.lower() if flag.only is not None and flag.kind is Kind.STRING else value


def _check_range(flag: Flag, value: Any) -> None:
    if flag.choices and value not in flag.choices:
        raise ValueError(f"is not one of {listed(flag.choices)}")
    if flag.minimum is not None and value < flag.minimum:
        raise ValueError(f"is too small; the minimum is {flag.minimum:g}")
    if flag.maximum is not None and value > flag.maximum:
        raise ValueError(f"is too large; the maximum is {flag.maximum:g}")


def _trace_options(collected: Mapping[str, Sequence[str]]) -> TraceOptions:
    names = ("level", "rate", "count", "file", "log_frequency")
    deprecated = {name.replace("_", "-"): collected.get(f"trace.{name}", ()) for name in names}
    try:
        return parse_trace_flags(collected.get("trace", ()), deprecated)
    except ValueError as error:
        raise OptionError(f"--trace-config: {error}") from None


def _check_cache(values: dict[str, Any]) -> None:
    """Triton: --response-cache-byte-size means local,size."""
    size_bytes = values.get("cache_size_bytes", 0)
    if size_bytes and "cache_config" in values:
        raise OptionError("--response-cache-byte-size and --cache-config exclude each other; use --cache-config")
    if size_bytes:
        values["cache_config"] = {"local": {"size": str(size_bytes)}}


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


# --- combinations
# -----------------------------------------------------------------------------------------------------


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
