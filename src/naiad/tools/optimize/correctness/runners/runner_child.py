"""The process of an `IsolatedRunner`: answers requests until the connection closes.

Each message is a pair: the reason of a failure or "", and the result. The first one has the
greatest batch, the inputs and the outputs.
"""

import os
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from naiad.tools.optimize.correctness.runners.isolated import MAY_UNPICKLE
from naiad.tools.optimize.correctness.runners.model_runner import RunnerError
from naiad.tools.optimize.correctness.runners.served_runner import ServedRunner


def run(argv: Sequence[str]) -> None:
    """Serve the model in `argv`: file descriptor of the connection, repository, model, and perhaps MAY_UNPICKLE."""
    descriptor, repository, model, *rest = argv
    connection = Connection(int(descriptor))
    try:
        runner = ServedRunner(Path(repository), model, may_unpickle=MAY_UNPICKLE in rest)
        connection.send(("", (runner.max_batch, list(runner.inputs), list(runner.outputs))))
        while True:
            _answer(connection, runner)
    except RunnerError as error:
        connection.send((str(error), None))
    except EOFError:
        pass  # The runner is closed.
    sys.stdout.flush()
    # Threads of a model would keep the process alive.
    os._exit(0)


def _answer(connection: Connection, runner: ServedRunner) -> None:
    requests = connection.recv()
    try:
        connection.send(("", runner.infer_concurrently(requests)))
    except RunnerError as error:
        connection.send((str(error), None))


if __name__ == "__main__":
    run(sys.argv[1:])
