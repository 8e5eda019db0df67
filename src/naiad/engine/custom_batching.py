"""Custom batching: rules of the model's author, as Python functions, in addition to the dynamic batcher's own rules.

Triton loads a shared library with five C functions; here they are functions of a Python file or installed package.
`PythonStrategy` calls them, and `BatchRequest` is their view of a request.
"""

import inspect
import json
import logging
import os
import time
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from naiad.backend.api import ModelContext
from naiad.config.forms.json_form import config_to_json
from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.problem import nearest
from naiad.core.device_tensor import in_host_memory
from naiad.core.errors import InferError, invalid_argument
from naiad.core.parameters import ParameterValue
from naiad.core.request import InferRequest
from naiad.core.tensor import Array, Buffer, TensorSpec, to_array

INCLUDE = "model_batch_include_request"
FUNCTIONS: Mapping[str, str] = {
    INCLUDE: "request, batch",
    "model_batch_initialize": "batcher",
    "model_batch_finalize": "batch",
    "model_batcher_initialize": "model_config",
    "model_batcher_finalize": "batcher",
}
"""The functions of a strategy: names and arguments. All but the first are optional."""
_LOG_INTERVAL_NS = 10_000_000_000
"""Limit of logged failures: a function that always fails would log a line for every batch."""
_BROKEN = object()
"""The record of a batch after a failed beginning."""

_log = logging.getLogger(__name__)


class BatchInput:
    """An input of a request in a strategy."""

    __slots__ = ("_data", "_spec")

    def __init__(self, spec: TensorSpec, data: Buffer) -> None:
        self._spec = spec
        self._data = data

    @property
    def name(self) -> str:
        """The name of the input."""
        return self._spec.name

    @property
    def datatype(self) -> str:
        """FP32, INT64, BYTES, ..."""
        name: str = self._spec.datatype.value
        return name

    @property
    def shape(self) -> Sequence[int]:
        """The shape, with the batch dimension."""
        return self._spec.shape

    @property
    def byte_size(self) -> int:
        """Bytes of the data."""
        return len(self._data)

    def as_numpy(self) -> Array:
        """Return the data, without copying them; read-only by convention."""
        return to_array(self._spec, in_host_memory(self._data))


class BatchRequest:
    """A queued request in a strategy; valid during the call only."""

    __slots__ = ("_request",)

    def __init__(self, request: InferRequest) -> None:
        self._request = request

    @property
    def request_id(self) -> str:
        """The id of the request, "" for none."""
        return self._request.id

    @property
    def correlation_id(self) -> int | str:
        """The id of the sequence, 0 for none."""
        return self._request.header.sequence_id

    @property
    def priority(self) -> int:
        """The priority of the request, 0 for none."""
        return self._request.header.priority

    @property
    def timeout_us(self) -> int:
        """The timeout of the request, in microseconds, 0 for none."""
        return self._request.header.timeout_us

    @property
    def parameters(self) -> Mapping[str, ParameterValue]:
        """The custom parameters of the request."""
        return self._request.header.parameters

    @property
    def batch_size(self) -> int:
        """Rows of the request."""
        return self._request.batch_size

    @property
    def waited_s(self) -> float:
        """Seconds since the request arrived."""
        return (time.monotonic_ns() - self._request.arrival_ns) / 1e9

    def inputs(self) -> list[BatchInput]:
        """Return the inputs of the request."""
        pairs = zip(self._request.header.inputs, self._request.data, strict=True)
        return [BatchInput(spec, data) for spec, data in pairs]

    def input(self, name: str) -> BatchInput | None:
        """Return the input with that name; None for a missing one."""
        return next((each for each in self.inputs() if each.name == name), None)


class PythonStrategy:
    """The functions of a strategy for the dynamic batcher; a failure closes the batch and is logged."""

    def __init__(self, origin: str, model: str, functions: Mapping[str, Callable[..., Any]]) -> None:
        self._origin = origin
        self._model = model
        self._functions = functions
        self._include = functions[INCLUDE]
        self._batcher: Any = None
        self._failure_count = 0
        self._quiet_until_ns = 0

    def start(self, config: ModelConfig) -> None:
        """Call the initialization. Raises InferError if it fails."""
        initialize = self._functions.get("model_batcher_initialize")
        if initialize is None:
            return
        try:
            self._batcher = initialize(json.loads(config_to_json(config)))
        except Exception as error:
            raise strategy_failed(self._origin, self._model, "model_batcher_initialize", error) from error

    def begin(self) -> Any:
        """Return the record of a new batch."""
        begin = self._functions.get("model_batch_initialize")
        if begin is None:
            return {}
        try:
            return begin(self._batcher)
        except Exception as error:
            self._note("model_batch_initialize", error)
            return _BROKEN

    def includes(self, record: Any, request: InferRequest) -> bool:
        """Return whether a request may join the batch; False after a failure."""
        if record is _BROKEN:
            return False
        try:
            answer = self._include(BatchRequest(request), record)
            if not isinstance(answer, bool | np.bool_):
                raise TypeError(f"it returned {answer!r}, expected True or False")
        except Exception as error:
            self._note(INCLUDE, error)
            return False
        return bool(answer)

    def end(self, record: Any) -> None:
        """Call the function for a complete batch."""
        if record is not _BROKEN:
            self._finalize("model_batch_finalize", record)

    def close(self) -> None:
        """Call the finalization."""
        self._finalize("model_batcher_finalize", self._batcher)

    def _finalize(self, name: str, argument: Any) -> None:
        function = self._functions.get(name)
        if function is None:
            return
        try:
            function(argument)
        except Exception as error:
            self._note(name, error)

    def _note(self, function: str, error: Exception) -> None:
        self._failure_count += 1
        now_ns = time.monotonic_ns()
        if now_ns < self._quiet_until_ns:
            return
        self._quiet_until_ns = now_ns + _LOG_INTERVAL_NS
        _log.error(
            "model '%s': %s of the batching strategy %s failed, the batch goes as it is (failures so far: %d)\n%s",
            self._model,
            function,
            self._origin,
            self._failure_count,
            "".join(traceback.format_exception(error)),
        )


def strategy_failed(origin: str, model: str, function: str, error: Exception) -> InferError:
    """Return the error for an unusable strategy; `function` is "" for its file or package as a whole."""
    part = f"'{function}' of batching strategy {origin} failed" if function else f"batching strategy {origin} failed"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == origin]
    line = error.lineno if isinstance(error, SyntaxError) else frames[-1].lineno if frames else None
    at = f" at line {line}" if line else ""
    failure = invalid_argument(f"model '{model}': {part}{at}: {type(error).__name__}: {error}")
    failure.detail = "".join(traceback.format_exception(error))
    return failure


PARAMETER: Final = "TRITON_BATCH_STRATEGY_PATH"
ENTRY_POINT_GROUP: Final = "naiad.batch_strategies"
FILE: Final = "batchstrategy.py"
_LIBRARY = "batchstrategy.so"


def read_strategy(context: ModelContext) -> PythonStrategy | None:
    """Return the batching strategy of a model version, None if it has none.

    Raises InferError(INVALID_ARG) if it cannot be loaded, lacks a function, or has no effect.
    """
    config = context.config
    where = config.parameters[PARAMETER].string_value if PARAMETER in config.parameters else ""
    if not where:
        path = _found_file(context)
        if path is None:
            return None
        if not config.HasField("dynamic_batching"):
            # Triton: only the dynamic batcher searches the directory.
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
        # Not `Path.is_file`: an exception for each of four files that hardly any model has is a tenth of its load.
        folder = os.fspath(directory)
        path, library = f"{folder}/{FILE}", f"{folder}/{_LIBRARY}"
        if os.access(path, os.F_OK) and os.path.isfile(path):
            return Path(path)
        if os.access(library, os.F_OK) and os.path.isfile(library) and context.config.HasField("dynamic_batching"):
            raise _is_library(context.name, library)
    return None


def _is_library(model: str, path: str) -> InferError:
    return invalid_argument(
        f"model '{model}': {path} is a batching strategy for Triton, a shared library; this server takes Python: "
        f"write its rule as '{FILE}' (docs/custom-batching.md), or remove the library"
    )


def _execute(path: Path, model: str) -> object:
    """Return the file as a module; unlike an import it writes no files."""
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
    from importlib.metadata import entry_points  # takes 10 ms to import

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
