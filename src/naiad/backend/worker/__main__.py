"""Start of a worker process: `python <this directory> DESCRIPTORS...`, with any interpreter from Python 3.8 on."""

import os
import sys
import types
from typing import Callable, List

_HERE = os.path.dirname(os.path.abspath(__file__))


def _import_worker() -> "Callable[[List[str]], None]":
    """Import this package under its own name without importing naiad, which this interpreter may not have."""
    if sys.path and os.path.abspath(sys.path[0]) == _HERE:
        del sys.path[0]
    parents = {"naiad.backend": os.path.dirname(_HERE), "naiad": os.path.dirname(os.path.dirname(_HERE))}
    for name, path in parents.items():
        package = types.ModuleType(name)
        package.__path__ = [path]
        sys.modules[name] = package
    from naiad.backend.worker.process import run

    # A model that imports naiad gets the real one, if it is installed.
    for name in parents:
        del sys.modules[name]
    return run


if __name__ == "__main__":
    _import_worker()(sys.argv[1:])
