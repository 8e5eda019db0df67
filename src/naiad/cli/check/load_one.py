"""The process that `naiad check --load` starts for each model, which isolates the effects of the model's code."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import orjson

from naiad.core.errors import InferError
from naiad.options.options import RepositoryOptions, ServerOptions
from naiad.server.embedded import try_to_load


def run(argv: Sequence[str]) -> None:
    """Load the model in `argv`, write the outcome and exit.

    Arguments: path, model, strict or not, pickles or not, file for the outcome, directory of Python-based backends.
    """
    path, model, strict, pickles, outcome_file, backend_directory = argv
    try:
        repository = RepositoryOptions(paths=(path,), control_mode="explicit", auto_complete=strict != "strict")
        options = ServerOptions(
            repository=repository, backend_directory=backend_directory, allow_pickle=pickles == "pickles"
        )
        outcome = try_to_load(options, model)
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
