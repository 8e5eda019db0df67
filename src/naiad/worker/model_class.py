"""Loading of model classes, and the readiness of a model: its method `is_ready`, if any.

And the process group of PyTorch between the ranks of an instance; environment variables name this process's rank.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import inspect
import os
import sys
import threading
import types
from collections.abc import Mapping, Sequence
from typing import Any

from naiad.worker.api.failure import LoadError, text_of
from naiad.worker.api.logger import Logger
from naiad.worker.channel.flags_page import FlagsPage
from naiad.worker.last_resort import start_thread
from naiad.worker.model_source import SourceLoader, import_from_source


def load_model_class(model_file: str, model_dir: str) -> Any:
    """Import a model file and return its class `TritonPythonModel`.

    Triton: the file is the module `<version>.<stem>`, and the directories of the version and of the model are on
    `sys.path`. Raises LoadError when there is no class, and any exception of the import.
    """
    version_dir, filename = os.path.split(model_file)
    stem, suffix = os.path.splitext(filename)
    if suffix != ".py":
        raise LoadError(f"Model name must end with '.py'. Model name is \"{filename}\".")
    import_from_source(version_dir, model_dir)
    sys.path += [version_dir, model_dir]
    version = os.path.basename(version_dir)
    package = types.ModuleType(version)
    package.__path__ = [version_dir]
    sys.modules[version] = package
    return _class_of(f"{version}.{stem}", model_file)


def load_backend_class(model_file: str) -> Any:
    """Import the model file of a Python-based backend and return its class `TritonPythonModel`.

    Triton: the file is the module `model`, and its directory alone is on `sys.path`. Raises as `load_model_class`.
    """
    directory, filename = os.path.split(model_file)
    import_from_source(directory)
    sys.path.append(directory)
    return _class_of(os.path.splitext(filename)[0], model_file)


OLDEST_FOR_ADAPTERS = (3, 11)
"""The oldest Python of adapters, which import more of naiad than workers do."""


class _ServerPackage:
    """Finds the server's naiad, in an environment without naiad or with another version of it."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """Return the package, None for any other module. See importlib.abc.MetaPathFinder."""
        if name != "naiad":
            return None
        return importlib.machinery.PathFinder.find_spec(name, [os.path.dirname(self._directory)])


def load_adapter_class(name: str, import_paths: Sequence[str], package_dir: str = "") -> Any:
    """Import `module:class`, an adapter: it executes batches as a `TritonPythonModel` does, and needs naiad.

    `import_paths` are further directories of modules; `package_dir` is that of the server's naiad. Raises LoadError
    if the environment lacks a package.
    """
    sys.path += [path for path in import_paths if path not in sys.path]
    if package_dir:
        if sys.version_info < OLDEST_FOR_ADAPTERS:
            raise LoadError(
                f"parameter 'isolation' needs Python 3.11 or newer in the environment of the worker, "
                f"{sys.executable} is {sys.version.split()[0]}"
            )
        sys.meta_path.insert(0, _ServerPackage(package_dir))
    module_name, _, class_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise LoadError(
            f"parameter 'isolation' needs numpy, protobuf, ml_dtypes and orjson in the environment of the worker, "
            f"{sys.executable}: there is no module {error.name}"
        ) from error
    return getattr(module, class_name)


def load_class(notes: Mapping[str, Any]) -> Any:
    """Return the class that executes batches, from the notes of the server. Raises LoadError."""
    if "adapter" in notes:
        return load_adapter_class(notes["adapter"], notes["import_paths"], notes["package_dir"])
    if notes["is_shared"]:
        return load_backend_class(notes["model_file"])
    return load_model_class(notes["model_file"], notes["model_dir"])


def _class_of(name: str, model_file: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, model_file, loader=SourceLoader(name, model_file))
    if spec is None or spec.loader is None:
        raise LoadError(f"Python model file not found in '{model_file}'")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    model_class = getattr(module, "TritonPythonModel", None)
    if model_class is None and inspect.isfunction(function := getattr(module, "predict", None)):
        from naiad.worker.function_model import model_class_of  # few models are functions

        return model_class_of(function)
    if model_class is None:
        raise LoadError(f"{model_file} has no class TritonPythonModel and no function predict")
    return model_class


INTERVAL_S = 1.0
"""Interval of the checks. Triton calls `is_ready` at each query; here no query waits for the result."""


class Readiness:
    """Calls `is_ready` in a thread of its own, and writes the result to the flags page."""

    def __init__(self, model: Any, board: FlagsPage) -> None:
        self._model = model
        self._board = board
        self._over = threading.Event()
        self._was_ready = True

    def start(self) -> None:
        """Start the checks; until the first result the model is not ready. No effect without `is_ready`."""
        if callable(getattr(self._model, "is_ready", None)):
            self._board.say_ready(False)
            start_thread("naiad is_ready", self._run)

    def stop(self) -> None:
        """Stop the checks."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.is_set():
            self.ask()
            self._over.wait(INTERVAL_S)

    def ask(self) -> None:
        """Check once. A change to not ready is logged."""
        self._board.begin_question()
        complaint = self._complaint()
        self._board.say_ready(not complaint)
        if complaint and self._was_ready:
            Logger.log_warn(f"the model is not ready: {complaint}")
        self._was_ready = not complaint

    def _complaint(self) -> str:
        """Return the reason why the model is not ready; empty if it is."""
        try:
            answer = self._model.is_ready()
            if inspect.iscoroutine(answer):
                import asyncio  # most models have no coroutines

                answer = asyncio.run(answer)
        except BaseException as error:
            return f"is_ready has raised {text_of(error)}"
        if not isinstance(answer, bool):
            return f"is_ready must return a bool, not {type(answer).__name__}"
        return "" if answer else "is_ready returned False"


# --- ranks ----------------------------------------------------------------------------------------------------------


def join_group(backend: str, args: Mapping[str, str]) -> None:
    """Wait for all ranks and initialize `torch.distributed` with `backend`, gloo or nccl.

    nccl gets the GPU of `args["model_instance_device_id"]`. Raises LoadError without PyTorch.
    """
    try:
        import torch
        import torch.distributed as distributed
    except ModuleNotFoundError as error:
        raise LoadError(
            f"parameter 'torch_distributed' needs PyTorch in the environment of the worker, {sys.executable}: there "
            f"is no module {error.name}"
        ) from error
    if backend == "nccl":
        torch.cuda.set_device(int(args["model_instance_device_id"]))
    distributed.init_process_group(backend)


def leave_group() -> None:
    """Leave the group, if this process is in one."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()
