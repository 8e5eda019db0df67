"""`naiad export`: put a package of `naiad optimize` into a repository or a running server."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from naiad.cli.parser import Parser, fail, parse_header

_DESCRIPTION = """\
Check PACKAGE, and add its model as a new version to a model repository. A server in poll mode never sees half of it.

naiad export PACKAGE REPOSITORY               a new version after all versions that are there
naiad export PACKAGE REPOSITORY --push URL    ... and let the server at URL load it from its repository
naiad export PACKAGE --push URL               send the files with a load request; replaces the versions of the model
naiad export PACKAGE FOLDER --format-only     the model files alone, for edge devices (LiteRT, ExecuTorch, ...)

The exit status is 1 if the package is damaged or does not fit to the model that is there, 2 for an invalid command
line.
"""


def run(arguments: Sequence[str]) -> int:
    """Export a package and return the exit status."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    if options.repository is None and (options.format_only or options.push is None):
        parser.error("name the REPOSITORY, or a server with --push URL")
    if str(options.repository).startswith(("http:/", "https:/", "grpc:/", "grpcs:/")):
        parser.error("REPOSITORY is a directory; to send the model to a server: naiad export PACKAGE --push URL")
    if options.format_only and (options.push or options.name):
        parser.error("--format-only excludes --push and --name")
    try:
        headers = dict(map(parse_header, options.header))
    except ValueError as error:
        parser.error(str(error))
    from naiad.client import ConnectionFailedError
    from naiad.core.errors import InferError
    from naiad.tools.optimize import package
    from naiad.tools.optimize.package.manifest import NoPackageError

    try:
        if options.format_only:
            for file in package.export_files(options.package, options.repository):
                print(file)
            return 0
        done = package.export(
            options.package, options.repository, model=options.name, push=options.push, headers=headers
        )
    except NoPackageError as error:
        parser.error(str(error))
    except InferError as error:
        fix = (
            "; start one with naiad serve, or give its --push URL" if isinstance(error, ConnectionFailedError) else ""
        )
        return fail("naiad export", f"{options.push}: {error.message}{fix}")
    except (ValueError, OSError) as error:
        return fail("naiad export", error)
    print(f"model '{done.model}' has version {done.version}: {', '.join(done.places)}")
    return 0


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the verb's arguments."""
    parser = Parser(
        prog="naiad export", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("package", type=Path, metavar="PACKAGE", help="a folder or a .zip file")
    add("repository", type=Path, nargs="?", metavar="REPOSITORY", help="the directory of the models")
    add("--name", default="", help="of the model there; default: the name in the package")
    add("--push", metavar="URL", help="a running server that loads the model")
    add("--header", action="append", default=[], metavar="'NAME: VALUE'", help="for --push, for example an API key")
    add("--format-only", action="store_true", help="write the model files alone to a folder")
    return parser
