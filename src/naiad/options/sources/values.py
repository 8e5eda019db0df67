"""The values of flags: from texts to numbers, booleans and names."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from naiad.options.flag import Flag, Kind, listed, parse_boolean
from naiad.options.network.access import check_origin
from naiad.options.network.addresses import check_address


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


def parse_value(flag: Flag, text: str) -> Any:
    """Return the value of a flag. Raises ValueError with the rest of a sentence that begins with the value."""
    value = _PARSERS[flag.kind](text)
    _check_range(flag, value)
    if flag.only is not None and text.lower() not in (only.lower() for only in flag.only):
        allowed = f"; this server supports only {listed(flag.only)}" if flag.only else ""
        raise ValueError(f"is not supported by this server{allowed}")
    return text.lower() if flag.only is not None and flag.kind is Kind.STRING else value


def _check_range(flag: Flag, value: Any) -> None:
    if flag.choices and value not in flag.choices:
        raise ValueError(f"is not one of {listed(flag.choices)}")
    if flag.minimum is not None and value < flag.minimum:
        raise ValueError(f"is too small; the minimum is {flag.minimum:g}")
    if flag.maximum is not None and value > flag.maximum:
        raise ValueError(f"is too large; the maximum is {flag.maximum:g}")
