"""REST routes other than inference: model repository, shared memory, log and trace settings.

Repository requests run on other threads than the event loop, because they may take long.
"""

import functools
import logging
from collections.abc import Callable, Mapping, Sequence

from naiad.core.errors import InferError, excerpt, internal, invalid_argument, unavailable, unsupported
from naiad.core.tensor import Buffer
from naiad.engine.inference import Engine
from naiad.frontend.access import MayBringFiles, check_files
from naiad.frontend.context import HttpContext
from naiad.frontend.router import JSON_HEADERS, Route, respond_error
from naiad.frontend.thread_pool import RunInThread, run_at_once
from naiad.memory.regions import SharedMemory
from naiad.protocol.json.control import (
    decode_index_request,
    decode_load_parameters,
    decode_unload_parameters,
    encode_repository_index,
)
from naiad.protocol.json.settings import (
    decode_cuda_registration,
    decode_log_settings,
    decode_system_registration,
    decode_trace_settings,
    encode_cuda_status,
    encode_log_settings,
    encode_system_status,
    encode_trace_settings,
)
from naiad.protocol.status import status_of
from naiad.telemetry.logs import log

_REGION = r"(?:/region/(?P<region>[^/]+))?"
_SYSTEM = "/v2/systemsharedmemory" + _REGION
_CUDA = "/v2/cudasharedmemory" + _REGION


class SharedMemoryRoutes:
    """The shared-memory routes."""

    def __init__(self, regions: SharedMemory) -> None:
        self._regions = regions

    def routes(self) -> list[Route]:
        """Return the routes for the router of the HTTP endpoint."""
        return [
            Route(_SYSTEM + "/status", {"GET": self._system_status}),
            Route(_SYSTEM + "/register", {"POST": self._register_system}),
            Route(_SYSTEM + "/unregister", {"POST": self._unregister_system}),
            Route(_CUDA + "/status", {"GET": self._cuda_status}),
            Route(_CUDA + "/register", {"POST": self._register_cuda}),
            Route(_CUDA + "/unregister", {"POST": self._unregister_cuda}),
        ]

    def _system_status(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        context.respond(200, JSON_HEADERS, (encode_system_status(self._regions.system_status(arguments["region"])),))

    def _cuda_status(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        context.respond(200, JSON_HEADERS, (encode_cuda_status(self._regions.cuda_status(arguments["region"])),))

    def _register_system(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        name = _required(arguments, "system")
        self._regions.register_system(name, *decode_system_registration(context.body))
        context.respond(200, JSON_HEADERS, ())

    def _register_cuda(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        name = _required(arguments, "cuda")
        self._regions.register_cuda(name, *decode_cuda_registration(context.body))
        context.respond(200, JSON_HEADERS, ())

    def _unregister_system(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        self._regions.unregister_system(arguments["region"])
        context.respond(200, JSON_HEADERS, ())

    def _unregister_cuda(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        self._regions.unregister_cuda(arguments["region"])
        context.respond(200, JSON_HEADERS, ())


def _required(arguments: Mapping[str, str], kind: str) -> str:
    name = arguments["region"]
    if not name:
        raise invalid_argument(f"'region name' is necessary to register {kind} shared memory region")
    return name


class SettingsRoutes:
    """The actions of `/v2/logging` and `/v2[/models/{model}]/trace/setting`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def routes(self) -> "list[Route]":
        """Return the routes."""
        traces = {"GET": self.trace_settings, "POST": self.change_trace_settings}
        return [
            Route(r"/v2/logging", {"GET": self.log_settings, "POST": self.change_log_settings}),
            Route(r"/v2/trace/setting", traces),
            Route(r"/v2/models/(?P<model>[^/]+)/trace/setting", traces),
        ]

    def log_settings(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        """Respond with the log settings."""
        context.respond(200, JSON_HEADERS, (encode_log_settings(log.settings()),))

    def change_log_settings(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        """Change log settings and respond with all of them."""
        log.change(decode_log_settings(context.body, log.settings()))
        self.log_settings(context, arguments)

    def trace_settings(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        """Respond with the trace settings of a model, or of the server."""
        options = self._engine.trace_settings(arguments.get("model", ""))
        context.respond(200, JSON_HEADERS, (encode_trace_settings(options),))

    def change_trace_settings(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        """Change trace settings and respond with all of them."""
        self._engine.change_trace_settings(arguments.get("model", ""), decode_trace_settings(context.body))
        self.trace_settings(context, arguments)


_log = logging.getLogger(__name__)


class RepositoryRoutes:
    """The actions of `/v2/repository`."""

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
        self._run_in_thread = run_in_thread
        self._run_control = run_control

    def index(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        """Respond with the models of all repositories."""
        self._run(context, self._run_in_thread, functools.partial(self._survey, context.body))

    def load(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        """Load a model and respond when it is ready."""
        self._check(arguments)
        work = functools.partial(self._load, arguments["model"], context.body)
        self._run(context, self._run_control, work)

    def unload(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        """Unload a model and respond when it is unloaded."""
        self._check(arguments)
        work = functools.partial(self._unload, arguments["model"], context.body)
        self._run(context, self._run_control, work)

    def _check(self, arguments: Mapping[str, str]) -> None:
        if arguments["repository"]:
            raise unsupported("'repository_name' specification is not supported")
        if self._engine.is_draining:
            raise unavailable("Server not ready")

    def _run(self, context: HttpContext, run: RunInThread, work: Callable[[], Sequence[Buffer]]) -> None:
        run(work, functools.partial(context.respond, 200, JSON_HEADERS), functools.partial(respond_failure, context))

    # --- on other threads -------------------------------------------------------------------------------------------

    def _survey(self, body: Buffer) -> Sequence[Buffer]:
        return (encode_repository_index(self._engine.survey_repository(decode_index_request(body))),)

    def _load(self, model: str, body: Buffer) -> Sequence[Buffer]:
        parameters = decode_load_parameters(body)
        check_files(parameters, self._may_bring_files)
        self._engine.load_model(model, parameters)
        return ()

    def _unload(self, model: str, body: Buffer) -> Sequence[Buffer]:
        self._engine.unload_model(model, decode_unload_parameters(body))
        return ()


def respond_failure(context: HttpContext, error: Exception) -> None:
    """Respond with the error of work on another thread; unexpected ones are logged."""
    if not isinstance(error, InferError):
        _log.error("%s %s failed", context.method, excerpt(context.path), exc_info=error)
        error = internal("internal error; see the server log")
    respond_error(context, status_of(error).http, error.message)
