"""`naiad demo`: real models out of PyPI packages, served, asked over HTTP and gRPC, answers in a table."""

import argparse
from collections.abc import Sequence
from pathlib import Path


def run(arguments: Sequence[str]) -> int:
    """Run the verb; return its exit code."""
    parser = argparse.ArgumentParser(prog="naiad demo", description=__doc__)
    parser.add_argument("--repository", type=Path, default=Path("demo_repository"), help="where to write the models")
    parser.add_argument("--keep-running", action="store_true", help="leave the server running until Ctrl-C")
    parser.add_argument("--http-port", type=int, default=0, help="default: a free one")
    parser.add_argument("--grpc-port", type=int, default=0, help="default: a free one")
    options = parser.parse_args(arguments)
    try:
        from rich.console import Console

        from naiad.demo.run import Settings
        from naiad.demo.run import run as run_demo
    except ModuleNotFoundError as missing:
        parser.exit(1, f"naiad demo needs {missing.name}: pip install 'naiad[demo]'\n")
    settings = Settings(options.repository, options.keep_running, options.http_port, options.grpc_port)
    return run_demo(settings, Console())
