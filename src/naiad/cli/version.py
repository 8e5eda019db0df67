"""`naiad version`: print the version."""

import argparse
from collections.abc import Sequence

from naiad.cli.parser import Parser
from naiad.core.version import __version__


def run(arguments: Sequence[str]) -> int:
    """Print the version and return the exit status."""
    make_parser().parse_args(arguments)
    print(__version__)
    return 0


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the verb's arguments."""
    return Parser(prog="naiad version", description="Print naiad's version.")
