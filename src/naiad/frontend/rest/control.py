"""REST routes other than inference: model repository, shared memory, log and trace settings.

Repository requests run on other threads than the event loop, because they may take long.
"""

import functools
import logging
from collections.abc import Callable, Mapping, Sequence

from naiad.core.errors import InferError, excerpt, internal, invalid_argument, unavailable, unsupported
from naiad.core.tensor import Buffer
from naiad.engine.engine import Engine
from naiad.frontend.access import MayBringFiles, check_files
from naiad.frontend.context import HttpContext
from naiad.frontend.control_audit import audited
from naiad.frontend.router import JSON_HEADERS, Route, json_action, respond_infer_error
from naiad.frontend.thread_pool import RunInThread, run_at_once
from naiad.memory.regions import SharedMemory
from naiad.protocol.json.control import (
    decode_cuda_registration,
    decode_index_request,
    decode_load_parameters,
    decode_log_settings,
    decode_system_registration,
    decode_trace_settings,
    decode_unload_parameters,
    encode_cuda_status,
    encode_log_settings,
    encode_repository_index,
    encode_system_status,
    encode_trace_settings,
)
from naiad.telemetry.logs import log

_REGION = r"(?:/region/(?P<region>[^/]++))?"
_SYSTEM = "/v2/systemsharedmemory" + _REGION
_CUDA = "/v2/cudasharedmemory" + _REGION


def shared_memory_routes(regions: SharedMemory) -> list[Route]:
    """Return the shared-memory routes."""

    def register_system(arguments: Mapping[str, str], body: Buffer) -> None:
        regions.register_system(_required(arguments, "system"), *decode_system_registration(body))

    def register_cuda(arguments: Mapping[str, str], body: Buffer) -> None:
        regions.register_cuda(_required(arguments, "cuda"), *decode_cuda_registration(body))

    def get(path: str, work: Callable[[str], bytes]) -> Route:
        return Route(path, "shared-memory", {"GET": json_action(lambda arguments, _: work(arguments["region"]))})

    def post(path: str, work: Callable[[Mapping[str, str], Buffer], None]) -> Route:
        return Route(path, "shared-memory", {"POST": audited(json_action(work))})

    return [
        get(_SYSTEM + "/status", lambda region: encode_system_status(regions.system_status(region))),
        post(_SYSTEM + "/register", register_system),
        post(_SYSTEM + "/unregister", lambda arguments, _: regions.unregister_system(arguments["region"])),
        get(_CUDA + "/status", lambda region: encode_cuda_status(regions.cuda_status(region))),
        post(_CUDA + "/register", register_cuda),
        post(_CUDA + "/unregister", lambda arguments, _: regions.unregister_cuda(arguments["region"])),
    ]


def _required(arguments: Mapping[str, str], kind: str) -> str:
    name = arguments["region"]
    if not name:
        raise invalid_argument(f"'region name' is necessary to register {kind} shared memory region")
    return name


def settings_routes(engine: Engine) -> list[Route]:
    """Return the routes of `/v2/logging` and `/v2[/models/{model}]/trace/setting`; changes return all settings."""

    def log_settings(arguments: Mapping[str, str], body: Buffer) -> bytes:
        return encode_log_settings(log.settings())

    def change_log_settings(arguments: Mapping[str, str], body: Buffer) -> bytes:
        log.change(decode_log_settings(body, log.settings()))
        return log_settings(arguments, body)

    def trace_settings(arguments: Mapping[str, str], body: Buffer) -> bytes:
        return encode_trace_settings(engine.inference.trace_settings(arguments.get("model", "")))

    def change_trace_settings(arguments: Mapping[str, str], body: Buffer) -> bytes:
        engine.inference.change_trace_settings(arguments.get("model", ""), decode_trace_settings(body))
        return trace_settings(arguments, body)

    traces = {"GET": json_action(trace_settings), "POST": audited(json_action(change_trace_settings))}
    return [
        Route(
            r"/v2/logging",
            "logging",
            {"GET": json_action(log_settings), "POST": audited(json_action(change_log_settings))},
        ),
        Route(r"/v2/trace/setting", "trace", traces),
        Route(r"/v2/models/(?P<model>[^/]++)/trace/setting", "trace", traces),
    ]


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
        if self._engine.phase.is_draining:
            raise unavailable("Server not ready")

    def _run(self, context: HttpContext, run: RunInThread, work: Callable[[], Sequence[Buffer]]) -> None:
        run(work, functools.partial(context.respond, 200, JSON_HEADERS), functools.partial(respond_failure, context))

    # --- on other threads -------------------------------------------------------------------------------------------

    def _survey(self, body: Buffer) -> Sequence[Buffer]:
        return (encode_repository_index(self._engine.views.survey_repository(decode_index_request(body))),)

    def _load(self, model: str, body: Buffer) -> Sequence[Buffer]:
        parameters = decode_load_parameters(body)
        check_files(parameters, self._may_bring_files)
        self._engine.repository.load_model(model, parameters, is_owner=self._may_bring_files())
        return ()

    def _unload(self, model: str, body: Buffer) -> Sequence[Buffer]:
        self._engine.repository.unload_model(model, decode_unload_parameters(body))
        return ()


def respond_failure(context: HttpContext, error: Exception) -> None:
    """Respond with the error of work on another thread; unexpected ones are logged."""
    if not isinstance(error, InferError):
        _log.error("%s %s failed", context.method, excerpt(context.path), exc_info=error)
        error = internal("internal error; see the server log")
    respond_infer_error(context, error)
