"""The command lines of the verbs: their parser, headers, and how a failure is reported."""

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NoReturn

from naiad.options.duration import read_time

FAILED, BAD_OPTION = 1, 2
"""Exit statuses."""


def fail(command: str, reason: object, status: int = FAILED) -> int:
    """Print the reason why `command`, as `naiad check`, has failed; return the exit status.

    Raises BrokenPipeError where that is the reason: `main` knows its status.
    """
    if isinstance(reason, BrokenPipeError):
        raise reason
    print(f"{command}: {reason}", file=sys.stderr)
    return status


def parse_header(text: str) -> tuple[str, str]:
    """Return name and value of `--header`. Raises ValueError."""
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise ValueError(f"--header '{text}' is not of the form 'NAME: VALUE'")
    return name.strip(), value.strip()


def read_columns(texts: Iterable[str]) -> dict[str, str]:
    """Return column -> input of `--column COLUMN=INPUT`. Raises ValueError."""
    columns: dict[str, str] = {}
    for text in texts:
        column, _, name = text.rpartition("=")
        if not column or not name:
            raise ValueError(f"--column is '{text}'; write COLUMN=INPUT, for example text=SENTENCE")
        if column in columns:
            raise ValueError(f"--column {text}: the column '{column}' is for '{columns[column]}' already")
        columns[column] = name
    return columns


def check_output(flag: str, path: Path, *, is_folder: bool = False) -> None:
    """Raise ValueError unless a file, or a folder with its parents, can be written; checked before long work."""
    home = path if is_folder else path.parent
    while is_folder and not home.exists() and home != home.parent:
        home = home.parent
    if not home.is_dir():
        why = f"{home} is a file" if home.exists() else f"there is no folder {home}"
    elif path.is_dir() and not is_folder:
        why = "it is a folder"
    elif not os.access(path if path.exists() else home, os.W_OK):
        why = "permission denied"
    else:
        return
    raise ValueError(f"{flag} {path} cannot be written: {why}; give another path")


def time_in(unit: str, *, is_whole: bool = False) -> Callable[[str], float]:
    """Return the `type` of a flag with a time: `20ms`, `5s`, or a number in `unit`, in which the value is."""

    def read(text: str) -> float:
        try:
            value = read_time(text, unit)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        if is_whole and not value.is_integer():
            raise argparse.ArgumentTypeError(f"'{text}' is not a whole number of {unit}")
        return int(value) if is_whole else value

    return read


class Parser(argparse.ArgumentParser):
    """Reports a wrong command line in one sentence, with the next command."""

    error_status = BAD_OPTION

    def error(self, message: str) -> NoReturn:
        """Print the reason and the next command."""
        reason = f"{message}{self._suggestion(message)}\n{self.prog} --help shows all flags."
        raise SystemExit(fail(self.prog, reason, self.error_status))

    def _suggestion(self, message: str) -> str:
        """Return the flag that an unknown one is probably a typo of."""
        from naiad.config.problem import nearest

        found = re.search(r"unrecognized arguments: (-[^ =]+)", message)
        near = nearest(found[1], self._option_string_actions) if found else ""
        return f"; did you mean {near}?" if near else ""
