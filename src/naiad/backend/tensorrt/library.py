"""The `tensorrt` package: its messages, its plugins, and the options of a model. Names of options are Triton's."""

import functools
import logging
import threading
from collections import deque
from dataclasses import dataclass
from typing import Any

import tensorrt

from naiad.backend.api import ModelContext
from naiad.backend.framework import Parameters
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import InferError, internal, invalid_argument

_log = logging.getLogger(__name__)

VERSION = str(tensorrt.__version__)
_OLDEST_MAJOR = 10
_MAX_MESSAGES = 4
"""Error messages kept for the next exception of a thread."""
_POLICIES = ("BLOCKING", "DEVICE_BLOCKING")
_STRATEGIES = ("STATIC", "ON_PROFILE_CHANGE")


class Messages(tensorrt.ILogger):  # type: ignore[misc]  # a class of TensorRT, which has no types
    """Receives TensorRT's messages: its calls return None or False on failure, and log the reason."""

    def __init__(self) -> None:
        tensorrt.ILogger.__init__(self)
        self._local = threading.local()

    def log(self, severity: Any, message: str) -> None:
        """Keep an error for `take`, which the thread that made the call uses."""
        if severity in (tensorrt.ILogger.Severity.ERROR, tensorrt.ILogger.Severity.INTERNAL_ERROR):
            if not hasattr(self._local, "errors"):
                self._local.errors = deque(maxlen=_MAX_MESSAGES)
            self._local.errors.append(message.strip()[:1000])
        else:
            _log.debug("TensorRT: %s", message)

    def take(self) -> str:
        """Return the errors of this thread since the last call."""
        errors: deque[str] = getattr(self._local, "errors", deque())
        text = "; ".join(errors)
        errors.clear()
        return text or "it gave no reason"


def check_version() -> None:
    """Raise InferError(INTERNAL) for a release without the interface that this backend uses."""
    if int(VERSION.partition(".")[0]) < _OLDEST_MAJOR:
        raise internal(
            f"backend 'tensorrt' needs TensorRT {_OLDEST_MAJOR} or newer, but {VERSION} is installed: pip install -U "
            "'naiad[tensorrt]', and build the engines again"
        )


@functools.cache
def load_plugins(messages: Messages, libraries: tuple[str, ...]) -> None:
    """Register TensorRT's plugins and those in shared libraries. Raises InferError(INVALID_ARG)."""
    tensorrt.init_libnvinfer_plugins(messages, "")
    for library in libraries:
        try:
            handle = tensorrt.get_plugin_registry().load_library(library)
        except (RuntimeError, OSError) as error:
            raise _bad_plugins(library, str(error)) from error
        if handle is None:
            raise _bad_plugins(library, messages.take())


def _bad_plugins(library: str, reason: str) -> InferError:
    return invalid_argument(
        f"--backend-config=tensorrt,plugins: library '{library}' cannot be loaded: {reason}; correct the path, or "
        f"build it for TensorRT {VERSION}"
    )


# --- options --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TensorRtOptions:
    """How engines are read and executed."""

    is_version_compatible: bool
    """Whether engines may contain a runtime of another version, that is, code."""
    plugins: tuple[str, ...]
    """Libraries with plugins."""
    has_turns: bool
    """DEVICE_BLOCKING: instances on one GPU begin their executions one after another."""
    allocation_strategy: str
    """When an execution context allocates its memory: STATIC or ON_PROFILE_CHANGE."""


def read_options(context: ModelContext) -> TensorRtOptions:
    """Return the options of a model. Raises InferError(INVALID_ARG)."""
    # A model must not allow itself to contain code: settings of the server only.
    settings = Parameters(ModelConfig(name=context.name), context.backend_config)
    strategy = Parameters(context.config).choice("execution_context_allocation_strategy", _STRATEGIES, "STATIC")
    return TensorRtOptions(
        is_version_compatible=settings.flag("version-compatible"),
        plugins=tuple(path for path in settings.text("plugins").split(";") if path),
        has_turns=settings.choice("execution-policy", _POLICIES, "BLOCKING") == "DEVICE_BLOCKING",
        allocation_strategy=strategy,
    )
