"""What a client asks of the live stream: the query of `GET /v2/live`."""

from dataclasses import dataclass
from urllib.parse import parse_qsl

from naiad.core.errors import excerpt, invalid_argument

DEFAULT_INTERVAL_MS = 1000
_MIN_INTERVAL_MS, _MAX_INTERVAL_MS = 250, 60_000
_NAMES = ("interval_ms", "model", "version", "log")
_MAX_QUERY_CHARACTERS = 4096


@dataclass(frozen=True, slots=True)
class LiveRequest:
    """A checked query."""

    interval_s: float = DEFAULT_INTERVAL_MS / 1000
    model: str = ""
    """The model with details; empty for none."""
    version: str = ""
    has_log: bool = False


def parse_live_query(query: str) -> LiveRequest:
    """Return what a query asks for. Raises InferError(INVALID_ARG), which names parameter, value and fix."""
    if len(query) > _MAX_QUERY_CHARACTERS:
        raise invalid_argument(f"the query has {len(query)} characters; at most {_MAX_QUERY_CHARACTERS} are allowed")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=2 * len(_NAMES), errors="strict")
    except ValueError:
        raise invalid_argument(
            f"the query '{excerpt(query)}' cannot be parsed; write it as interval_ms=1000&model=NAME"
        ) from None
    found: dict[str, str] = {}
    for name, value in pairs:
        if name not in _NAMES:
            raise invalid_argument(f"unknown parameter '{excerpt(name)}'; known are {', '.join(_NAMES)}")
        if name in found:
            raise invalid_argument(f"the parameter '{name}' occurs twice; give it once")
        found[name] = value
    if found.get("version") and not found.get("model"):
        raise invalid_argument("the parameter 'version' needs 'model': it is the version of that model")
    interval_ms = _interval_ms(found.get("interval_ms", str(DEFAULT_INTERVAL_MS)))
    return LiveRequest(
        interval_ms / 1000, found.get("model", ""), found.get("version", ""), _flag(found.get("log", ""))
    )


def _interval_ms(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) < 10 and _MIN_INTERVAL_MS <= int(text) <= _MAX_INTERVAL_MS:
        return int(text)
    raise invalid_argument(
        f"the parameter 'interval_ms' is '{excerpt(text)}'; expected a number from {_MIN_INTERVAL_MS} to "
        f"{_MAX_INTERVAL_MS}"
    )


def _flag(text: str) -> bool:
    if text not in ("", "true", "false"):
        raise invalid_argument(f"the parameter 'log' is '{excerpt(text)}'; expected true or false")
    return text == "true"
