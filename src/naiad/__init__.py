"""naiad: an inference server, wire- and file-compatible with NVIDIA Triton Inference Server."""

import importlib
from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import `naiad.optimize` when it is used, so that `import naiad` stays cheap. `__init__.pyi` has its type."""
    if name == "optimize":
        return importlib.import_module("naiad.tools.optimize.api").optimize
    raise AttributeError(f"module 'naiad' has no attribute '{name}'")
