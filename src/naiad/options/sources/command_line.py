"""The command line of `naiad serve`: Triton's flags, parsed to server options.

Values come from the command line, from the file of `--config` and from environment variables; for each option the
first source that has it counts.
"""

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from naiad.options.flag import COMMAND_LINE, Flag, Given, OptionError, ValueKind, listed, parse_boolean, unknown_flag
from naiad.options.flags import CONFIG, SECTIONS, all_flags
from naiad.options.network.access_options import check_hosts, check_origin, compile_header_pattern
from naiad.options.network.addresses import check_address, is_unix, problem_of_places
from naiad.options.options import RepositoryOptions, ServerOptions
from naiad.options.trace import TraceOptions, parse_trace_flags

__all__ = ["OptionError", "parse_options", "read_settings"]


def parse_options(arguments: Sequence[str], environ: Mapping[str, str] = os.environ) -> ServerOptions:
    """Parse the arguments of `naiad serve`. Raises OptionError for the first invalid one."""
    options = _build(read_settings(arguments, environ))
    _check(options)
    return options


def read_settings(arguments: Sequence[str], environ: Mapping[str, str]) -> list[Given]:
    """Return the effective settings: of each option the ones from the source with priority. Raises OptionError."""
    given = parse_arguments(arguments, COMMAND_LINE)
    files = [each.text for each in given if each.flag.name == CONFIG]
    if len(files) > 1:
        raise OptionError(f"--{CONFIG} is given twice ({', '.join(files)}); put all flags into one file")
    if files:
        from naiad.options.sources.config_file import read_config_file  # most starts have no file

        given += _without(read_config_file(files[0]), given)
    variables = environment_settings(environ, is_alone=not arguments)
    return [*given, *_without(variables, given)]


def _without(settings: Iterable[Given], stronger: Iterable[Given]) -> list[Given]:
    targets = {each.flag.target or each.flag.name for each in stronger}
    return [each for each in settings if (each.flag.target or each.flag.name) not in targets]


def parse_arguments(arguments: Sequence[str], source: str) -> list[Given]:
    """Split arguments into flags and their values; `source` names where they are from. Raises OptionError."""
    flags = {flag.name: flag for flag in all_flags()}
    given: list[Given] = []
    paths: list[Given] = []
    rest = list(reversed(arguments))
    while rest:
        argument = rest.pop()
        if not argument.startswith("-") or argument == "-":
            paths.append(Given(flags["model-repository"], argument, source))
            continue
        name, has_value, value = argument.lstrip("-").partition("=")
        flag = flags.get(name) if argument.startswith("--") else None
        if flag is None:
            raise unknown_flag(argument, flags)
        if flag.kind is ValueKind.SWITCH:
            if has_value:
                raise OptionError(f"--{name} takes no value, got '{value}'")
        elif not has_value:
            if not rest:
                raise OptionError(f"--{name} needs a value: {flag.usage}")
            value = rest.pop()
        given.append(Given(flag, value, source))
    return [*paths, *given]


def _build(given: Sequence[Given]) -> ServerOptions:
    values: dict[str, dict[str, Any]] = {section: {} for section in ("", *SECTIONS)}
    texts: dict[str, list[str]] = {"repository.paths": []}
    readers: dict[str, Given] = {}
    no_effect: list[str] = []
    for each in given:
        flag = each.flag
        value = _value_of(each)
        if flag.no_effect:
            no_effect.append(f"--{flag.name}")
        elif flag.repeat:
            texts.setdefault(flag.target, []).append(each.text)
            readers.setdefault(flag.target, each)
        elif flag.target:
            section, _, name = flag.target.rpartition(".")
            values[section][name] = (not value) if flag.negate else value
    trace = _trace_options({name: texts.pop(name) for name in list(texts) if name.partition(".")[0] == "trace"})
    for target, collected in texts.items():
        section, _, name = target.rpartition(".")
        values[section][name] = _read(readers.get(target), collected)
    first = readers.get("repository.paths")
    if first is not None and first.source in _REPOSITORIES:
        values["repository"]["variable"] = first.source
    _check_cache(values[""])
    sections: dict[str, Any] = {name: kind(**values[name]) for name, kind in SECTIONS.items()}
    no_effect += sections["http_tls"].unused("http") + sections["grpc_tls"].unused("grpc")
    return ServerOptions(**values[""], **sections, trace=trace, no_effect=tuple(dict.fromkeys(no_effect)))


def _value_of(given: Given) -> Any:
    try:
        return parse_value(given.flag, given.text)
    except ValueError as error:
        raise OptionError(f"{given.label}: '{given.text}' {error}") from None


def _read(first: Given | None, texts: Sequence[str]) -> Any:
    """Return the value of a repeatable flag, whose `first` occurrence names it in messages."""
    if first is None:
        return tuple(texts)
    try:
        return first.flag.read(texts)
    except ValueError as error:
        raise OptionError(f"{first.label}: {error}") from None


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


# --- combinations ---------------------------------------------------------------------------------------------------


def _check(options: ServerOptions) -> None:
    for problem in (options.http_tls.problem("http"), options.grpc_tls.problem("grpc")):
        if problem:
            raise OptionError(problem)
    _check_pattern("--http-header-forward-pattern", options.http.header_forward_pattern)
    _check_pattern("--grpc-header-forward-pattern", options.grpc.header_forward_pattern)
    if options.recording.problem:
        raise OptionError(options.recording.problem)
    if options.on_demand.problem:
        raise OptionError(options.on_demand.problem)
    _check_models_at_start(options.repository)
    if not options.repository.paths:
        # Triton: "--model-repository must be specified".
        clouds = (options.vertex_ai.allow, options.azure_ml.allow)
        variable = next((name for name, allow in zip(_REPOSITORIES, clouds, strict=True) if allow), "")
        fix = f"; set {variable} or --model-repository" if variable else ""
        raise OptionError(
            f"--model-repository must be specified: a repository or a model, as in naiad serve model.onnx{fix}"
        )
    if not all(options.repository.paths):
        # Often an unset variable; an empty path would be the working directory.
        raise OptionError("--model-repository is empty; name a repository or a model, or . for the working directory")
    places = problem_of_places(options.http_place, options.grpc_place, options.metrics_place, *options.cloud_places)
    if places:
        raise OptionError(places)
    _check_clouds(options)
    if options.process_count > 1 and options.rate_limit.is_on:
        raise OptionError(
            f"--processes={options.process_count} and --rate-limit={options.rate_limit.mode} exclude each other: the "
            "rate limiter works within one process; use --processes=1 or --rate-limit=off"
        )
    if not any(place.allow for place in (options.http_place, options.grpc_place, *options.cloud_places)):
        raise OptionError("--allow-http and --allow-grpc are both false: nothing would be served")


def _check_clouds(options: ServerOptions) -> None:
    if options.vertex_ai.problem:
        raise OptionError(options.vertex_ai.problem)
    try:
        safe = options.sagemaker.safe_ports
    except ValueError as error:
        raise OptionError(f"--sagemaker-safe-port-range: '{options.sagemaker.safe_port_range}' {error}") from None
    places = (options.http_place, options.grpc_place, options.metrics_place, *options.cloud_places)
    for place in places:
        is_other = place.allow and place.name != "sagemaker" and not is_unix(place.address)
        if options.sagemaker.allow and is_other and place.port not in safe:
            # Triton's text, which ends with the range.
            raise OptionError(
                f"The server cannot listen to {place.name} requests at port {place.port}, allowed port range is "
                f"[{safe.start}, {safe.stop - 1}]; choose another --{place.name}-port or --allow-{place.name}=false"
            )


_PREDICTION = ("--allow-vertex-ai=true", "--allow-http=false", "--allow-grpc=false")
_REPOSITORIES = ("AIP_STORAGE_URI", "AZUREML_MODEL_DIR")
"""Variables of Vertex AI and Azure ML that name the repository."""


def environment_settings(environ: Mapping[str, str], *, is_alone: bool) -> list[Given]:
    """Return the settings of the environment. `is_alone`: `naiad serve` has no arguments. Raises OptionError."""
    found = _sagemaker_settings(environ) if is_alone else []
    if not found and environ.get("AIP_MODE") == "PREDICTION":
        # Triton: Vertex AI sends requests to its own endpoint only.
        found += parse_arguments(_PREDICTION, "AIP_MODE")
    given = {each.flag.name for each in found}
    for flag in all_flags():
        if flag.variable and environ.get(flag.variable) and flag.name not in given:
            found.append(Given(flag, environ[flag.variable], flag.variable))
    if "model-repository" not in given:
        variable = next((name for name in _REPOSITORIES if environ.get(name)), "")
        if variable:
            found += parse_arguments([f"--model-repository={environ[variable]}"], variable)
    return found


def _sagemaker_settings(environ: Mapping[str, str]) -> list[Given]:
    from naiad.options.sources.sagemaker import (  # other starts do not need it
        is_started_by_sagemaker,
        sagemaker_arguments,
    )

    found: list[Given] = []
    for source, arguments in sagemaker_arguments(environ) if is_started_by_sagemaker(environ) else ():
        try:
            found += parse_arguments(arguments, source)
        except OptionError as error:
            raise OptionError(f"{source}: {error}") from None
    return found


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
        raise ValueError(f"has no setting; write {ValueKind.SETTING.value} or <setting>=<value>")
    return text


_PARSERS: Mapping[ValueKind, Callable[[str], Any]] = {
    ValueKind.STRING: str,
    ValueKind.INTEGER: _parse_integer,
    ValueKind.FLOAT: _parse_float,
    ValueKind.BOOLEAN: parse_boolean,
    ValueKind.SWITCH: lambda _: True,
    ValueKind.SETTING: _parse_setting,
    ValueKind.ADDRESS: check_address,
    ValueKind.MODE: _parse_mode,
    ValueKind.ORIGIN: check_origin,
    ValueKind.HOSTS: check_hosts,
    ValueKind.RESTRICTION: str,
}


def parse_value(flag: Flag, text: str) -> Any:
    """Return the value of a flag. Raises ValueError with the rest of a sentence that begins with the value."""
    value = _PARSERS[flag.kind](text)
    _check_range(flag, value)
    if flag.only is not None and text.lower() not in (only.lower() for only in flag.only):
        allowed = f"; this server supports only {listed(flag.only)}" if flag.only else ""
        raise ValueError(f"is not supported by this server{allowed}")
    return text.lower() if flag.only is not None and flag.kind is ValueKind.STRING else value


def _check_range(flag: Flag, value: Any) -> None:
    if flag.needs_text and not value:
        raise ValueError("is empty; give a value, or leave the flag out")
    if flag.choices and value not in flag.choices:
        raise ValueError(f"is not one of {listed(flag.choices)}")
    if flag.minimum is not None and value < flag.minimum:
        raise ValueError(f"is too small; the minimum is {flag.minimum:g}")
    if flag.maximum is not None and value > flag.maximum:
        raise ValueError(f"is too large; the maximum is {flag.maximum:g}")
