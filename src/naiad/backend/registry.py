"""Backends by name: those in this package, those that installed packages announce as entry points, and directories.

Triton calls the last ones Python-based backends: a directory `NAME` in `--backend-directory` whose `model.py`
executes all models with `backend: "NAME"`. A package of that name wins unless `runtime` is `model.py`; the backend
`vllm` of this package does not.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from naiad.backend.api import Backend
from naiad.backend.loading import load_backend, load_class
from naiad.config.backends import (
    BUILT_IN,
    ISOLATED,
    PYTHON_BASED,
    PYTHON_RUNTIME,
    RUNTIMES,
    YIELDING_BACKENDS,
    canonical_name,
)
from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.naiad_parameters import is_isolated
from naiad.config.problem import nearest
from naiad.config.remote_settings import REMOTE
from naiad.core.errors import invalid_argument

_Key = TypeVar("_Key")


class BackendRegistry:
    """Finds and keeps one `Backend` object per name. Its methods may be called from several threads."""

    def __init__(
        self,
        announced: Mapping[str, str] | None = None,
        directory: Path | None = None,
        backends: Sequence[Backend] = (),
    ) -> None:
        """Look for backends in `directory` and among the installed packages, or take the `announced` ones instead.

        Those are a name to `module:class` each. `backends` are objects that the program has made; they replace
        others of their names.
        """
        # The table first: without the package's metadata, a source tree on PYTHONPATH serves models too.
        self._points = {**BUILT_IN, **(announced_backends() if announced is None else announced)}
        self._points |= {each.name: f"{type(each).__module__}:{type(each).__name__}" for each in backends}
        self._directory = directory
        self._backends: dict[str, Backend] = {each.name: each for each in backends}
        self._python_based: dict[str, Backend] = {}
        self._isolated: dict[tuple[str, str], Backend] = {}
        """By the names of backend and model: the environments of models differ, and so may their support of GPUs."""
        self._lock = threading.Lock()

    def names(self) -> list[str]:
        """Return the names of all backends that could be used, sorted; none is imported for it."""
        return sorted({*self._points, *self._directories(), REMOTE})

    def modules(self) -> dict[str, str]:
        """Return the backends in use, name to module or file."""
        modules = {name: type(backend).__module__ for name, backend in list(self._backends.items())}
        modules |= {name: self._points[name].partition(":")[0] for name, _ in list(self._isolated)}
        return modules | {name: str(self._file(name)) for name in list(self._python_based)}

    def runtime_of(self, name: str) -> str:
        """Return the `runtime` of a configuration that names none: that of a Python-based backend, "" otherwise."""
        return PYTHON_RUNTIME if self._yields(name) and name in self._directories() else ""

    def _yields(self, name: str) -> bool:
        """Return whether a directory of that name is executed: there is no backend, or only one that yields to it."""
        if name in YIELDING_BACKENDS and self._points.get(name) == BUILT_IN[name]:
            return True
        return name not in self._points

    def get_for(self, config: ModelConfig, model: str, settings: Mapping[str, str] = MappingProxyType({})) -> Backend:
        """Return the backend that executes a model, as its configuration says. Raises as `get`.

        `settings` are the `--backend-config` settings of the backend.
        """
        runtime = self._runtime(config.backend, config.runtime)
        # Python models run in worker processes anyway.
        if config.backend != "python" and runtime != PYTHON_RUNTIME and is_isolated(config, settings):
            return self._get_isolated(config.backend, model)
        return self.get(config.backend, config.runtime, model)

    def get(self, name: str, runtime: str = "", model: str = "") -> Backend:
        """Return the backend called `name`, importing it when it is asked for first.

        `runtime` is that of the configuration of `model`: empty, `model.py`, or the library that a package stands
        for. Raises InferError(INVALID_ARG) for a name that nothing provides, INTERNAL when its package does not
        import.
        """
        runtime = self._runtime(name, runtime)
        if runtime == PYTHON_RUNTIME:
            return self._get_python_based(name, model)
        if runtime not in ("", f"libtriton_{name}.so"):
            raise invalid_argument(
                f"unable to find backend library '{runtime}' for model '{model}'; backends are packages here: leave "
                f"'runtime' out, or write '{PYTHON_RUNTIME}' for a Python-based backend"
            )
        return self._kept(self._backends, name, lambda: load_backend(name, self._point(name)))

    def _get_isolated(self, name: str, model: str) -> Backend:
        """Return what runs instances of the backend `name` in worker processes, without importing it here."""
        point = self._point(name)
        return self._kept(self._isolated, (name, model), lambda: load_class(name, ISOLATED)(name, point))

    def _kept(self, backends: dict[_Key, Backend], key: _Key, make: Callable[[], Backend]) -> Backend:
        with self._lock:
            if key not in backends:
                backends[key] = make()
            return backends[key]

    def _runtime(self, name: str, runtime: str) -> str:
        """Return the runtime that chooses the backend: none where the package of that name supports it itself."""
        if runtime in RUNTIMES.get(canonical_name(name), ()) and name not in self._directories():
            return ""
        return runtime or self.runtime_of(name)

    def _directories(self) -> list[str]:
        """Return the names of the directories with a `model.py`."""
        try:
            children = [] if self._directory is None else list(self._directory.iterdir())
        except OSError:
            return []
        return [child.name for child in children if (child / PYTHON_RUNTIME).is_file()]

    def _file(self, name: str) -> Path:
        return (self._directory or Path()) / name / PYTHON_RUNTIME

    def _get_python_based(self, name: str, model: str) -> Backend:
        # By the names that are there: one from a configuration could lead elsewhere.
        if name not in self._directories():
            searched = f"searched: '{self._file(name)}'" if self._directory else "there is no --backend-directory"
            raise invalid_argument(
                f"unable to find Python backend based backend library '{PYTHON_RUNTIME}' for model '{model}', "
                f"{searched}"
            )
        directory = self._file(name).parent
        return self._kept(self._python_based, name, lambda: load_class(name, PYTHON_BASED)(directory))

    def _point(self, name: str) -> str:
        """Return `module:class` of a backend. Raises InferError(INVALID_ARG)."""
        if name in self._points:
            return self._points[name]
        meant = nearest(name, self._points)
        hint = f", did you mean '{meant}'?" if meant else ";"
        raise invalid_argument(
            f"unknown backend '{name}'{hint} available backends: {', '.join(self.names())}. Others come as packages "
            f"with an entry point in the group '{ENTRY_POINT_GROUP}'"
        )


ENTRY_POINT_GROUP = "naiad.backends"
_OWN_PREFIX = "naiad-"
"""The directory of this package's metadata: its backends are built in."""


def announced_backends() -> dict[str, str]:
    """Return the backends that installed packages announce, name to `module:class`.

    `importlib.metadata` parses every package's entry points, and importing it takes as long as importing 40 modules
    of this package: it is used only if a search finds the group's heading.
    """
    if not _may_be_announced():
        return {}
    from importlib.metadata import entry_points

    points = [point for point in entry_points(group=ENTRY_POINT_GROUP) if not point.value.startswith("naiad.")]
    return {point.name: point.value.split("[")[0].strip() for point in points}


def _may_be_announced() -> bool:
    """Return whether some other package may announce backends; True where packages are not in directories."""
    heading = f"[{ENTRY_POINT_GROUP}]".encode()
    for directory in dict.fromkeys(sys.path):
        if os.path.isfile(directory):
            return True  # an archive
        for path in _metadata(directory or os.curdir):
            try:
                with open(path, "rb") as file:
                    if heading in file.read():
                        return True
            except OSError:
                continue  # a package without entry points
    return False


def _metadata(directory: str) -> Iterator[str]:
    """Yield where the entry points of the packages in a directory would be."""
    try:
        names = os.listdir(directory)
    except OSError:
        return
    for name in names:
        if (name.endswith(".dist-info") and not name.startswith(_OWN_PREFIX)) or name.endswith(".egg-info"):
            yield os.path.join(directory, name, "entry_points.txt")
        elif name.endswith(".egg"):
            yield os.path.join(directory, name, "EGG-INFO", "entry_points.txt")
