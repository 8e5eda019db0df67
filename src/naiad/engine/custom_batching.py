"""Custom batching: a rule of the model's author, as Python functions, on top of the dynamic batcher's own rules.

Triton loads a shared library with five C functions; here they are functions of a Python file or installed package.
"""

import inspect
import logging
import types
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final

from naiad.backend.api import ModelContext
from naiad.config.suggestion import nearest
from naiad.core.errors import InferError, invalid_argument
from naiad.engine.batch_strategy import FUNCTIONS, INCLUDE, PythonStrategy, strategy_failed

PARAMETER: Final = "TRITON_BATCH_STRATEGY_PATH"
ENTRY_POINT_GROUP: Final = "naiad.batch_strategies"
FILE: Final = "batchstrategy.py"
_LIBRARY = "batchstrategy.so"

_log = logging.getLogger(__name__)


def read_strategy(context: ModelContext) -> PythonStrategy | None:
    """Return the batching strategy of a model version, None when it has none.

    Raises InferError(INVALID_ARG) for one that cannot be loaded, lacks a function, or has nothing to act on.
    """
    config = context.config
    where = config.parameters[PARAMETER].string_value if PARAMETER in config.parameters else ""
    if not where:
        path = _found_file(context)
        if path is None:
            return None
        if not config.HasField("dynamic_batching"):
            # Triton: what lies in a directory is looked at by the dynamic batcher only.
            _log.warning("model '%s' has no 'dynamic_batching', so %s has no effect", config.name, path)
            return None
        return _from_object(str(path), config.name, _execute(path, config.name))
    if not config.HasField("dynamic_batching"):
        raise invalid_argument(
            f"model '{config.name}': parameter '{PARAMETER}' needs the dynamic batcher: add 'dynamic_batching {{ }}'"
        )
    if where.endswith(".so"):
        raise _is_library(config.name, where)
    if where.endswith(".py"):
        path = context.model_dir / where
        return _from_object(str(path), config.name, _execute(path, config.name))
    return _from_object(where, config.name, _entry_point(where, config.name))


def _found_file(context: ModelContext) -> Path | None:
    for directory in (context.version_dir, context.model_dir):
        path = directory / FILE
        if path.is_file():
            return path
        if (directory / _LIBRARY).is_file() and context.config.HasField("dynamic_batching"):
            raise _is_library(context.name, str(directory / _LIBRARY))
    return None


def _is_library(model: str, path: str) -> InferError:
    return invalid_argument(
        f"model '{model}': {path} is a batching strategy for Triton, a shared library; this server takes Python: "
        f"write its rule as '{FILE}' (docs/custom-batching.md), or remove the library"
    )


def _execute(path: Path, model: str) -> object:
    """Return the file as a module; nothing is written beside it, as an import would."""
    try:
        source = path.read_bytes()
    except OSError as error:
        raise invalid_argument(
            f"model '{model}': batching strategy {path} cannot be read: {error.strerror}; '{PARAMETER}' is a Python "
            f"file, absolute or relative to the model's directory, or an entry point of '{ENTRY_POINT_GROUP}'"
        ) from error
    module = types.ModuleType(path.stem)
    module.__file__ = str(path)
    try:
        exec(compile(source, str(path), "exec"), module.__dict__)
    except Exception as error:
        raise strategy_failed(str(path), model, "", error) from error
    return module


def _entry_point(name: str, model: str) -> object:
    points = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    if name not in points:
        known = ", ".join(sorted(points)) or "none is installed"
        raise invalid_argument(
            f"model '{model}': '{PARAMETER}' is '{name}', which is neither a .py file nor an entry point of "
            f"'{ENTRY_POINT_GROUP}' ({known})"
        )
    try:
        loaded: object = points[name].load()
    except Exception as error:
        raise strategy_failed(f"{name} ({points[name].value})", model, "", error) from error
    return loaded


def _from_object(origin: str, model: str, source: object) -> PythonStrategy:
    functions: dict[str, Callable[..., Any]] = {}
    for name in dir(source):
        if name.startswith("model_batch") and name not in FUNCTIONS:
            meant = nearest(name, FUNCTIONS)
            hint = f"did you mean '{meant}'?" if meant else f"known are {', '.join(FUNCTIONS)}"
            raise invalid_argument(f"model '{model}': batching strategy {origin} has an unknown '{name}': {hint}")
    for name, arguments in FUNCTIONS.items():
        function = getattr(source, name, None)
        if function is None:
            continue
        if not _takes(function, arguments.count(",") + 1):
            raise invalid_argument(
                f"model '{model}': '{name}' of batching strategy {origin} must be a function of ({arguments})"
            )
        functions[name] = function
    if INCLUDE not in functions:
        raise invalid_argument(
            f"model '{model}': batching strategy {origin} has no function '{INCLUDE}({FUNCTIONS[INCLUDE]})', "
            "which returns whether the request may join the batch"
        )
    return PythonStrategy(origin, model, functions)


def _takes(function: object, count: int) -> bool:
    if not callable(function) or inspect.iscoroutinefunction(function):
        return False
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:
        return True  # a builtin without a signature
    return True
