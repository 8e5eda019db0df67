"""Start of a worker process: `python <this directory> DESCRIPTORS...`, with any interpreter from Python 3.8 on."""

import builtins
import os
import sys
import types
from typing import Callable, List

_HERE = os.path.dirname(os.path.abspath(__file__))


def _import_worker() -> "Callable[[List[str]], None]":
    """Import this package under its own name without importing naiad, which this interpreter may not have."""
    if sys.path and os.path.abspath(sys.path[0]) == _HERE:
        del sys.path[0]
    package = types.ModuleType("naiad")
    package.__path__ = [os.path.dirname(_HERE)]
    sys.modules["naiad"] = package
    from naiad.worker.loop import run

    # A model that imports naiad gets the real one, if it is installed.
    del sys.modules["naiad"]
    return run


def _take_arguments() -> "List[str]":
    """Return the arguments, and leave the process as models find Triton's embedded interpreter.

    `sys.argv` is [""]: modules parse it when they are imported. `__main__` is empty and without a file, which
    processes that the model starts with `multiprocessing` would import.
    """
    arguments = sys.argv[1:]
    sys.argv[:] = [""]
    sys.orig_argv = []
    main = types.ModuleType("__main__")
    vars(main)["__builtins__"] = builtins
    sys.modules["__main__"] = main
    return arguments


if __name__ == "__main__":
    _import_worker()(_take_arguments())
