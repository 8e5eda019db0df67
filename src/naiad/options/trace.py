"""Trace options: `--trace-config` and its deprecated forms, and the allowed values of settings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from naiad.core.errors import excerpt

OFF, TIMESTAMPS, TENSORS = "OFF", "TIMESTAMPS", "TENSORS"
LEVELS = (OFF, TIMESTAMPS, TENSORS)
_ALIASES = {"MIN": TIMESTAMPS, "MAX": TIMESTAMPS}  # Triton: older than TENSORS
_UINT32 = 2**32
_DEFAULT_QUEUE_SIZE = 2048
"""Settings of OpenTelemetry."""


TRITON, OPENTELEMETRY = "triton", "opentelemetry"


@dataclass(frozen=True, slots=True)
class OpenTelemetryOptions:
    """Destination and batching of spans; None and "" mean the environment's value, or the default."""

    url: str = ""
    resource: tuple[tuple[str, str], ...] = ()
    """Attributes of the server, which every span has."""
    max_queue_size: int | None = None
    """Limit of waiting spans; further ones are dropped."""
    schedule_delay_ms: int | None = None
    max_export_batch_size: int | None = None


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """What is traced, how much of it, and the destination."""

    level: Sequence[str] = (OFF,)
    """OFF alone, or any of TIMESTAMPS and TENSORS."""
    rate: int = 1000
    """One of this many requests is traced; 0, in mode opentelemetry: only requests of traced clients."""
    count: int = -1
    """Number of requests to trace; -1 for no limit."""
    log_frequency: int = 0
    """Traces per file; 0 for all in one."""
    file: str = ""
    mode: str = TRITON
    open_telemetry: OpenTelemetryOptions = OpenTelemetryOptions()

    @property
    def is_on(self) -> bool:
        """Whether anything is traced."""
        return OFF not in self.level and self.count != 0

    @property
    def lacks_file(self) -> bool:
        """Whether traces have no destination."""
        return self.is_on and self.mode == TRITON and not self.file


def parse_level(values: Sequence[str]) -> tuple[str, ...]:
    """Return levels in Triton's order. Raises ValueError."""
    levels = {_ALIASES.get(value, value) for value in values}
    unknown = levels.difference(LEVELS)
    if unknown:
        raise ValueError(
            f"Unable to parse 'trace_level', got: {excerpt(min(unknown))}; known levels are {', '.join(LEVELS)}"
        )
    if OFF in levels and len(levels) > 1:
        raise ValueError("Expect only one trace level 'OFF' is specified")
    return tuple(level for level in LEVELS if level in levels)


def parse_rate(text: str, mode: str = TRITON) -> int:
    """Return a sampling rate. Raises ValueError."""
    rate = _parse_unsigned("trace_rate", text)
    if not rate and mode != OPENTELEMETRY:
        raise ValueError("Attempting to set invalid trace setting :sample rate must be non-zero")
    return rate


def parse_log_frequency(text: str) -> int:
    """Return the number of traces per file. Raises ValueError."""
    return _parse_unsigned("log_frequency", text)


def parse_count(text: str) -> int:
    """Return the number of requests to trace. Raises ValueError."""
    count = _parse_integer("trace_count", text)
    if count < -1:
        raise ValueError(f"Unable to parse 'trace_count'. Expecting value >= -1, got:{excerpt(text)}")
    if count > 2**31 - 1:
        raise ValueError(
            f"Unable to parse 'trace_count', value is out of range [ -1, {2**31 - 1} ], got: {excerpt(text)}"
        )
    return count


def _parse_unsigned(name: str, text: str) -> int:
    value = _parse_integer(name, text)
    if not -_UINT32 < value < _UINT32:
        raise ValueError(
            f"Unable to parse '{name}', value is out of range [ 0, {_UINT32 - 1} ], got: {excerpt(text)}"
        )
    return value % _UINT32  # Triton: negative values wrap


def _parse_integer(name: str, text: str) -> int:
    digits = text[1:] if text[:1] in "+-" else text
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
        raise ValueError(f"Unable to parse '{name}', got: {excerpt(text)}")
    return int(text)


_GLOBAL_SETTINGS = ("level", "rate", "count", "mode")
_TRITON_SETTINGS = ("file", "log-frequency")
_SIZES = ("bsp_max_queue_size", "bsp_schedule_delay", "bsp_max_export_batch_size")
_SETTINGS: Mapping[str, Sequence[str]] = {
    "": _GLOBAL_SETTINGS,
    TRITON: _TRITON_SETTINGS,
    OPENTELEMETRY: ("url", "resource", *_SIZES),
}


def parse_trace_flags(configs: Sequence[str], deprecated: Mapping[str, Sequence[str]]) -> TraceOptions:
    """Return the options of `--trace-config` values; deprecated flags apply to settings without one.

    `deprecated`: `level`, `rate`, `count`, `file`, `log-frequency` to the given values. Raises ValueError.
    """
    settings: dict[str, list[str]] = {name: list(values) for name, values in deprecated.items() if values}
    given: dict[str, list[str]] = {}
    for text in configs:
        name, value = _split(text)
        given.setdefault(name, []).append(value)
    settings |= given
    mode = settings.get("mode", [TRITON])[-1]
    if mode not in _SETTINGS or not mode:
        raise ValueError(f"unknown mode '{mode}'; known are {TRITON}, {OPENTELEMETRY}")
    options = TraceOptions(
        level=parse_level(settings.get("level", [OFF])),
        rate=parse_rate(settings.get("rate", ["1000"])[-1], mode),
        count=parse_count(settings.get("count", ["-1"])[-1]),
        log_frequency=parse_log_frequency(settings.get("log-frequency", ["0"])[-1]),
        file=settings.get("file", [""])[-1],
        mode=mode,
        open_telemetry=_open_telemetry(settings),
    )
    if options.lacks_file:
        raise ValueError(f"level={options.level[0]} needs a file as well: triton,file=<path>")
    return options


def _open_telemetry(settings: Mapping[str, Sequence[str]]) -> OpenTelemetryOptions:
    resource = dict(_attribute(text) for text in settings.get("resource", ()))
    queue, delay_ms, batch = [_size(name, settings[name][-1]) if name in settings else None for name in _SIZES]
    if batch is not None and batch > (queue or _DEFAULT_QUEUE_SIZE):
        raise ValueError(
            f"bsp_max_export_batch_size={batch} is more than bsp_max_queue_size, {queue or _DEFAULT_QUEUE_SIZE}"
        )
    return OpenTelemetryOptions(_url(settings.get("url", [""])[-1]), tuple(resource.items()), queue, delay_ms, batch)


def _url(text: str) -> str:
    # Triton's documentation omits the scheme.
    return f"http://{text}" if text and "://" not in text else text


def _attribute(text: str) -> tuple[str, str]:
    key, has_value, value = text.partition("=")
    if not (has_value and key.strip()):
        raise ValueError(f"opentelemetry,resource={text}: write resource=<key>=<value>")
    return key.strip(), value.strip()


def _size(name: str, text: str) -> int:
    size = _parse_integer(name, text)
    if not 0 < size < 2**31:
        raise ValueError(f"{name}={text}: expected a number above 0")
    return size


def _split(text: str) -> tuple[str, str]:
    """Return setting and value of `[<mode>,]<setting>=<value>`."""
    left, has_value, value = text.partition("=")
    mode, _, name = left.rpartition(",")
    known = _SETTINGS.get(mode)
    if not has_value:
        raise ValueError(f"'{text}' has no value; write <setting>=<value> or <mode>,<setting>=<value>")
    if known is None:
        raise ValueError(f"'{text}': unknown mode '{mode}'; known are {TRITON}, {OPENTELEMETRY}")
    if name not in known:
        raise ValueError(f"'{text}': unknown setting '{name}'; known are {', '.join(known)}")
    return name, value
