"""From a model configuration to the options of an ONNX Runtime session.

Threads: the instances of a model together do not exceed the cores there are. All CPU instances of a version share one
session: the weights are in memory once, and `Run` may be called from any number of threads. A session has one pool of
intra-op threads, which those that call `Run` join. With k instances and a pool made for t threads (the caller counts
as one of them, so it starts t-1), at most k + t - 1 threads compute.
"""

import importlib.machinery
import importlib.util
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from naiad.backend.api import ModelContext
from naiad.backend.onnx.accelerators import choose_providers
from naiad.backend.onnx.library import onnxruntime
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import invalid_argument

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ThreadPlan:
    """Thread counts of a session."""

    intra_op: int
    inter_op: int
    is_parallel: bool
    """Independent parts of a graph are executed at the same time by the inter-op threads."""
    instance_count: int

    @property
    def computing(self) -> int:
        """Most threads that compute at the same time."""
        if self.is_parallel:
            # The caller waits while the inter-op threads execute nodes.
            return self.inter_op + self.intra_op - 1
        return self.instance_count + self.intra_op - 1

    def __str__(self) -> str:
        shared = f"{self.instance_count} instances share" if self.instance_count > 1 else "1 instance uses"
        inter = f", {self.inter_op} inter-op" if self.is_parallel else ""
        return (
            f"{shared} a session of {self.intra_op} intra-op{inter} threads: at most {self.computing} compute at once"
        )


def plan_threads(parameters: Mapping[str, str], usable_cores: int, instance_count: int) -> ThreadPlan:
    """Return the thread counts for `instance_count` instances.

    Without parameters the threads that compute are as many as the cores. `intra_op_thread_count` is what one instance
    would have alone, as in Triton, where each has a session of its own; 0 means that the server decides.
    `execution_mode` is 0 (sequential) or 1 (parallel). Raises InferError(INVALID_ARG).
    """
    intra = thread_count(parameters, "intra_op_thread_count")
    inter = thread_count(parameters, "inter_op_thread_count")
    mode = parameters.get("execution_mode", "0")
    if mode not in ("0", "1"):
        raise invalid_argument(f"parameter 'execution_mode' is '{mode}', expected 0 (sequential) or 1 (parallel)")
    count = max(1, instance_count)
    if mode == "1":
        inter = inter or max(1, (usable_cores + 1) // 2)
        return ThreadPlan(intra or max(1, usable_cores - inter + 1), inter, True, count)
    total = intra * count if intra else max(usable_cores, count)
    return ThreadPlan(total - count + 1, inter or 1, False, count)


def thread_count(parameters: Mapping[str, str], name: str) -> int:
    """Return a thread count, 0 when it is absent. Raises InferError(INVALID_ARG)."""
    text = parameters.get(name, "0")
    if not text.isdecimal() or int(text) > 4096:
        raise invalid_argument(
            f"parameter '{name}' is '{text}', expected a number of threads (0: the server decides)"
        )
    return int(text)


_SILENT = 4
"""Log severity FATAL: errors are raised, and logged once, where they are caught."""

_EXTENSIONS = "onnxruntime_extensions"
_EXTENSIONS_LIBRARY = "_extensions_pydll"
_PASSED_ON = "session."
"""Parameters that begin so are ONNX Runtime session configuration entries."""
_SPINNING_BYTES = 256 << 10
"""The threads of a smaller model do not spin: there is little to share among them, and the threads of a new session
spin before anything is asked of them."""
_SPIN_US = "1000"
"""How long a thread spins at most before it sleeps, in microseconds, where ONNX Runtime knows this entry.

By default it is a number of pauses, which takes 3 to 500 ms by the kind of the processor: each thread of a session
that opens spends up to six times the CPU of the load itself, and requests of other models wait for that core. Between
the parts of a run threads wait for less than this."""


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """Everything that a session is opened with."""

    options: Any
    """An onnxruntime.SessionOptions."""
    providers: Sequence[tuple[str, Mapping[str, str]]]
    run_entries: Mapping[str, str] = field(default_factory=dict)
    """Configuration entries of every run."""


def read_parameters(config: ModelConfig) -> dict[str, str]:
    """Return the model's parameters as text."""
    if not config.parameters:
        return {}
    return {name: parameter.string_value for name, parameter in config.parameters.items()}


def asks_for_global_threads(settings: Mapping[str, str]) -> bool:
    """Return whether the settings of the backend ask for one thread pool for all sessions of the process."""
    return settings.get("enable-global-threadpool", "0").lower() in ("1", "true")


def plan_session(
    context: ModelContext, threads: ThreadPlan, *, gpu: int | None = None, has_global_threads: bool = False
) -> SessionPlan:
    """Return what to open the session with, for the CPU or for GPU number `gpu`.

    Raises InferError for parameters that make no sense and for accelerators that this build does not have.
    """
    config = context.config
    parameters = read_parameters(config)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _SILENT
    options.logid = f"{context.name}:{context.version}"
    options.graph_optimization_level = _graph_level(config)
    if has_global_threads:
        options.use_per_session_threads = False
    else:
        _set_threads(options, threads)
        if threads.intra_op > 1 and _size_bytes(context.version_dir, _filename(context)) < _SPINNING_BYTES:
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if "enable_mem_arena" in parameters:
        options.enable_cpu_mem_arena = _flag(parameters, "enable_mem_arena")
    if "enable_mem_pattern" in parameters:
        options.enable_mem_pattern = _flag(parameters, "enable_mem_pattern")
    for name, value in parameters.items():
        if name.startswith(_PASSED_ON):
            options.add_session_config_entry(name, value)
    _register_operators(options, context)
    shrinkage = parameters.get("memory.enable_memory_arena_shrinkage")
    run_entries = {"memory.enable_memory_arena_shrinkage": shrinkage} if shrinkage else {}
    return SessionPlan(options, choose_providers(config, gpu), run_entries)


def _size_bytes(directory: str | Path, filename: str = "") -> int:
    """Return the size of a model's files: it may have its weights beside it, and be a directory itself."""
    total = 0
    try:
        with os.scandir(directory) as children:
            for child in children:
                if child.is_file():
                    total += child.stat().st_size
                elif child.name == filename:
                    return _size_bytes(child.path)
    except OSError:
        return 0  # opening the model raises the error
    return total


def inspection_options(context: ModelContext) -> Any:
    """Return options to open a session with that never runs: nothing is optimised or prepared."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _SILENT
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.disable_prepacking", "1")
    _register_operators(options, context)
    return options


def _set_threads(options: Any, threads: ThreadPlan) -> None:
    options.intra_op_num_threads = threads.intra_op
    options.inter_op_num_threads = threads.inter_op
    if threads.is_parallel:
        options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
    # Threads that spin between the parts of one run keep up with a bare session; between runs they must sleep, or an
    # idle server would burn every core.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    options.add_session_config_entry("session.intra_op.spin_duration_us", _SPIN_US)


def _graph_level(config: ModelConfig) -> Any:
    """Translate `optimization.graph.level` as Triton does."""
    levels = onnxruntime.GraphOptimizationLevel
    known = {
        0: levels.ORT_ENABLE_ALL,
        1: levels.ORT_ENABLE_EXTENDED,
        -1: levels.ORT_ENABLE_BASIC,
        2: levels.ORT_DISABLE_ALL,
    }
    level = config.optimization.graph.level
    if level not in known:
        raise invalid_argument(
            f"model '{config.name}': optimization.graph.level is {level}, expected 0 (all optimizations), 1 (basic "
            "and extended), -1 (basic) or 2 (none)"
        )
    return known[level]


def _flag(parameters: Mapping[str, str], name: str) -> bool:
    text = parameters[name]
    if text.lower() not in ("0", "1", "true", "false"):
        raise invalid_argument(f"parameter '{name}' is '{text}', expected 0 or 1")
    return text.lower() in ("1", "true")


def _register_operators(options: Any, context: ModelContext) -> None:
    """Load libraries of custom operators; relative names are looked for beside the model file, then a level up.

    The name `onnxruntime_extensions` is the library of the installed package: two copies in a process crash it.
    """
    for name in context.config.model_operations.op_library_filename:
        if name == _EXTENSIONS:
            options.register_custom_ops_library(_extensions_library(context))
            continue
        candidates = [directory / name for directory in (context.version_dir, context.model_dir)]
        found = next((path for path in candidates if path.is_file()), None)
        if found is None:
            raise invalid_argument(
                f"model '{context.name}': model_operations.op_library_filename '{name}' is not a file; looked for "
                f"{' and '.join(str(path) for path in dict.fromkeys(candidates))}"
            )
        try:
            options.register_custom_ops_library(str(found))
        except Exception as error:  # ONNX Runtime raises a different class for each status
            _log.error("model '%s': custom operator library %s cannot be loaded: %s", context.name, found, error)
            raise invalid_argument(
                f"model '{context.name}': custom operator library {found} cannot be loaded; the log of the server "
                "has the reason"
            ) from error


def _extensions_library(context: ModelContext) -> str:
    """Return the library of operators in onnxruntime-extensions, without importing the package.

    The import takes PyTorch and transformers along where they are installed: seconds at the start of a server.
    """
    try:
        package = importlib.util.find_spec(_EXTENSIONS)
        folders = (package.submodule_search_locations or ()) if package is not None else ()
        library = importlib.machinery.PathFinder.find_spec(_EXTENSIONS_LIBRARY, list(folders)) if folders else None
        if library is not None and library.origin is not None:
            return library.origin
        path: str = importlib.import_module(_EXTENSIONS).get_library_path()
    except ImportError as error:
        raise invalid_argument(
            f"model '{context.name}': model_operations.op_library_filename '{_EXTENSIONS}' is the library of a "
            f"package that is not installed ({error}): pip install onnxruntime-extensions"
        ) from error
    return path


def model_path(context: ModelContext) -> Path:
    """Return the model file: `model.onnx` or `default_model_filename`, or the file `model.onnx` in such a directory.

    Raises InferError(INVALID_ARG) when it is not there.
    """
    path = context.version_dir / _filename(context)
    if os.path.isfile(path):
        return path
    # Triton: a model with external data is a directory of the same name.
    inner = path / "model.onnx" if path.is_dir() else path
    if inner.is_file():
        return inner
    raise invalid_argument(
        f"model '{context.name}' version {context.version}: there is no file {inner}; put the model there, or name "
        "another one with 'default_model_filename'"
    )


HUB_FILE = "onnx/model.onnx"
"""Where the Hugging Face Hub has the export of a model."""


def export_path(context: ModelContext) -> Path:
    """Return the model file as `model_path`, or that of a directory of the Hub. Raises InferError(INVALID_ARG)."""
    hub = context.version_dir / HUB_FILE
    has_name = context.config.default_model_filename or (context.version_dir / "model.onnx").is_file()
    return hub if not has_name and hub.is_file() else model_path(context)


def _filename(context: ModelContext) -> str:
    return context.config.default_model_filename or "model.onnx"
