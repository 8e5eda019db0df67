"""The process that `naiad check --load` starts for each model, which isolates the effects of the model's code."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import orjson

from naiad.core.errors import InferError
from naiad.server.load_trial import try_to_load


def run(argv: Sequence[str]) -> None:
    """Load the model in `argv`, write the outcome and exit.

    Arguments: path, model, strict or not, file for the outcome, and directory of Python-based backends.
    """
    path, model, strict, outcome_file, backend_directory = argv
    try:
        outcome = try_to_load(path, model, auto_complete=strict != "strict", backend_directory=backend_directory)
        found: object = {"failures": list(outcome.failures), "seconds": outcome.seconds}
    except InferError as error:
        found = {"failures": [error.message], "seconds": 0.0}
    Path(outcome_file).write_bytes(orjson.dumps(found))
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of a model would keep the process alive.
    os._exit(0)


if __name__ == "__main__":
    run(sys.argv[1:])
