"""`naiad demo`: real models out of PyPI packages, served and asked.

naiad demo                 three models over HTTP and gRPC, the answers in a table
naiad demo ocr [IMAGE]     reads the text of a picture: an ensemble of three models and Python between them
naiad demo voice [WAV]     finds speech in a sound while it streams in: a sequence with state in the server
"""

import argparse
import importlib
from collections.abc import Sequence
from pathlib import Path

_DEMOS = {"models": "naiad.demo.run", "ocr": "naiad.demo.ocr", "voice": "naiad.demo.voice"}


def run(arguments: Sequence[str]) -> int:
    """Run the verb; return its exit code."""
    parser = argparse.ArgumentParser(
        prog="naiad demo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", choices=_DEMOS, default="models", help="what to demonstrate")
    parser.add_argument(
        "file", nargs="?", type=Path, help="ocr: a picture; voice: a WAV file; default: one made here"
    )
    parser.add_argument("--repository", type=Path, default=Path("demo_repository"), help="where to write the models")
    parser.add_argument("--output", type=Path, default=Path("ocr.png"), help="ocr: where the annotated picture goes")
    parser.add_argument("--keep-running", action="store_true", help="leave the server running until Ctrl-C")
    parser.add_argument("--http-port", type=int, default=0, help="default: a free one")
    parser.add_argument("--grpc-port", type=int, default=0, help="default: a free one")
    options = parser.parse_args(arguments)
    if options.file is not None and options.what == "models":
        parser.error("argument file: only `naiad demo ocr` and `naiad demo voice` take one")
    if options.file is not None and not options.file.is_file():
        parser.error(f"argument file: {options.file} is not a file")
    return _run(options, parser)


def _run(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    try:
        from rich.console import Console

        from naiad.demo.server import NotReadyError, Settings

        demo = importlib.import_module(_DEMOS[options.what])
    except ModuleNotFoundError as missing:
        parser.exit(1, f"naiad demo needs {missing.name}: pip install 'naiad[demo]'\n")
    settings = Settings(options.repository, options.keep_running, options.http_port, options.grpc_port)
    extra = {"models": (), "ocr": (options.file, options.output), "voice": (options.file,)}[options.what]
    console = Console()
    try:
        return int(demo.run(settings, console, *extra))
    except NotReadyError as error:
        console.print(f"[red]the server did not become ready[/red]\n{error}")
    except (RuntimeError, ValueError, OSError) as error:
        console.print(f"[red]{error}[/red]")
    return 1
