"""`naiad inspect`: what model files contain and what would serve them."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import orjson

from naiad.cli.inspect.files import inspect
from naiad.cli.parser import Parser
from naiad.core.errors import InferError

_DESCRIPTION = """\
Print format, producer, inputs, outputs, batching, size, parameters and operators of model files, the backend that
serves each, and its problems. Nothing in a file is executed; of a pickle the names that it imports are listed.
Without the framework of a file, its own description is read as far as it goes.
The exit status is 1 if a file has a problem, 2 for an invalid command line.
"""


def run(argv: Sequence[str]) -> int:
    """Print the findings and return the exit status."""
    options = make_parser().parse_args(argv)
    try:
        found = [inspect(path) for path in options.paths]
    except InferError as error:
        print(f"naiad inspect: {error.message}", file=sys.stderr)
        return 1
    if options.json:
        print(orjson.dumps([each.as_dict() for each in found], option=orjson.OPT_INDENT_2).decode())
    else:
        print("\n".join(each.as_text() for each in found))
    return 1 if any(each.problems for each in found) else 0


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the verb's arguments."""
    parser = Parser(prog="naiad inspect", description=_DESCRIPTION, epilog="example: naiad inspect model.onnx")
    parser.add_argument("paths", metavar="FILE", nargs="+", type=Path, help="a model file, or a model's directory")
    parser.add_argument("--json", action="store_true", help="print a JSON list")
    return parser
