"""Times as flags and settings have them: `20ms`, `5s`, `10m`, or a number in the unit of the flag."""

import re

_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_TIME = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(us|ms|s|m|h)")
_NAMES = {"us": "microseconds", "ms": "milliseconds", "s": "seconds"}


def read_time(text: str, unit: str, *, needs_unit: bool = False) -> float:
    """Return a time in `unit` (us, ms, s), in which a number without a unit is, unless `needs_unit` refuses it.

    A number may be negative, infinite or not a number, as for `float`. Raises ValueError.
    """
    found = _TIME.fullmatch(text.strip())
    if found is not None:
        return float(found[1]) * _SECONDS[found[2]] / _SECONDS[unit]
    try:
        number = float(text)
    except ValueError:
        number = None
    if number is None or needs_unit:
        other = "" if needs_unit else f"a number of {_NAMES[unit]}, or "
        raise ValueError(f"'{text}' is not a time; write {other}a time with its unit, for example 20ms or 5s")
    return number
