"""gRPC calls other than inference: model repository, shared memory, log and trace settings.

The repository calls run on other threads than the event loop, because they may take long.
"""

import functools
import logging
from collections.abc import Callable, Mapping

from naiad.core.errors import InferError, excerpt, internal
from naiad.core.tensor import Buffer
from naiad.engine.inference import Engine
from naiad.frontend.access import MayBringFiles, check_files
from naiad.frontend.context import GrpcCall
from naiad.frontend.grpc import failure as grpc_failure
from naiad.frontend.thread_pool import RunInThread, run_at_once
from naiad.memory.regions import SharedMemory
from naiad.protocol.grpc import control as control_grpc
from naiad.protocol.grpc.control import EMPTY_RESPONSE
from naiad.protocol.grpc.settings import (
    decode_cuda_registration,
    decode_log_settings,
    decode_name,
    decode_system_registration,
    decode_trace_settings,
    encode_cuda_status,
    encode_log_settings,
    encode_system_status,
    encode_trace_settings,
)
from naiad.telemetry.logs import log

_log = logging.getLogger(__name__)

_SERVICE = "/inference.GRPCInferenceService/"


class RepositoryCalls:
    """Handles the calls of the model repository."""

    def __init__(
        self,
        engine: Engine,
        run_in_thread: RunInThread = run_at_once,
        run_control: RunInThread = run_at_once,
        may_bring_files: MayBringFiles = lambda: False,
    ) -> None:
        """`run_control` runs work that may take minutes."""
        self._engine = engine
        self._may_bring_files = may_bring_files
        self._work: dict[str, tuple[RunInThread, Callable[[Buffer], bytes]]] = {
            _SERVICE + "RepositoryIndex": (run_in_thread, self._index),
            _SERVICE + "RepositoryModelLoad": (run_control, self._load),
            _SERVICE + "RepositoryModelUnload": (run_control, self._unload),
        }

    def serves(self, path: str) -> bool:
        """Return whether `path` is one of these calls."""
        return path in self._work

    def handle(self, call: GrpcCall, message: Buffer) -> bool:
        """Start the work of a call and respond when it is done; return False for other calls."""
        found = self._work.get(call.path)
        if found is None:
            return False
        run, work = found
        run(functools.partial(work, message), functools.partial(_respond, call), functools.partial(_fail, call))
        return True

    # --- on other threads -------------------------------------------------------------------------------------------

    def _index(self, message: Buffer) -> bytes:
        ready_only = control_grpc.decode_index_request(message)
        return control_grpc.encode_repository_index(self._engine.survey_repository(ready_only))

    def _load(self, message: Buffer) -> bytes:
        name, parameters = control_grpc.decode_load_request(message)
        check_files(parameters, self._may_bring_files)
        self._engine.load_model(name, parameters)
        return control_grpc.EMPTY_RESPONSE

    def _unload(self, message: Buffer) -> bytes:
        name, parameters = control_grpc.decode_unload_request(message)
        self._engine.unload_model(name, parameters)
        return control_grpc.EMPTY_RESPONSE


def _respond(call: GrpcCall, response: bytes) -> None:
    call.respond([response])


def _fail(call: GrpcCall, error: Exception) -> None:
    if not isinstance(error, InferError):
        _log.error("gRPC call %s failed", excerpt(call.path), exc_info=error)
        error = internal(f"internal error in {excerpt(call.path)}; see the server log")
    grpc_failure.finish(call, error)


class SettingsCalls:
    """Handles the calls for settings; a request without changes only reads them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def handlers(self) -> Mapping[str, Callable[[Buffer], bytes]]:
        """Return the handlers by method name."""
        return {"LogSettings": self._log_settings, "TraceSetting": self._trace_settings}

    def _log_settings(self, message: Buffer) -> bytes:
        log.change(decode_log_settings(message, log.settings()))
        return encode_log_settings(log.settings())

    def _trace_settings(self, message: Buffer) -> bytes:
        model, changes = decode_trace_settings(message)
        if changes:
            self._engine.change_trace_settings(model, changes)
        return encode_trace_settings(self._engine.trace_settings(model))


class SharedMemoryCalls:
    """Handles the calls for shared-memory regions."""

    def __init__(self, regions: SharedMemory) -> None:
        self._regions = regions

    def handlers(self) -> Mapping[str, Callable[[Buffer], bytes]]:
        """Return the handlers by method name."""
        return {
            "SystemSharedMemoryStatus": self._system_status,
            "SystemSharedMemoryRegister": self._register_system,
            "SystemSharedMemoryUnregister": self._unregister_system,
            "CudaSharedMemoryStatus": self._cuda_status,
            "CudaSharedMemoryRegister": self._register_cuda,
            "CudaSharedMemoryUnregister": self._unregister_cuda,
        }

    def _system_status(self, message: Buffer) -> bytes:
        return encode_system_status(self._regions.system_status(decode_name(message)))

    def _cuda_status(self, message: Buffer) -> bytes:
        return encode_cuda_status(self._regions.cuda_status(decode_name(message)))

    def _register_system(self, message: Buffer) -> bytes:
        self._regions.register_system(*decode_system_registration(message))
        return EMPTY_RESPONSE

    def _register_cuda(self, message: Buffer) -> bytes:
        self._regions.register_cuda(*decode_cuda_registration(message))
        return EMPTY_RESPONSE

    def _unregister_system(self, message: Buffer) -> bytes:
        self._regions.unregister_system(decode_name(message))
        return EMPTY_RESPONSE

    def _unregister_cuda(self, message: Buffer) -> bytes:
        self._regions.unregister_cuda(decode_name(message))
        return EMPTY_RESPONSE
