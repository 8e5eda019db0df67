"""gRPC calls other than inference: model repository, shared memory, log and trace settings.

The repository calls run on other threads than the event loop, because they may take long.
"""

import functools
import logging
from collections.abc import Callable, Collection

from naiad.core.errors import InferError, excerpt, internal, not_found, unavailable
from naiad.core.tensor import Buffer
from naiad.engine.engine import Engine
from naiad.frontend import failure
from naiad.frontend.access import MayBringFiles, check_files
from naiad.frontend.context import GrpcCall
from naiad.frontend.thread_pool import RunInThread, run_at_once
from naiad.protocol.grpc import control as control_grpc
from naiad.protocol.grpc.control import (
    HEALTH_NOT_SERVING,
    HEALTH_SERVING,
    decode_cuda_registration,
    decode_log_settings,
    decode_model_reference,
    decode_name,
    decode_system_registration,
    decode_trace_settings,
    encode_cuda_status,
    encode_flag,
    encode_log_settings,
    encode_model_config,
    encode_model_metadata,
    encode_model_statistics,
    encode_server_metadata,
    encode_system_status,
    encode_trace_settings,
)
from naiad.telemetry.logs import log

_log = logging.getLogger(__name__)

_SERVICE = "/inference.GRPCInferenceService/"
_HEALTH_SERVICES = ("", "inference.GRPCInferenceService", "grpc.health.v1.Health")
"""Names that clients may ask for; the empty one is the whole server."""


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

    @property
    def paths(self) -> Collection[str]:
        """The paths of these calls."""
        return self._work.keys()

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
        return control_grpc.encode_repository_index(self._engine.views.survey_repository(ready_only))

    def _load(self, message: Buffer) -> bytes:
        name, parameters = control_grpc.decode_load_request(message)
        check_files(parameters, self._may_bring_files)
        self._engine.repository.load_model(name, parameters, is_owner=self._may_bring_files())
        return control_grpc.EMPTY_RESPONSE

    def _unload(self, message: Buffer) -> bytes:
        name, parameters = control_grpc.decode_unload_request(message)
        self._engine.repository.unload_model(name, parameters)
        return control_grpc.EMPTY_RESPONSE


def _respond(call: GrpcCall, response: bytes) -> None:
    call.respond([response])


def _fail(call: GrpcCall, error: Exception) -> None:
    if not isinstance(error, InferError):
        _log.error("gRPC call %s failed", excerpt(call.path), exc_info=error)
        error = internal(f"internal error in {excerpt(call.path)}; see the server log")
    failure.finish(call, error)


Handler = Callable[[Buffer], bytes | None]
"""Handles the message of a call and returns the message of its response, None for an empty one."""


def control_handlers(engine: Engine) -> dict[str, Handler]:
    """Return the handlers of the calls that are answered on the event loop, by path."""
    regions = engine.shared_memory

    def server_ready(message: Buffer) -> bytes:
        if engine.phase.is_draining:
            raise unavailable("Server exiting")
        return encode_flag(engine.views.is_ready())

    def log_settings(message: Buffer) -> bytes:
        log.change(decode_log_settings(message, log.settings()))
        return encode_log_settings(log.settings())

    def trace_settings(message: Buffer) -> bytes:
        model, changes = decode_trace_settings(message)
        if changes:  # a request without changes only reads the settings
            engine.inference.change_trace_settings(model, changes)
        return encode_trace_settings(engine.inference.trace_settings(model))

    def of_version(encode: Callable[[str, str], bytes]) -> Callable[[Buffer], bytes]:
        return lambda message: encode(*decode_model_reference(message))

    handlers: dict[str, Handler] = {
        "ServerLive": lambda _: encode_flag(engine.views.is_live()),
        "ServerReady": server_ready,
        "ServerMetadata": lambda _: encode_server_metadata(engine.views.server_metadata()),
        "ModelReady": of_version(lambda *version: encode_flag(engine.views.is_model_ready(*version))),
        "ModelMetadata": of_version(lambda *version: encode_model_metadata(engine.views.model_metadata(*version))),
        "ModelConfig": of_version(lambda *version: encode_model_config(engine.views.model_config(*version))),
        "ModelStatistics": of_version(lambda *version: encode_model_statistics(engine.views.statistics(*version))),
        "LogSettings": log_settings,
        "TraceSetting": trace_settings,
        "SystemSharedMemoryStatus": lambda message: encode_system_status(regions.system_status(decode_name(message))),
        "SystemSharedMemoryRegister": lambda message: regions.register_system(*decode_system_registration(message)),
        "SystemSharedMemoryUnregister": lambda message: regions.unregister_system(decode_name(message)),
        "CudaSharedMemoryStatus": lambda message: encode_cuda_status(regions.cuda_status(decode_name(message))),
        "CudaSharedMemoryRegister": lambda message: regions.register_cuda(*decode_cuda_registration(message)),
        "CudaSharedMemoryUnregister": lambda message: regions.unregister_cuda(decode_name(message)),
    }

    def check_health(message: Buffer) -> bytes:
        service = control_grpc.decode_health_check(message)
        if service not in _HEALTH_SERVICES:
            known = ", ".join(f"'{name}'" for name in _HEALTH_SERVICES)
            raise not_found(f"unknown service '{excerpt(service)}'; known are {known}")
        return HEALTH_SERVING if engine.views.is_ready() else HEALTH_NOT_SERVING

    health: dict[str, Handler] = {"/grpc.health.v1.Health/Check": check_health}
    return {_SERVICE + name: handler for name, handler in handlers.items()} | health
