"""The forms of values in Model Analyzer's files, each checked with the name of its key."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from naiad.config.problem import nearest
from naiad.options.duration import read_time
from naiad.tools.analyze.goal import LOWER_IS_BETTER, Bound

METRICS = LOWER_IS_BETTER | {"perf_throughput"}


class SettingsError(ValueError):
    """A setting that makes no sense; the message names key, value and fix."""


def whole(value: Any, key: str, minimum: int = 0) -> int:
    """Return a whole number of at least `minimum`."""
    if isinstance(value, str) and value.strip().isdigit():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise SettingsError(f"{key} is {value!r}; use a whole number of {minimum} or more")
    return value


def number(value: Any, key: str) -> float:
    """Return a number above 0."""
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = 0.0
    if isinstance(value, bool) or not found > 0:
        raise SettingsError(f"{key} is {value!r}; use a number above 0")
    return found


def flag(value: Any, key: str) -> bool:
    """Return true or false."""
    if isinstance(value, bool):
        return value
    if str(value).lower() in ("true", "false"):
        return str(value).lower() == "true"
    raise SettingsError(f"{key} is {value!r}; use true or false")


def text(value: Any, key: str) -> str:
    """Return a text."""
    if not isinstance(value, str):
        raise SettingsError(f"{key} is {value!r}; use a text")
    return value


def mapping(value: Any, key: str) -> Mapping[str, Any]:
    """Return a mapping; nothing at all is an empty one."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise SettingsError(f"{key} is {value!r}; use a mapping of names to values")
    return value


def texts(value: Any, key: str) -> tuple[str, ...]:
    """Return a list of texts, also from `a,b`."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    if isinstance(value, Sequence):
        return tuple(text(each, key) for each in value)
    raise SettingsError(f"{key} is {value!r}; use a list of names")


def numbers(value: Any, key: str) -> tuple[int, ...]:
    """Return whole numbers: one, a list, `1,2,4`, or `{start: 1, stop: 9, step: 2}` with its stop included."""
    if isinstance(value, Mapping):
        unknown = set(value) - {"start", "stop", "step"}
        if unknown or not {"start", "stop"} <= set(value):
            raise SettingsError(f"{key} is {dict(value)!r}; use start, stop and step")
        start, stop = whole(value["start"], f"{key}.start", 1), whole(value["stop"], f"{key}.stop", 1)
        step = whole(value.get("step", 1), f"{key}.step", 1)
        if stop < start:
            raise SettingsError(f"{key} stops at {stop}, before its start of {start}")
        return tuple(range(start, stop + 1, step))
    parts = value.split(",") if isinstance(value, str) else value if isinstance(value, Sequence) else [value]
    found = tuple(whole(part, key, 1) for part in parts)
    if not found:
        raise SettingsError(f"{key} is empty; use one number or more")
    return found


def milliseconds(value: Any, key: str) -> float:
    """Return a time in ms, from a number of ms or from `20ms`, `0.5s`."""
    return _time(value, key, "ms", "20ms")


def seconds(value: Any, key: str) -> float:
    """Return a time in s, from a number of s or from `90s`, `10m`, `1h`."""
    return _time(value, key, "s", "10m")


def _time(value: Any, key: str, unit: str, example: str) -> float:
    try:
        found = 0.0 if isinstance(value, bool) else read_time(str(value), unit)
    except ValueError:
        found = 0.0
    if not 0 < found < math.inf:
        raise SettingsError(f"{key} is {value!r}; use a time, for example {example}")
    return found


def objectives(value: Any, key: str) -> dict[str, float]:
    """Return weights by metric, from a list of metrics or a mapping."""
    if isinstance(value, Mapping):
        return {metric(name, key): number(weight, f"{key}.{name}") for name, weight in value.items()}
    return {metric(name, key): 1.0 for name in texts(value, key)}


def constraints(value: Any, key: str) -> dict[str, Bound]:
    """Return limits by metric, from `{perf_latency_p99: {max: 20}}`."""
    found: dict[str, Bound] = {}
    for name, given in mapping(value, key).items():
        where = f"{key}.{metric(name, key)}"
        limits = mapping(given, where)
        for limit in limits:
            known(limit, ("min", "max"), where)
        bounds = [float(limits[end]) if end in limits else None for end in ("min", "max")]
        if bounds == [None, None]:
            raise SettingsError(f"{where} has no limit; use min or max")
        found[name] = Bound(*bounds)
    return found


def metric(name: Any, key: str) -> str:
    """Return the name of a metric."""
    return known(text(name, key), sorted(METRICS), key)


def known(name: str, names: Sequence[str], key: str) -> str:
    """Return `name`. Raises SettingsError with the nearest of `names` if it is none of them."""
    if name in names:
        return name
    near = nearest(name, names)
    hint = f"did you mean {near}?" if near else f"use one of {', '.join(names)}"
    raise SettingsError(f"{key} has an unknown name '{name}'; {hint}")
