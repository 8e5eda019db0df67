"""A value that was given for a flag, and where it is from."""

from collections.abc import Collection
from dataclasses import dataclass

from naiad.options.flag import Flag

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
