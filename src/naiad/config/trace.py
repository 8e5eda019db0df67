"""Trace options: what `--trace-config` and its deprecated relatives say, and the values that settings may have."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

OFF, TIMESTAMPS, TENSORS = "OFF", "TIMESTAMPS", "TENSORS"
LEVELS = (OFF, TIMESTAMPS, TENSORS)
_ALIASES = {"MIN": TIMESTAMPS, "MAX": TIMESTAMPS}  # Triton: from before there were TENSORS
_UINT32 = 2**32


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """What is traced, how much of it, and where it goes."""

    level: Sequence[str] = (OFF,)
    """OFF alone, or any of TIMESTAMPS and TENSORS."""
    rate: int = 1000
    """One of so many requests is traced."""
    count: int = -1
    """How many requests are traced before it ends; -1 for no end."""
    log_frequency: int = 0
    """Traces a file; 0 for all in one."""
    file: str = ""
    mode: str = "triton"

    @property
    def is_on(self) -> bool:
        """Whether anything is traced at all."""
        return OFF not in self.level and self.count != 0


def parse_level(values: Sequence[str]) -> tuple[str, ...]:
    """Return levels in Triton's order. Raises ValueError."""
    levels = {_ALIASES.get(value, value) for value in values}
    unknown = levels.difference(LEVELS)
    if unknown:
        raise ValueError(f"Unable to parse 'trace_level', got: {min(unknown)}; known levels are {', '.join(LEVELS)}")
    if OFF in levels and len(levels) > 1:
        raise ValueError("Expect only one trace level 'OFF' is specified")
    return tuple(level for level in LEVELS if level in levels)


def parse_rate(text: str) -> int:
    """Return a sampling rate. Raises ValueError."""
    rate = _parse_unsigned("trace_rate", text)
    if not rate:
        raise ValueError("Attempting to set invalid trace setting :sample rate must be non-zero")
    return rate


def parse_log_frequency(text: str) -> int:
    """Return how many traces go into a file. Raises ValueError."""
    return _parse_unsigned("log_frequency", text)


def parse_count(text: str) -> int:
    """Return how many requests are to be traced. Raises ValueError."""
    count = _parse_integer("trace_count", text)
    if count < -1:
        raise ValueError(f"Unable to parse 'trace_count'. Expecting value >= -1, got:{text}")
    if count > 2**31 - 1:
        raise ValueError(f"Unable to parse 'trace_count', value is out of range [ -1, {2**31 - 1} ], got: {text}")
    return count


def _parse_unsigned(name: str, text: str) -> int:
    value = _parse_integer(name, text)
    if not -_UINT32 < value < _UINT32:
        raise ValueError(f"Unable to parse '{name}', value is out of range [ 0, {_UINT32 - 1} ], got: {text}")
    return value % _UINT32  # Triton: what is negative wraps


def _parse_integer(name: str, text: str) -> int:
    digits = text[1:] if text[:1] in "+-" else text
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
        raise ValueError(f"Unable to parse '{name}', got: {text[:64]}")
    return int(text)


_GLOBAL_SETTINGS = ("level", "rate", "count", "mode")
_TRITON_SETTINGS = ("file", "log-frequency")


def parse_trace_flags(configs: Sequence[str], deprecated: Mapping[str, Sequence[str]]) -> TraceOptions:
    """Return the options of `--trace-config` values; deprecated flags count where those say nothing.

    `deprecated`: `level`, `rate`, `count`, `file`, `log-frequency` to what was given. Raises ValueError.
    """
    settings: dict[str, list[str]] = {name: list(values) for name, values in deprecated.items() if values}
    given: dict[str, list[str]] = {}
    for text in configs:
        name, value = _split(text)
        given.setdefault(name, []).append(value)
    settings |= given
    mode = settings.get("mode", ["triton"])[-1]
    if mode != "triton":
        raise ValueError(f"mode={mode} is not supported by this server; it takes only 'triton'")
    options = TraceOptions(
        level=parse_level(settings.get("level", [OFF])),
        rate=parse_rate(settings.get("rate", ["1000"])[-1]),
        count=parse_count(settings.get("count", ["-1"])[-1]),
        log_frequency=parse_log_frequency(settings.get("log-frequency", ["0"])[-1]),
        file=settings.get("file", [""])[-1],
    )
    if options.is_on and not options.file:
        raise ValueError(f"level={options.level[0]} needs a file as well: triton,file=<path>")
    return options


def _split(text: str) -> tuple[str, str]:
    """Return setting and value of `[<mode>,]<setting>=<value>`."""
    left, has_value, value = text.partition("=")
    mode, _, name = left.rpartition(",")
    known = {"": _GLOBAL_SETTINGS, "triton": _TRITON_SETTINGS}.get(mode)
    if not has_value:
        raise ValueError(f"'{text}' has no value; write <setting>=<value> or <mode>,<setting>=<value>")
    if known is None:
        raise ValueError(f"'{text}': mode '{mode}' is not supported by this server; it takes only 'triton'")
    if name not in known:
        raise ValueError(f"'{text}': no setting '{name}'; known are {', '.join(known)}")
    return name, value
