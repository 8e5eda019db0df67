"""From flags to the plan of a run, with the checks of their values."""

import argparse
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from naiad.core.errors import InferError
from naiad.core.parameters import ParameterValue
from naiad.options.duration import read_time
from naiad.tools.perf.load.arrivals import MAX_CONCURRENCY
from naiad.tools.perf.load.search import check_loads
from naiad.tools.perf.perf_plan import (
    Concurrency,
    InputSettings,
    Intervals,
    Load,
    Measuring,
    Mode,
    ModelLoad,
    PeriodicConcurrency,
    Phase,
    Plan,
    Protocol,
    Ramp,
    Search,
    Sequences,
    ServerTarget,
    Stop,
)

_Number = TypeVar("_Number", int, float)
_LONGEST_S = 100 * 24 * 3600.0
"""Of times: what is longer is a mistake, and does not fit into the clocks of the system."""
_MOST_REQUESTS = 1_000_000_000
_MOST_PROCESSES = 256
_MOST_TRIALS = 1_000_000
_WIDEST_PERCENT = 1_000_000.0
_MOST_ROWS = 1_000_000
_MOST_SEED = (1 << 63) - 1
_LEAST_WEIGHT, _MOST_WEIGHT = 1e-6, 1e6
_MOST_BYTES = 1 << 30
"""Of a string or an output; gRPC carries at most 2 GiB in a message."""
_FASTEST, _SLOWEST = 1e6, 1e-6
"""Of a replay, as factors."""


class FlagError(ValueError):
    """A flag whose value makes no sense; the message names flag, value and fix."""


def between(value: _Number, minimum: _Number, maximum: _Number, flag: str) -> _Number:
    """Return `value`. Raises FlagError unless it is a number from `minimum` to `maximum`."""
    if not minimum <= value <= maximum:
        shown = str(value)[:_SHOWN_CHARACTERS]
        raise FlagError(f"{flag} is {shown.removesuffix('.0')}; use {_plain(minimum)} to {_plain(maximum)}")
    return value


def above_zero(value: float, maximum: float, flag: str) -> float:
    """Return `value`. Raises FlagError unless it is a number above 0, at most `maximum`."""
    if not 0 < value <= maximum:
        raise FlagError(f"{flag} is {value:g}; use a number above 0, at most {_plain(maximum)}")
    return value


def _plain(value: float) -> str:
    """Return a number as users write it: 1000000 and not 1e+06."""
    return str(int(value)) if value == int(value) else f"{value:g}"


_SHOWN_CHARACTERS = 40


_SCHEMES = ("http://", "https://", "grpc://", "grpcs://", "http+unix://", "grpc+unix://")
_TLS = ("https", "grpcs")
_IN_PROCESS = Protocol.IN_PROCESS
_TRUE = ("true", "1", "yes")
_NUMBER = r"\d+(\.\d+)?"
_PHASE = re.compile(rf"^(?P<length>{_NUMBER}(us|ms|s|m|h|)):(?P<start>{_NUMBER})(-(?P<end>{_NUMBER}))?$")


def make_plan(flags: argparse.Namespace, *, is_perf_analyzer: bool = False) -> Plan:
    """Return the plan. Raises FlagError.

    `is_perf_analyzer`: the default measurement is perf_analyzer's rule of three windows.
    """
    if not flags.models and not flags.replay:
        raise FlagError("-m is missing; name the model to measure, for example -m resnet")
    if flags.is_async and flags.sync:
        raise FlagError("--async and --sync exclude each other; use one of them, or none")
    loads = _loads(flags)
    service = _service(flags)
    if isinstance(loads, PeriodicConcurrency) and service.mode is Mode.UNARY and service.protocol is not _IN_PROCESS:
        raise FlagError("--periodic-concurrency-range counts responses of streams; add -i grpc --streaming")
    return Plan(
        service=service,
        models=_models(flags, is_perf_analyzer=is_perf_analyzer),
        loads=loads,
        measuring=_measuring(flags, is_perf_analyzer=is_perf_analyzer),
        processes=between(flags.processes, 0, _MOST_PROCESSES, "--processes"),
        metrics_url=_metrics_url(flags),
        metrics_interval_ms=between(flags.metrics_interval, 10, round(_LONGEST_S * 1e3), "--metrics-interval"),
        timing_share=between(flags.timing_share, 0.0, 1.0, "--timing-share"),
        repeat=between(flags.repeat, 1, _MOST_REQUESTS, "--repeat"),
        replay_files=tuple(flags.replay or ()),
        replay_service=_replay_service(flags, service),
        replay_speed=between(flags.replay_speed, _SLOWEST, _FASTEST, "--replay-speed"),
        is_fixed_schedule=flags.fixed_schedule,
        composing_models=tuple(filter(None, flags.bls_composing_models.split(","))),
        endpoint=flags.endpoint,
        keeps_requests=bool(flags.profile_export_file),
    )


def _loads(flags: argparse.Namespace) -> Search | Load:
    given: dict[str, Any] = {
        flag: value
        for flag, value in (
            ("--concurrency-range", flags.concurrency_range),
            ("--periodic-concurrency-range", flags.periodic_concurrency_range),
            ("--request-rate-range", flags.request_rate_range),
            ("--request-intervals", flags.request_intervals),
            ("--ramp", flags.ramp),
            ("--replay", flags.replay),
            ("--fixed-schedule", flags.fixed_schedule),
        )
        if value or value == ""
    }
    if empty := next((flag for flag, value in given.items() if value == ""), ""):
        raise FlagError(f"{empty} is empty; give it a value, or leave it out")
    if not given and flags.old_concurrency is not None:
        end = f":{flags.old_end or 0}" if flags.old_dynamic else ""
        given["--concurrency-range"] = f"{flags.old_concurrency}{end}"
    if len(given) > 1:
        raise FlagError("{} and {} exclude each other; use one of them".format(*given))
    flag, text = next(iter(given.items()), ("", ""))
    if flag not in _LOADS:
        return Concurrency(1)
    loads = _LOADS[flag](flags, flag, text)
    try:
        check_loads(loads, flags.latency_threshold)
    except InferError as error:
        raise FlagError(f"{flag} is '{text}': {error.message}") from None
    return loads


def _search(flags: argparse.Namespace, flag: str, text: str) -> Search:
    is_rate = flag == "--request-rate-range"
    parts = text.split(":")
    try:
        numbers = [float(part) if is_rate else float(int(part)) for part in parts]
    except (ValueError, OverflowError):
        kind = "numbers" if is_rate else "whole numbers"
        raise FlagError(f"{flag} is '{text}'; use START:END:STEP with {kind}, for example 1:8:1") from None
    if len(numbers) > 3:
        raise FlagError(f"{flag} is '{text}', which has {len(numbers)} parts; use START:END:STEP")
    if len(numbers) == 1:
        numbers.append(0 if flags.binary_search else numbers[0])
    start, end, step = (*numbers, 1.0)[:3]
    is_poisson = flags.request_distribution == "poisson"
    return Search(start, end, step, flags.binary_search, is_rate, is_poisson)


def _groups(flags: argparse.Namespace, flag: str, text: str) -> PeriodicConcurrency:
    parts = text.split(":")
    if len(parts) not in (2, 3) or not all(part.isdecimal() for part in parts):
        raise FlagError(f"{flag} is '{text}'; use START:END:STEP with whole numbers, for example 10:100:30")
    start, end, step = (*map(int, parts), 1)[:3]
    return PeriodicConcurrency(start, end, step, between(flags.request_period, 1, _MOST_REQUESTS, "--request-period"))


def _read_gaps(flags: argparse.Namespace, flag: str, file: str) -> Intervals:
    try:
        lines = Path(file).read_text().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise FlagError(f"{flag} {file} cannot be read: {error}") from None
    gaps: list[int] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if not line.strip().isdigit():
            raise FlagError(f"{file}:{number} is '{line.strip()[:40]}'; use a gap in microseconds, a whole number")
        gaps.append(int(line) * 1000)
    return Intervals(tuple(gaps))


def _ramp(flags: argparse.Namespace, flag: str, text: str) -> Ramp:
    phases: list[Phase] = []
    for part in text.split(","):
        found = _PHASE.match(part.strip())
        if found is None:
            raise FlagError(
                f"{flag} has the phase '{part}'; use LENGTH:RATE or LENGTH:FROM-TO, for example 30s:0-500"
            )
        start = float(found["start"])
        end = float(found["end"]) if found["end"] else start
        phases.append(Phase(read_time(found["length"], "s"), start, end))
    return Ramp(tuple(phases), is_poisson=flags.request_distribution == "poisson")


_LOADS: Mapping[str, Callable[[argparse.Namespace, str, str], Search | Load]] = {
    "--concurrency-range": _search,
    "--periodic-concurrency-range": _groups,
    "--request-rate-range": _search,
    "--request-intervals": _read_gaps,
    "--ramp": _ramp,
}


def _service(flags: argparse.Namespace) -> ServerTarget:
    kind = {"http": Protocol.HTTP, "grpc": Protocol.GRPC}.get(flags.protocol.lower())
    if kind is None:
        raise FlagError(f"-i is '{flags.protocol}'; use http or grpc")
    if flags.service_kind != "triton":
        if not flags.model_repository:
            raise FlagError(f"--service-kind {flags.service_kind} needs --model-repository DIR")
        timeout_s = _request_timeout_s(flags)
        return ServerTarget(flags.model_repository, Protocol.IN_PROCESS, request_timeout_s=timeout_s)
    uses_tls = kind is Protocol.GRPC and flags.ssl_grpc_use_ssl.lower() in _TRUE
    url = flags.url or ("localhost:8001" if kind is Protocol.GRPC else "localhost:8000")
    if not url.startswith(_SCHEMES):
        url = f"{kind.value}{'s' if uses_tls else ''}://{url}"
    is_grpc = url.startswith("grpc")
    if flags.streaming and not is_grpc:
        raise FlagError("--streaming works over gRPC only; add -i grpc")
    return _service_at(url, flags)


def _replay_service(flags: argparse.Namespace, service: ServerTarget) -> ServerTarget | None:
    """Return the service of `--replay-url`, which is of the protocol that `service` does not have."""
    url: str = flags.replay_url
    if not url:
        return None
    if not flags.replay or service.protocol is _IN_PROCESS or flags.streaming:
        raise FlagError("--replay-url is for --replay against a server, without --streaming; leave it out")
    other = Protocol.HTTP if service.protocol is Protocol.GRPC else Protocol.GRPC
    if not url.startswith(_SCHEMES):
        url = f"{other.value}{'s' if urlsplit(service.url).scheme in _TLS else ''}://{url}"
    found = _service_at(url, flags)
    if found.protocol is not other:
        raise FlagError(f"--replay-url is '{flags.replay_url}'; use an address for {other.value}: -u has the other")
    return found


def _service_at(url: str, flags: argparse.Namespace) -> ServerTarget:
    is_grpc = url.startswith("grpc")
    side = "grpc" if is_grpc else "https"
    return ServerTarget(
        url,
        Protocol.GRPC if is_grpc else Protocol.HTTP,
        Mode.STREAM if flags.streaming else Mode.UNARY,
        headers=_headers(flags.headers),
        compression=flags.compression,
        has_binary_inputs=flags.input_tensor_format == "binary",
        has_binary_outputs=flags.output_tensor_format == "binary",
        ca_file=getattr(flags, f"{side}_ca_file"),
        certificate_file=getattr(flags, f"{side}_certificate_file"),
        key_file=getattr(flags, f"{side}_key_file"),
        verifies_peer=is_grpc or flags.ssl_https_verify_peer == 1,
        verifies_host=is_grpc or flags.ssl_https_verify_host == 2,
        request_timeout_s=_request_timeout_s(flags),
    )


def _request_timeout_s(flags: argparse.Namespace) -> float:
    return above_zero(flags.request_timeout, _LONGEST_S, "--request-timeout")


def _headers(texts: Sequence[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for text in texts:
        name, colon, value = text.partition(":")
        if not colon or not name.strip():
            raise FlagError(f"-H is '{text}'; use NAME:VALUE, for example -H 'authorization: Bearer KEY'")
        headers[name.strip()] = value.strip()
    return headers


def _metrics_url(flags: argparse.Namespace) -> str:
    if not flags.collect_metrics and not flags.metrics_url:
        return ""
    url: str = flags.metrics_url or "localhost:8002/metrics"
    return url if "://" in url else f"http://{url}"


def _models(flags: argparse.Namespace, *, is_perf_analyzer: bool) -> list[ModelLoad]:
    batch_size = between(flags.batch_size, 1, _MOST_ROWS, "-b")
    inputs, sequences = _inputs(flags), _sequences(flags, is_perf_analyzer=is_perf_analyzer)
    models = []
    for text in flags.models or ():
        name, equals, weight = text.rpartition("=")
        try:
            part = float(weight) if equals else 1.0
        except ValueError:
            raise FlagError(f"-m is '{text}'; use MODEL or MODEL=WEIGHT with a number") from None
        models.append(
            ModelLoad(
                name if equals else text,
                flags.version,
                batch_size,
                inputs,
                sequences,
                between(part, _LEAST_WEIGHT, _MOST_WEIGHT, f"-m {text}: the weight"),
            )
        )
    return models


def _inputs(flags: argparse.Namespace) -> InputSettings:
    sources = tuple(flags.input_data or ())
    if flags.old_directory:
        sources += (flags.old_directory,)
    if not sources:
        sources = ("zero",) if flags.old_zero else ("random",)
    return InputSettings(
        sources,
        shapes=dict(_shape(text) for text in flags.shape),
        integer_bounds=dict(_bound(text) for text in flags.input_bound),
        image_scale=_image_scale(flags.image_scale),
        string_data=flags.string_data,
        string_length=between(flags.string_length, 0, _MOST_BYTES, "--string-length"),
        parameters=dict(_parameter(text) for text in flags.request_parameter),
        shared_memory=flags.shared_memory,
        output_bytes=between(flags.output_shared_memory_size, 1, _MOST_BYTES, "--output-shared-memory-size"),
        validation_tolerance=between(flags.validation_tolerance, 0.0, 1.0, "--validation-tolerance"),
        seed=between(flags.random_seed, 0, _MOST_SEED, "--random-seed"),
    )


def _image_scale(value: float) -> float:
    if not 0 < abs(value) < math.inf:
        raise FlagError(f"--image-scale is {value:g}; use a factor that is not 0, for example 1")
    return value


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, colon, dims = text.rpartition(":")
    try:
        shape = tuple(int(dim) for dim in dims.split(",")) if dims else ()
    except ValueError:
        shape = (0,)
    if not colon or any(dim < 1 for dim in shape):
        raise FlagError(f"--shape is '{text}'; use NAME:DIMS with dimensions above 0, for example INPUT:3,224,224")
    return name, shape


def _bound(text: str) -> tuple[str, int]:
    name, _, bound = text.rpartition(":")
    if not name or not bound.isdecimal() or not 1 <= int(bound) < 1 << 63:
        raise FlagError(f"--input-bound is '{text}'; use NAME:N with N above 0, for example input_ids:30522")
    return name, int(bound)


def _parameter(text: str) -> tuple[str, ParameterValue]:
    name, _, rest = text.partition(":")
    value, colon, kind = rest.rpartition(":")
    try:
        if name and colon:
            match kind:
                case "int" | "uint":
                    return name, _integer(value)
                case "bool":
                    return name, {"true": True, "false": False}[value.lower()]
                case "string":
                    return name, value
                case "float" | "double":
                    return name, _finite(value)
    except (ValueError, KeyError):
        raise FlagError(f"--request-parameter is '{text}'; '{value}' is no {kind}") from None
    raise FlagError(f"--request-parameter is '{text}'; use NAME:VALUE:TYPE with int, bool, string or float")


def _integer(text: str) -> int:
    value = int(text)
    if not -(1 << 63) <= value < 1 << 63:
        raise ValueError("it does not fit into 64 bits")
    return value


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("JSON has no such number")
    return value


def _sequences(flags: argparse.Namespace, *, is_perf_analyzer: bool) -> Sequences:
    default, length = Sequences(), flags.sequence_length
    if is_perf_analyzer and length == 0:
        length = None  # perf_analyzer takes its default.
    first_id, last_id = 0, default.last_id
    if flags.sequence_id_range:
        start, _, end = flags.sequence_id_range.partition(":")
        is_written = start.isdecimal() and (end.isdecimal() or not end)
        first_id, last_id = (int(start), int(end) - 1 if end else default.last_id) if is_written else (0, 0)
        if not 0 < first_id <= last_id < 1 << 64:
            raise FlagError(
                f"--sequence-id-range is '{flags.sequence_id_range}'; use START:END with 0 < START < END, "
                f"at most {1 << 64}; without END it is {default.last_id + 1}"
            )
    return Sequences(
        length=default.length if length is None else between(length, 1, _MOST_REQUESTS, "--sequence-length"),
        length_variation_percent=between(flags.sequence_length_variation, 0.0, 100.0, "--sequence-length-variation"),
        count=between(flags.num_of_sequences, 1, MAX_CONCURRENCY, "--num-of-sequences"),
        first_id=first_id,
        last_id=last_id,
        are_serial=flags.serial_sequences,
        has_length=length is not None,
    )


def _measuring(flags: argparse.Namespace, *, is_perf_analyzer: bool) -> Measuring:
    percentile = None if is_perf_analyzer and flags.percentile == -1 else flags.percentile
    if percentile is not None and not 0 < percentile < 100:
        raise FlagError(f"--percentile is {percentile}; use 1 to 99")
    duration_s = 0.0 if flags.duration is None else between(flags.duration, 0.001, _LONGEST_S, "--duration")
    default = Stop.TIME_WINDOWS if is_perf_analyzer else Stop.CONFIDENCE
    stop = Stop(flags.measurement_mode) if flags.measurement_mode else default
    return Measuring(
        stop=Stop.REQUEST_COUNT if flags.request_count else stop,
        window_ms=between(flags.measurement_interval, 1, round(_LONGEST_S * 1e3), "-p"),
        window_requests=between(flags.measurement_request_count, 1, _MOST_REQUESTS, "--measurement-request-count"),
        stability_percent=above_zero(flags.stability_percentage, _WIDEST_PERCENT, "-s"),
        max_trials=between(flags.max_trials, 1, _MOST_TRIALS, "-r"),
        duration_ms=round(duration_s * 1e3),
        percentile=percentile,
        latency_limit_us=between(flags.latency_threshold, 0.0, _LONGEST_S * 1e3, "-l") * 1e3,
        warmup_requests=between(flags.warmup_request_count, 0, _MOST_REQUESTS, "--warmup-request-count"),
        request_count=between(flags.request_count, 0, _MOST_REQUESTS, "--request-count"),
        slo_us=between(flags.slo, 0.0, _LONGEST_S * 1e3, "--slo") * 1e3,
    )
