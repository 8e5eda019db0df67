"""The file of `--config`: flags in TOML, their names as keys.

model-repository = ["/srv/models"]
http-port = 9000
allow_metrics = false
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from naiad.options.flag import Flag, Given, OptionError, ValueKind, nearest_name
from naiad.options.flags import CONFIG, all_flags

_AT_LINE = re.compile(r" \(at line (\d+), column \d+\)$")
_EXPECTED = {
    ValueKind.INTEGER: "an integer, such as {} = 1",
    ValueKind.FLOAT: "a number, such as {} = 1.5",
    ValueKind.BOOLEAN: "true or false, such as {} = true",
    ValueKind.SWITCH: "true or false, such as {} = true",
}
_TYPES: Mapping[type, str] = {
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "a table",
}


def read_config_file(path: str) -> list[Given]:
    """Return the settings of a file, each with its line. Raises OptionError with file, line and fix."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        document = tomllib.loads(text)
    except OSError as error:
        raise OptionError(f"--{CONFIG} {path}: {error.strerror}; give a TOML file that the server can read") from None
    except UnicodeDecodeError as error:
        raise OptionError(f"--{CONFIG} {path}: {error.reason}; write the file in UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise _syntax_error(path, str(error)) from None
    lines = _lines_of_keys(text)
    flags = {flag.name: flag for flag in all_flags() if flag.name != CONFIG}
    seen: dict[str, str] = {}
    given: list[Given] = []
    for key, value in document.items():
        where = f"{path}:{lines.get(key, 1)}"
        name = key.replace("_", "-")
        if name in seen:
            raise OptionError(f"{where}: '{key}' is given twice, also as '{seen[name]}'; remove one of them")
        seen[name] = key
        flag = flags.get(name)
        if flag is None:
            raise OptionError(f"{where}: {_unknown(key, name, value, flags)}")
        given += (Given(flag, text, where) for text in _texts(flag, key, value, where))
    return given


def _syntax_error(path: str, message: str) -> OptionError:
    at_line = _AT_LINE.search(message)
    where = f"{path}:{at_line[1]}" if at_line else path
    text = _AT_LINE.sub("", message)
    if "overwrite" in text or "twice" in text:
        return OptionError(f"{where}: a key is given twice; remove one of them, or use a list for a repeatable flag")
    return OptionError(f'{where}: {text}; expected TOML: key = value, with strings in quotes, such as id = "a"')


def _lines_of_keys(text: str) -> dict[str, int]:
    """Return the line of each key; a key or table is looked for at the beginning of lines."""
    found: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        match = re.match(r"""\s*\[*\s*["']?([\w-]+)""", line)
        if match:
            found.setdefault(match[1], number)
    return found


def _unknown(key: str, name: str, value: object, flags: Mapping[str, Flag]) -> str:
    if name == CONFIG:
        return "a file cannot name another file; give --config on the command line"
    if isinstance(value, dict):
        return f"[{key}] is a table; write its keys without a table, such as http-port = 8000"
    near = nearest_name(name, flags)
    hint = f"did you mean '{near}'?" if near else "see naiad serve --help-all for the names"
    return f"unknown key '{key}'; {hint}"


def _texts(flag: Flag, key: str, value: Any, where: str) -> Iterator[str]:
    """Yield the values of a key as texts of the command line. Raises OptionError for a wrong type."""
    values = value if isinstance(value, list) and flag.repeat else [value]
    for each in values:
        if not _fits(flag, each):
            expected = _EXPECTED.get(flag.kind, 'a string, such as {} = "a"')
            if flag.repeat:
                expected = 'a list of strings, such as {} = ["a", "b"]'
            raise OptionError(
                f"{where}: {key} = {_shown(each)} is {_TYPES.get(type(each), 'a date')}; "
                f"expected {expected.format(key)}"
            )
        if flag.kind is ValueKind.SWITCH:
            if each:
                yield ""
        else:
            yield str(each).lower() if isinstance(each, bool) else str(each)


def _fits(flag: Flag, value: object) -> bool:
    if flag.kind in (ValueKind.BOOLEAN, ValueKind.SWITCH):
        return isinstance(value, bool)
    if flag.kind is ValueKind.INTEGER:
        return type(value) is int
    if flag.kind is ValueKind.FLOAT:
        return type(value) in (int, float)
    return isinstance(value, str)


def _shown(value: object) -> str:
    text = f'"{value}"' if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
