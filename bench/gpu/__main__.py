"""The command line of `python -m bench.gpu`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.gpu.parts import PARTS, chosen
from bench.gpu.run import Collection

_LEAST_MINUTES, _MOST_MINUTES = 0.2, 600.0


def main(arguments: Sequence[str]) -> int:
    """Collect; return 0 if all checks that could be run are met, 1 otherwise, 2 for a wrong command line."""
    listed = "\n".join(f"  {part.name:13} {part.title}" for part in PARTS)
    parser = argparse.ArgumentParser(
        prog="python -m bench.gpu",
        description=f"Evidence on a GPU.\n\nparts:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="gets results.json, summary.txt and logs.txt"
    )
    parser.add_argument("--minutes", type=float, default=8.0, help="limit of the whole run; default 8")
    parser.add_argument("--parts", default="", metavar="A,B", help="default all but tensorrt and onnxruntime")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, with tiny models")
    given = parser.parse_args(arguments)
    if not _LEAST_MINUTES <= given.minutes <= _MOST_MINUTES:
        parser.error(f"--minutes is {given.minutes:g}; use {_LEAST_MINUTES:g} to {_MOST_MINUTES:g}")
    try:
        parts = chosen(given.parts)
    except ValueError as error:
        parser.error(str(error))
    command = ["python", "-m", "bench.gpu", *arguments]
    return Collection(given.out, given.minutes, given.rehearse, command).collect(parts)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
