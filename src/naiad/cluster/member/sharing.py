"""Cluster routes: requests about the whole server are answered with the state of all its processes.

Queries go to all processes, and control calls are executed by all processes. The tables at the top classify requests.
Equal queries at the same time are sent once (`RequestCoalescing`).
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Mapping, Sequence
from typing import Generic, TypeVar

from naiad.cluster import messages
from naiad.cluster.channel import ClusterChannelError
from naiad.cluster.member.all_processes import AllProcesses
from naiad.cluster.member.recorded_response import RecordedGrpcCall, RecordedHttpContext
from naiad.cluster.messages import (
    Answer,
    AskIndex,
    AskMetrics,
    AskRollouts,
    AskStatistics,
    BroadcastRequest,
    ControlCall,
    ControlKey,
    ControlOutcome,
    HttpControlCall,
    IsModelReady,
    IsReady,
    ModelControl,
    Query,
    RolloutControl,
)
from naiad.core.errors import InferError, internal, unavailable
from naiad.core.model import IndexEntry
from naiad.core.tensor import Buffer
from naiad.engine.calls import ModelCommands
from naiad.engine.engine import Engine
from naiad.frontend import failure
from naiad.frontend.access import RouteCategory, category_of_call
from naiad.frontend.context import GrpcCall, HttpContext
from naiad.frontend.control_audit import audited
from naiad.frontend.grpc.compression import GrpcCompression
from naiad.frontend.grpc.control import RepositoryCalls
from naiad.frontend.grpc.service import InferenceGrpcService
from naiad.frontend.header_forwarding import HeaderForwarding
from naiad.frontend.rest.metrics import respond_metrics
from naiad.frontend.router import Action, Router, respond_error, respond_infer_error
from naiad.frontend.slice_runner import SliceRunner
from naiad.protocol.grpc import control as control_grpc
from naiad.protocol.grpc.walk import last_text
from naiad.telemetry.last_resort import begin_task

_SERVICE = "/inference.GRPCInferenceService/"
_CHANGING = frozenset(("model-repository", "logging", "trace", "shared-memory"))
"""Categories of calls that change a process, except their queries."""
_UNCHANGING_CALLS = frozenset(
    _SERVICE + name for name in ("SystemSharedMemoryStatus", "CudaSharedMemoryStatus", "RepositoryIndex")
)
# The index is missing here: the engine itself queries it, on the thread that reads the repository.

_MODEL_READY = re.compile(r"/v2/models/([^/]+)(?:/versions/0*([0-9]+|[A-Za-z][A-Za-z0-9_.-]*))?/ready")
_ROLLOUT = re.compile(r"/v2/models/[^/]+/rollout")


def query_of_path(path: str, category: RouteCategory) -> Query | None:
    """Return the query for an HTTP request about all processes; None if one process can answer alone."""
    if path == "/v2/health/ready":
        return IsReady()
    model = _MODEL_READY.fullmatch(path)
    if model is not None:
        return IsModelReady(model[1], model[2] or "")
    if _ROLLOUT.fullmatch(path):
        return AskRollouts()
    return AskStatistics() if category == "statistics" else None


def changes_by_path(path: str, category: RouteCategory) -> bool:
    """Return whether a POST to `path` changes a process, so that all processes must execute it."""
    # The route of rollouts broadcasts the state that it makes of a change.
    return category in _CHANGING and not path.endswith("/index") and not _ROLLOUT.fullmatch(path)


def _ask_model(message: Buffer) -> Query:
    return IsModelReady(*control_grpc.decode_model_reference(message))


_QUESTIONS: Mapping[str, Callable[[Buffer], Query]] = {
    _SERVICE + "ServerReady": lambda _: IsReady(),
    "/grpc.health.v1.Health/Check": lambda _: IsReady(),
    _SERVICE + "ModelReady": _ask_model,
    _SERVICE + "ModelStatistics": lambda _: AskStatistics(),
}


def query_of_call(path: str, message: Buffer) -> Query | None:
    """Return the query for a gRPC call about all processes. Raises InferError as decoding the message does."""
    ask = _QUESTIONS.get(path)
    return None if ask is None else ask(message)


def changes_by_call(path: str) -> bool:
    """Return whether a gRPC call changes a process, so that all processes must execute it."""
    return category_of_call(path) in _CHANGING and path not in _UNCHANGING_CALLS


_Q = TypeVar("_Q", bound=Hashable)
_A = TypeVar("_A")


class RequestCoalescing(Generic[_Q, _A]):
    """Sends queries, and joins equal ones.

    While a query is in progress, further callers wait for the next one: the state may have changed since it began. So
    each query runs once at a time, and many callers do not cause many queries.
    """

    def __init__(self, ask: Callable[[_Q], Awaitable[_A]]) -> None:
        self._ask = ask
        self._querying: dict[_Q, asyncio.Task[_A]] = {}
        self._next: dict[_Q, asyncio.Task[_A]] = {}

    async def get(self, query: _Q) -> _A:
        """Return an answer to a query that began after this call. Raises the errors of the query."""
        task = self._next.get(query)
        if task is None:
            before = self._querying.get(query)
            task = asyncio.get_running_loop().create_task(self._run(query, before))
            self._next[query] = task
        # Cancelling one caller must not cancel the query of the other callers.
        return await asyncio.shield(task)

    async def _run(self, query: _Q, before: "asyncio.Task[_A] | None") -> _A:
        if before is not None:
            await asyncio.wait([before])
        task = self._querying[query] = self._next.pop(query)
        try:
            return await self._ask(query)
        finally:
            if self._querying.get(query) is task:
                del self._querying[query]


_log = logging.getLogger(__name__)

Ask = Callable[[object], Coroutine[object, object, object]]
"""Queries the supervisor. Raises ChannelError."""


class ClusterRoutes:
    """Routes and calls about all processes.

    The routes and calls are the same as in a server of one process: a query runs against the engine with the merged
    state of all processes, and a control call goes to the supervisor first, which broadcasts it.
    """

    def __init__(self, engine: Engine, processes: AllProcesses, ask: Ask) -> None:
        self.engine = engine
        self.processes = processes
        self._ask = ask
        self._answers: RequestCoalescing[Query, Answer] = RequestCoalescing(self._ask_all)
        self._tasks: set[asyncio.Task[None]] = set()
        self._alone: Router | None = None
        self._grpc: ClusterGrpcService | None = None
        self._commands: ModelCommands | None = None

    # --- building ---------------------------------------------------------------------------------------------------

    def share(self, router: Router, alone: Router) -> None:
        """Make the routes of `router` apply to all processes; `alone` is an equal router for this process."""
        self._alone = alone
        router.intercept(self._intercept)

    def connect(self) -> None:
        """Let the engine query and command all processes; called on the loop."""
        loop = asyncio.get_running_loop()

        def ask() -> Sequence[IndexEntry]:
            answer = asyncio.run_coroutine_threadsafe(self.merged_answer(AskIndex()), loop)
            return answer.result()  # type: ignore[return-value]  # AskIndex is answered with entries

        def request(wanted: ModelControl) -> None:
            outcome = asyncio.run_coroutine_threadsafe(self.broadcast(wanted), loop).result()
            if not outcome.is_success:
                raise InferError(outcome.code, outcome.text, triton_code=outcome.triton_code)

        self.processes.ask_index = ask
        self.processes.request = request
        self.processes.spread_rollout = lambda call, on_done: self.spawn(self._spread(call, on_done))
        self._commands = ModelCommands(self.engine.repository, loop)

    def grpc_service(
        self,
        forwarding: HeaderForwarding | None = None,
        compression: GrpcCompression | None = None,
        repository: RepositoryCalls | None = None,
        runner: SliceRunner | None = None,
    ) -> InferenceGrpcService:
        """Return the gRPC service for all processes."""
        self._grpc = ClusterGrpcService(self, forwarding, compression, repository, runner)
        return self._grpc

    def answer_metrics(self, context: HttpContext) -> None:
        """Respond with the metrics of all processes."""

        async def ask_and_answer() -> None:
            text = await self.merged_answer(AskMetrics())
            respond_metrics(context, text)  # type: ignore[arg-type]  # the answer to it

        self.spawn(_respond_on_failure(context, ask_and_answer()))

    # --- queries ----------------------------------------------------------------------------------------------------

    async def _ask_all(self, query: Query) -> Answer:
        return await self._ask(query)  # type: ignore[return-value]  # an answer to a question

    async def merged_answer(self, query: Query) -> Answer:
        """Return the merged answer of all processes. Raises InferError(UNAVAILABLE)."""
        try:
            return await self._answers.get(query)
        except ClusterChannelError as error:
            raise unavailable(f"the processes of this server could not be queried: {error}") from error

    async def broadcast(self, call: ControlCall) -> ControlOutcome:
        """Execute a call in all processes, this one included. Raises InferError."""
        try:
            return await self._ask(broadcast(call))  # type: ignore[return-value]  # the answer to it
        except ClusterChannelError as error:
            raise unavailable(f"the processes of this server could not be reached: {error}") from error

    async def _spread(self, call: RolloutControl, on_done: Callable[[InferError | None], object]) -> None:
        """Execute a call in all processes and report its outcome."""
        error: InferError | None = None
        try:
            outcome = await self.broadcast(call)
            if not outcome.is_success:
                error = InferError(outcome.code, outcome.text, triton_code=outcome.triton_code)
        except InferError as failure:
            error = failure
        on_done(error)

    def spawn(self, work: Coroutine[object, object, None]) -> None:
        """Handle a request in a task of its own; its connection waits for it."""
        begin_task("a request to all processes", work, self._tasks)

    # --- execution --------------------------------------------------------------------------------------------------

    async def execute(self, call: ControlCall) -> ControlOutcome:
        """Execute a control call in this process alone, and return its outcome."""
        if isinstance(call, ModelControl):
            return await self._execute_model_control(call)
        if isinstance(call, RolloutControl):
            return await self._execute_rollout_control(call)
        if isinstance(call, messages.HttpControlCall):
            context = RecordedHttpContext(call)
            if self._alone is None:
                raise ClusterChannelError("HTTP is not served")
            self._alone.handle(context)
            return await context.outcome
        recorded = RecordedGrpcCall(call)
        if self._grpc is None:
            raise ClusterChannelError("gRPC is not served")
        self._grpc.alone(recorded, call.message)
        return await recorded.outcome

    async def _execute_model_control(self, request: ModelControl) -> ControlOutcome:
        if self._commands is None:
            raise ClusterChannelError("this process is not ready yet")
        done: asyncio.Future[InferError | None] = asyncio.get_running_loop().create_future()
        self._commands.execute(
            request.name, request.parameters, done.set_result, is_load=request.is_load, broadcast=False
        )
        error = await done
        if error is None:
            return ControlOutcome(True, 0)
        return ControlOutcome(False, 0, text=error.message, code=error.code, triton_code=error.triton_code)

    async def _execute_rollout_control(self, call: RolloutControl) -> ControlOutcome:
        done: asyncio.Future[InferError | None] = asyncio.get_running_loop().create_future()
        self.engine.rollout_commands.carry_out(call.key, call.state, done.set_result, is_stored=call.is_stored)
        error = await done
        if error is None:
            return ControlOutcome(True, 0)
        return ControlOutcome(False, 0, text=error.message, code=error.code, triton_code=error.triton_code)

    # --- HTTP -------------------------------------------------------------------------------------------------------

    def _intercept(self, path: str, category: RouteCategory, actions: Mapping[str, Action]) -> Mapping[str, Action]:
        query = query_of_path(path, category)
        if query is not None:
            reading = {method: action for method, action in actions.items() if method in ("GET", "HEAD")}
            return {**actions, **{method: self._querying(query, action) for method, action in reading.items()}}
        if "POST" in actions and changes_by_path(path, category):
            return {**actions, "POST": audited(self._broadcast_call)}
        return actions

    def _querying(self, query: Query, action: Action) -> Action:
        def ask(context: HttpContext, arguments: Mapping[str, str]) -> None:
            self.spawn(_respond_on_failure(context, self._query_and_act(query, action, context, arguments)))

        return ask

    async def _query_and_act(
        self, query: Query, action: Action, context: HttpContext, arguments: Mapping[str, str]
    ) -> None:
        answer = await self.merged_answer(query)
        with self.processes.with_answer(query, answer):
            action(context, arguments)

    def _broadcast_call(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        self.spawn(_respond_on_failure(context, self._forward(context)))

    async def _forward(self, context: HttpContext) -> None:
        headers = tuple(context.headers.items())
        call = messages.HttpControlCall(context.method, context.path, headers, bytes(context.body))
        outcome = await self.broadcast(call)
        context.respond(outcome.status, outcome.headers, (outcome.body,) if outcome.body else ())


async def _respond_on_failure(context: HttpContext, work: Coroutine[object, object, None]) -> None:
    """Respond to a failure of `work` as a router would."""
    try:
        await work
    except InferError as error:
        respond_infer_error(context, error)
    except Exception:
        _log.exception("%s %s failed", context.method, context.path)
        respond_error(context, 500, f"internal error of the server in {context.path}; see its log")


async def _end_on_failure(call: GrpcCall, work: Coroutine[object, object, None]) -> None:
    """End the call if `work` fails."""
    try:
        await work
    except InferError as error:
        failure.finish(call, error)
    except Exception:
        _log.exception("gRPC call %s failed", call.path)
        failure.finish(call, internal(f"internal error of the server in {call.path}; see its log"))


class ClusterGrpcService(InferenceGrpcService):
    """The gRPC service; inference is as fast as in a server of one process, because only control calls differ."""

    def __init__(
        self,
        sharing: ClusterRoutes,
        forwarding: HeaderForwarding | None,
        compression: GrpcCompression | None,
        repository: RepositoryCalls | None,
        runner: SliceRunner | None,
    ) -> None:
        super().__init__(sharing.engine, forwarding, compression, repository, runner)
        self._sharing = sharing

    def alone(self, call: GrpcCall, message: Buffer) -> None:
        """Handle a control call for this process alone."""
        super()._control(call, message)

    def _control(self, call: GrpcCall, message: Buffer) -> None:
        try:
            query = query_of_call(call.path, message)
        except InferError as error:
            failure.finish(call, error)
            return
        if query is not None:
            self._sharing.spawn(_end_on_failure(call, self._ask_and_answer(query, call, message)))
        elif changes_by_call(call.path):
            self._sharing.spawn(_end_on_failure(call, self._forward(call, message)))
        else:
            super()._control(call, message)

    async def _ask_and_answer(self, query: Query, call: GrpcCall, message: Buffer) -> None:
        answer = await self._sharing.merged_answer(query)
        with self._sharing.processes.with_answer(query, answer):
            self.alone(call, message)

    async def _forward(self, call: GrpcCall, message: Buffer) -> None:
        forwarded = messages.GrpcControlCall(call.path, tuple(call.metadata), bytes(message))
        outcome = await self._sharing.broadcast(forwarded)
        if outcome.is_success:
            call.respond([outcome.body])
        else:
            call.finish(outcome.status, outcome.text, outcome.headers)


_LOAD = re.compile(r"/v2/repository(?:/[^/]+)?/models/([^/]+)/(load|unload)")
_ROLLOUTS = "rollout"
_LOADING_ROLLOUTS = "rollout that loads versions"
_REGION = re.compile(r"/v2/(system|cuda)sharedmemory(?:/region/([^/]+))?/(register|unregister)")
_REGION_CALL = re.compile(r".*/(System|Cuda)SharedMemory(Register|Unregister)")


def broadcast(call: ControlCall) -> BroadcastRequest:
    """Return the request to broadcast a call, with its key.

    The last load or unload of a model counts; unregistering a region undoes its registration, and without a name the
    registrations of all regions of its kind. Changes of settings are replayed in order, equal ones once. Raises
    InferError for a malformed gRPC message.
    """
    if isinstance(call, RolloutControl):
        # Not the subject of loads: a rollback must not wait for one.
        return BroadcastRequest(call, (_LOADING_ROLLOUTS if call.loads else _ROLLOUTS, call.key))
    if isinstance(call, ModelControl):
        return BroadcastRequest(call, _model_key(call.name), outdates=() if call.is_load else (_ROLLOUTS, call.name))
    return _of_http(call) if isinstance(call, HttpControlCall) else _of_grpc(call.path, call.message, call)


def _model_key(name: str) -> ControlKey:
    """Return the key of a load or unload; calls about models of one name share a prefix and run in order.

    `namespace::name` is one of the models with the name; the name alone means all of them.
    """
    namespace, _, own = name.rpartition("::")
    return ("model", own, namespace) if namespace else ("model", name)


def _of_http(call: HttpControlCall) -> BroadcastRequest:
    load = _LOAD.fullmatch(call.path)
    if load is not None:
        return BroadcastRequest(
            call, _model_key(load[1]), outdates=(_ROLLOUTS, load[1]) if load[2] == "unload" else ()
        )
    region = _REGION.fullmatch(call.path)
    if region is not None:
        return _of_region(call, region[1], region[2] or "", region[3])
    return BroadcastRequest(call, ("http", call.path, call.body.hex()))


def _of_region(call: ControlCall, kind: str, name: str, verb: str) -> BroadcastRequest:
    key = ("region", kind, name) if name else ("region", kind)
    return BroadcastRequest(call, key, undoes=verb == "unregister")


def _of_grpc(path: str, message: bytes, call: ControlCall) -> BroadcastRequest:
    # The message is not parsed as a whole: a load contains files.
    if path.endswith(("/RepositoryModelLoad", "/RepositoryModelUnload")):
        name = last_text(message, 2)
        return BroadcastRequest(call, _model_key(name), outdates=(_ROLLOUTS, name) if path.endswith("Unload") else ())
    region = _REGION_CALL.fullmatch(path)
    if region is not None:
        # The name is in field 1 of all of them.
        return _of_region(call, region[1].lower(), last_text(message, 1), region[2].lower())
    return BroadcastRequest(call, ("grpc", path, message.hex()))
