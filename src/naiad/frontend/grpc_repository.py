"""gRPC calls about the model repository: index, load, unload. The work is done beside the event loop."""

import functools
import logging
from collections.abc import Callable

from naiad.core.errors import InferError, excerpt, internal
from naiad.core.tensor import Buffer
from naiad.frontend import grpc_failure
from naiad.frontend.client_files import MayBringFiles, check_files
from naiad.frontend.exchange import GrpcCall
from naiad.frontend.rest_repository import RepositoryEngine
from naiad.frontend.side_threads import RunAside, run_here
from naiad.protocol import control_grpc

_log = logging.getLogger(__name__)

_SERVICE = "/inference.GRPCInferenceService/"


class RepositoryCalls:
    """Answers the calls that take their time."""

    def __init__(
        self,
        engine: RepositoryEngine,
        run_aside: RunAside = run_here,
        run_control: RunAside = run_here,
        may_bring_files: MayBringFiles = lambda: False,
    ) -> None:
        """`run_control` is for work that may take minutes."""
        self._engine = engine
        self._may_bring_files = may_bring_files
        self._work: dict[str, tuple[RunAside, Callable[[Buffer], bytes]]] = {
            _SERVICE + "RepositoryIndex": (run_aside, self._index),
            _SERVICE + "RepositoryModelLoad": (run_control, self._load),
            _SERVICE + "RepositoryModelUnload": (run_control, self._unload),
        }

    def serves(self, path: str) -> bool:
        """Tell whether `path` is one of these calls."""
        return path in self._work

    def handle(self, call: GrpcCall, message: Buffer) -> bool:
        """Answer a call when its work is done; False for a call of another kind."""
        found = self._work.get(call.path)
        if found is None:
            return False
        run, work = found
        run(
            functools.partial(work, message),
            functools.partial(_respond, call),
            functools.partial(_fail, call),
        )
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


def _respond(call: GrpcCall, answer: bytes) -> None:
    call.respond([answer])


def _fail(call: GrpcCall, error: Exception) -> None:
    if not isinstance(error, InferError):
        _log.error("gRPC call %s failed", excerpt(call.path), exc_info=error)
        error = internal(f"internal error of the server in {excerpt(call.path)}; its log says more")
    grpc_failure.finish(call, error)
