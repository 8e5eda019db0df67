"""Backends by name: the ones in this package, and those that installed packages announce as entry points."""

import importlib
import threading
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points

from naiad.backend.api import Backend
from naiad.config.suggestion import nearest
from naiad.core.errors import InferError, internal, invalid_argument

ENTRY_POINT_GROUP = "naiad.backends"

BUILT_IN: Mapping[str, str] = {
    "onnxruntime": "naiad.backend.onnxruntime:OnnxRuntimeBackend",
    "python": "naiad.backend.python:PythonBackend",
    "identity": "naiad.backend.identity:IdentityBackend",
    "repeat": "naiad.backend.repeat:RepeatBackend",
}
"""Known without metadata too, so that a source tree on PYTHONPATH serves models."""

EXTRAS: Mapping[str, str] = {"onnxruntime": "onnx"}
"""Backend to the extra of this package that brings its framework."""


class BackendRegistry:
    """Finds and keeps one `Backend` object per name. Its methods may be called from several threads."""

    def __init__(self, announced: Mapping[str, EntryPoint] | None = None) -> None:
        """Look for backends among the installed packages, or take the `announced` ones instead."""
        if announced is None:
            announced = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
        built_in = {name: EntryPoint(name, value, ENTRY_POINT_GROUP) for name, value in BUILT_IN.items()}
        self._points: dict[str, EntryPoint] = {**built_in, **announced}
        self._backends: dict[str, Backend] = {}
        self._lock = threading.Lock()

    def names(self) -> list[str]:
        """Return the names of all backends that could be used, sorted; none is imported for it."""
        return sorted(self._points)

    def modules(self) -> dict[str, str]:
        """Return the backends in use, name to module."""
        return {name: type(backend).__module__ for name, backend in list(self._backends.items())}

    def get(self, name: str) -> Backend:
        """Return the backend called `name`, importing it when it is asked for first.

        Raises InferError(INVALID_ARG) for a name that nobody provides, INTERNAL when its package does not import.
        """
        backend = self._backends.get(name)
        if backend is None:
            with self._lock:
                backend = self._backends.get(name)
                if backend is None:
                    backend = self._backends[name] = self._create(name)
        return backend

    def _create(self, name: str) -> Backend:
        point = self._points.get(name)
        if point is None:
            raise self._unknown(name)
        try:
            module = importlib.import_module(point.module)
            backend_class = getattr(module, point.attr)
        except (ImportError, AttributeError) as error:
            raise _not_importable(name, point, error) from error
        if not (isinstance(backend_class, type) and issubclass(backend_class, Backend)):
            raise internal(f"backend '{name}': {point.value} is not a subclass of naiad.backend.api.Backend")
        backend = backend_class()
        if backend.name != name:
            raise internal(
                f"backend '{name}': {point.value} calls itself '{backend.name}'; its entry point must have that name"
            )
        return backend

    def _unknown(self, name: str) -> InferError:
        meant = nearest(name, self._points)
        hint = f", did you mean '{meant}'?" if meant else ";"
        return invalid_argument(
            f"unknown backend '{name}'{hint} available backends: {', '.join(self.names())}. Others come as packages "
            f"with an entry point in the group '{ENTRY_POINT_GROUP}'"
        )


def _not_importable(name: str, point: EntryPoint, error: Exception) -> InferError:
    missing = getattr(error, "name", None) or ""
    extra = EXTRAS.get(name)
    if extra and isinstance(error, ModuleNotFoundError) and not missing.startswith("naiad"):
        return internal(
            f"backend '{name}' needs the package '{missing}', which is not installed: pip install 'naiad[{extra}]'"
        )
    return internal(f"backend '{name}' cannot be used: importing {point.value} failed: {error}")
