"""naiad: an inference server, wire- and file-compatible with NVIDIA Triton Inference Server."""

from typing import Any

from naiad.core.version import __version__ as __version__


def __getattr__(name: str) -> Any:
    """Import `naiad.optimize` when it is used, so that `import naiad` stays cheap. `__init__.pyi` has its type.

    Modules of this package import `naiad.core.version`, never `naiad`: it stands above all of them.
    """
    if name == "optimize":
        from naiad.tools.optimize.api import optimize

        return optimize
    raise AttributeError(f"module 'naiad' has no attribute '{name}'")
