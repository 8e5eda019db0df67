"""`naiad config show`: the effective values of `naiad serve`, and where each is from."""

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence

from naiad.options.flag import Flag, Kind
from naiad.options.flags import CONFIG, GROUPS
from naiad.options.sources.command_line import OptionError, parse_options, read_settings
from naiad.options.sources.given import Given
from naiad.telemetry.logs.console import print_failure

_VALUE_COLUMNS = 50


def show(arguments: Sequence[str], environ: Mapping[str, str] = os.environ) -> int:
    """Print the values as a file for --config; return 1 if a server would not start with them."""
    try:
        print("\n".join(_lines(read_settings(arguments, environ))))
        sys.stdout.flush()
        parse_options(arguments, environ)
    except OptionError as error:
        print_failure(f"naiad config show: {error}")
        return 1
    return 0


def _lines(settings: Sequence[Given]) -> Iterator[str]:
    given: dict[str, list[Given]] = {}
    for each in settings:
        given.setdefault(each.flag.name, []).append(each)
    shown: set[str] = {each.flag.target for each in settings}
    for group, flags in GROUPS:
        lines = []
        for flag in flags:
            if flag.name in given and flag.name != CONFIG:
                lines.append(_given_line(flag, given[flag.name]))
            elif flag.target not in shown and flag.target and flag.default is not None:
                lines.append(_default_line(flag))
                shown.add(flag.target)
        if lines:
            yield from ("", f"# {group}", *lines)


def _given_line(flag: Flag, given: Sequence[Given]) -> str:
    texts = [_literal(flag, each.text) for each in given]
    sources = ", ".join(dict.fromkeys(each.source for each in given))
    value = f"[{', '.join(texts)}]" if flag.repeat else texts[-1]
    return _aligned(f"{flag.name} = {value}", sources)


def _default_line(flag: Flag) -> str:
    if flag.kind is Kind.SWITCH:
        return _aligned(f"{flag.name} = false", "default")
    if flag.default_text or not isinstance(flag.default, (bool, int, float, str)) or flag.default == "":
        return _aligned(f"# {flag.name}", f"default: {flag.default_text or 'none'}")
    return _aligned(f"{flag.name} = {_literal(flag, flag.shown_default)}", "default")


def _aligned(text: str, source: str) -> str:
    return f"{text.ljust(_VALUE_COLUMNS)}  # {source}"


def _literal(flag: Flag, text: str) -> str:
    """Return a value as TOML; the secrets of restrictions are hidden."""
    if flag.kind is Kind.SWITCH:
        return "true"
    if flag.kind is Kind.BOOLEAN:
        return "true" if text.lower() in ("true", "on", "1") else "false"
    if flag.kind in (Kind.INTEGER, Kind.FLOAT):
        return text
    return json.dumps(f"{text.partition('=')[0]}=***" if flag.kind is Kind.RESTRICTION else text, ensure_ascii=False)
