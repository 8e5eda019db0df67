"""`naiad key new`: make an API key."""

import argparse
import secrets
import sys
from collections.abc import Sequence

from naiad.cli.parser import BAD_OPTION, Parser, fail
from naiad.options.network.access_options import KEY_CATEGORIES, format_line, parse_categories, parse_limits

_DESCRIPTION = """\
Print a new API key for a client, and the line for the server's --api-key-file, which contains only its hash.
The key goes to standard error and the line to standard output.
The exit status is 2 for an invalid command line.
"""


def run(argv: Sequence[str]) -> int:
    """Print a key and its line and return the exit status: 2 for an invalid command."""
    options = make_parser().parse_args(argv)
    try:
        line, key = new_key(options.name, options.categories, options.limit)
    except ValueError as error:
        return fail("naiad key new", error, BAD_OPTION)
    print(f"key of {options.name}, shown only now: {key}", file=sys.stderr)
    print(line)
    return 0


def new_key(name: str, categories: str, limits: Sequence[str] = ()) -> tuple[str, str]:
    """Return the line of a new key, and the key. Raises ValueError for an invalid name, category or limit."""
    if not name or name.startswith("#") or name.split() != [name]:
        raise ValueError(f"'{name}' is not a name: one word that does not begin with '#'")
    parse_categories(categories)
    parse_limits(limits)
    key = "naiad_" + secrets.token_urlsafe(32)
    return format_line(name, categories.split(","), key, limits), key


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the verb's arguments."""
    parser = Parser(prog="naiad key", description="Make keys for --api-key-file.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    new = verbs.add_parser("new", help="print a new key and its line for the file", description=_DESCRIPTION)
    new.epilog = "example: naiad key new alice inference,health >> keys.txt"
    new.add_argument("name", help="a name for the client, without spaces; the server's messages show it")
    new.add_argument(
        "categories",
        nargs="?",
        default="inference,health,metadata",
        help=f"categories, separated by commas: all, or of {', '.join(KEY_CATEGORIES)}; default %(default)s",
    )
    new.add_argument(
        "--limit",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a limit of the key: requests-per-second=, bytes-per-second= or in-flight=; repeatable",
    )
    return parser
