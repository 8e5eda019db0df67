"""The process of one part: `python -m bench.gpu.part_process NAME MODULE WORK ROWS SECONDS --gpu=1 --rehearse=0`."""

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.gpu.room import Room


def main(arguments: Sequence[str]) -> int:
    """Run the part."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("module")
    parser.add_argument("work", type=Path)
    parser.add_argument("rows", type=Path)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--gpu", type=int, required=True)
    parser.add_argument("--rehearse", type=int, required=True)
    given = parser.parse_args(arguments)
    room = Room(given.name, given.work, given.rows, given.seconds, bool(given.gpu), bool(given.rehearse))
    with room.check("the part"):
        importlib.import_module(given.module).measure(room)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
