"""Declaration of options: a dataclass field contains its flag, so that each flag is declared once.

Values that are given for flags, and where they are from.
"""

import enum
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any


class ValueKind(enum.Enum):
    """The value format of a flag; the value names it in `--help`."""

    STRING = "<string>"
    INTEGER = "<integer>"
    FLOAT = "<number>"
    BOOLEAN = "<boolean>"
    SWITCH = ""
    SETTING = "<name>,<setting>=<value>"
    ADDRESS = "<address>"
    MODE = "<octal>"
    ORIGIN = "<origin>"
    HOSTS = "<host>,..."
    RESTRICTION = "<category>,...:<header>=<value>"


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag: its name, its target, its allowed values.

    A flag without a `target` is accepted although the part that it tunes does not exist here (`no_effect`).
    """

    name: str
    kind: ValueKind
    help: str
    target: str = ""
    """`section.field` of ServerOptions; `field` alone for the options themselves."""
    default: Any = None
    default_text: str = ""
    """Describes the default if the value itself does not."""
    repeat: bool = False
    read: Callable[[Sequence[str]], Any] = tuple
    """Converts all texts of a repeatable flag to the value of the option. Raises ValueError."""
    negate: bool = False
    """The target gets the opposite of the value."""
    choices: Sequence[str] = ()
    needs_text: bool = False
    """An empty value is refused: it is mostly an unset variable."""
    minimum: float | None = None
    maximum: float | None = None
    only: Sequence[str] | None = None
    """Only these values are supported, in any case. Empty: none."""
    no_effect: bool = False
    variable: str = ""
    """The environment variable with the value, if neither the command line nor a file gives it."""
    summary: str = ""
    """The line of a usual flag in `--help`; empty for a flag that only `--help-all` shows."""
    limit: str = ""
    """The limit of a connection that has the option's value: a field of `Http1Limits`, `Http2Limits`, or both."""

    @property
    def usage(self) -> str:
        """`--name <format>` as `--help` shows it."""
        return f"--{self.name} {self.kind.value}".rstrip()

    @property
    def shown_default(self) -> str:
        """The default as a user writes it; empty if there is none."""
        if self.default_text or not self.target:
            return self.default_text
        if isinstance(self.default, bool):
            return str(self.default != self.negate).lower()
        if self.kind is ValueKind.MODE:
            return f"{self.default:o}"
        return f"{self.default}" if isinstance(self.default, (int, float, str)) else ""


_KINDS = {bool: ValueKind.BOOLEAN, int: ValueKind.INTEGER, float: ValueKind.FLOAT}
_FLAG = "flag"


def option(default: Any, name: str, help: str, *, kind: ValueKind | None = None, **rules: Any) -> Any:  # noqa: A002
    """Return a dataclass field with its flag. `rules` are fields of `Flag`; the kind follows from the default."""
    flag = Flag(name, kind or _KINDS.get(type(default), ValueKind.STRING), help, default=default, **rules)
    if isinstance(default, dict):
        return field(default_factory=dict, metadata={_FLAG: flag})
    return field(default=default, metadata={_FLAG: flag})


def flags_of(options: type, section: str = "") -> Iterator[Flag]:
    """Yield the flags of a dataclass of options, with their targets."""
    prefix = f"{section}." if section else ""
    for each in fields(options):
        if _FLAG in each.metadata:
            yield replace(each.metadata[_FLAG], target=prefix + each.name)


def limits_of(options: Any, limits: type) -> dict[str, Any]:
    """Return the fields of `limits`, a dataclass, that options have: those whose flag names them as its `limit`."""
    known = {each.name for each in fields(limits)}
    return {flag.limit: getattr(options, flag.target) for flag in flags_of(type(options)) if flag.limit in known}


def parse_boolean(text: str) -> bool:
    """Return a boolean. Triton: true, on and 1, false, off and 0, in any case. Raises ValueError."""
    lowered = text.lower()
    if lowered in ("true", "on", "1"):
        return True
    if lowered in ("false", "off", "0"):
        return False
    raise ValueError("is not a boolean; use true or false")


def listed(values: Sequence[str]) -> str:
    """Return values in quotes, for messages."""
    return ", ".join(f"'{value}'" for value in values)


def named_settings(texts: Sequence[str]) -> dict[str, dict[str, str]]:
    """Split `[<name>,]<setting>=<value>`; a comma after the first `=` belongs to the value. Raises ValueError."""
    config: dict[str, dict[str, str]] = {}
    for text in texts:
        left, _, value = text.partition("=")
        name, _, setting = left.rpartition(",")
        if not setting:
            raise ValueError(f"'{text}' names no setting; write <name>,<setting>=<value>")
        config.setdefault(name, {})[setting] = value
    return config


def no_effect(name: str, help: str, kind: ValueKind = ValueKind.INTEGER, **rules: Any) -> Flag:  # noqa: A002
    """Return a flag that is accepted and has no effect."""
    return Flag(name, kind, help, no_effect=True, **rules)


# --- given values ---------------------------------------------------------------------------------------------------

COMMAND_LINE = "command line"


class OptionError(Exception):
    """An invalid command line, file or variable; the text names the flag, the value and the fix."""


@dataclass(frozen=True, slots=True)
class Given:
    """One occurrence of a flag."""

    flag: Flag
    text: str
    source: str
    """`command line`, `FILE:LINE`, or the name of an environment variable."""

    @property
    def label(self) -> str:
        """The name of the flag in messages, with its source unless that is the command line."""
        return f"--{self.flag.name}" if self.source == COMMAND_LINE else f"{self.source}: {self.flag.name}"


def unknown_flag(argument: str, names: Collection[str]) -> OptionError:
    """Return the error of an argument that is no flag, with the nearest name."""
    near = nearest_name(argument.lstrip("-").partition("=")[0], names)
    hint = f"; did you mean --{near}?" if near else "; see --help"
    return OptionError(f"unknown flag {argument.partition('=')[0]}{hint}")


def nearest_name(name: str, names: Collection[str]) -> str:
    """Return the most similar name; empty if none is similar."""
    import difflib  # takes 4 ms to import

    return next(iter(difflib.get_close_matches(name, names, n=1)), "")
