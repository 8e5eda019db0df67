"""Text for people at a terminal: lines of at most 100 columns, and colors where they are wanted."""

import os
import sys
import textwrap
from collections.abc import Iterable
from typing import TextIO

COLUMNS = 100
RED, GREEN, YELLOW = "\x1b[31m", "\x1b[32m", "\x1b[33m"
_RESET = "\x1b[0m"


def has_colors(stream: TextIO) -> bool:
    """Return whether to use colors: on a terminal, unless NO_COLOR (https://no-color.org) is set."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def painted(text: str, color: str) -> str:
    """Return text in a color."""
    return f"{color}{text}{_RESET}"


def wrapped(text: str, *, indent: str = "", further: str = "    ") -> str:
    """Return text in lines of at most 100 columns, longer only for a word that is; `further` indents later lines."""
    return textwrap.fill(
        text,
        COLUMNS,
        initial_indent=indent,
        subsequent_indent=indent + further,
        break_long_words=False,
        break_on_hyphens=False,
    )


def print_failure(title: str, problems: Iterable[str] = (), hint: str = "") -> None:
    """Print why a command failed to the standard error: a title, a paragraph per problem, and what to do next."""
    heading = wrapped(title)
    if has_colors(sys.stderr):
        heading = painted(heading, RED)
    lines = [heading, *(wrapped(" ".join(problem.split()), indent="  ") for problem in problems)]
    print("\n".join([*lines, wrapped(hint)] if hint else lines), file=sys.stderr, flush=True)
