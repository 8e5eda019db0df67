"""Serve Python functions: PyTriton's interface on naiad. `naiad.bind.triton.Triton` binds and serves them.

The modules have PyTriton's names, so that a program moves with `sed s/pytriton/naiad.bind/`.
"""

import importlib
from typing import Any

from naiad.core.version import __version__ as __version__

_MODULES = ("client", "decorators", "exceptions", "model_config", "triton")


def __getattr__(name: str) -> Any:
    """Import a module when it is used: a client does not need the server."""
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module 'naiad.bind' has no attribute '{name}'")
