"""Import of a backend by its `module:class`: for the registry, and for the worker processes of isolated models.

The names come from the table in `naiad.config.backends` or from the entry points of installed packages.
"""

import importlib
from collections.abc import Callable

from naiad.backend.api import Backend
from naiad.config.backends import EXTRAS, canonical_name
from naiad.core.errors import cause_of, internal


def load_class(name: str, point: str) -> Callable[..., Backend]:
    """Import `module:class` for the backend `name` and return the class. Raises InferError(INTERNAL)."""
    module_name, _, class_name = point.partition(":")
    try:
        module = importlib.import_module(module_name)
        backend_class = getattr(module, class_name)
    except (ImportError, AttributeError) as error:
        missing, extra = getattr(error, "name", None) or "", EXTRAS.get(name)
        if extra and isinstance(error, ModuleNotFoundError) and not missing.startswith("naiad"):
            raise internal(
                f"backend '{name}' needs the package '{missing}', which is not installed: pip install "
                f"'naiad[{extra}]'"
            ) from error
        raise internal(f"backend '{name}' cannot be used: importing {point} failed: {error}") from error
    except KeyboardInterrupt:
        raise  # of the operator
    except BaseException as error:
        # Also SystemExit, with which some libraries refuse a machine: it would end the server without a word.
        raise internal(f"backend '{name}' cannot be used: importing {point} failed: {cause_of(error)}") from error
    if not (isinstance(backend_class, type) and issubclass(backend_class, Backend)):
        raise internal(f"backend '{name}': {point} is not a subclass of naiad.backend.api.Backend")
    return backend_class


def load_backend(name: str, point: str) -> Backend:
    """Import `module:class` and return an object of the class. Raises InferError(INTERNAL)."""
    backend = load_class(name, point)()
    if backend.name != canonical_name(name):
        raise internal(
            f"backend '{name}': {point} calls itself '{backend.name}'; its entry point must have that name"
        )
    return backend
