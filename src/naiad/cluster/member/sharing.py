"""Requests that one member cannot answer alone: questions are asked of all, control calls are carried out by all.

Which requests a member cannot answer alone, and whom they concern.

Answers that are as new as each who asks: equal questions at the same time are asked once.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Mapping, Sequence
from typing import Generic, TypeVar

from naiad.cluster import messages
from naiad.cluster.channel import ChannelError
from naiad.cluster.member.control_key import everywhere
from naiad.cluster.member.engine import MemberEngine
from naiad.cluster.member.recorded_response import RecordedGrpcCall, RecordedHttpContext
from naiad.cluster.messages import (
    Answer,
    AskIndex,
    AskMetrics,
    AskStatistics,
    ControlCall,
    IsModelReady,
    IsReady,
    ModelControl,
    Outcome,
    Question,
)
from naiad.core.errors import InferError, internal, unavailable
from naiad.core.model import IndexEntry
from naiad.core.tensor import Buffer
from naiad.engine.calls.commands import ModelCommands
from naiad.frontend.access import AccessRule, category_of_call, category_of_path
from naiad.frontend.context import GrpcCall, HttpContext
from naiad.frontend.grpc import failure as grpc_failure
from naiad.frontend.grpc.compression import GrpcCompression
from naiad.frontend.grpc.control import RepositoryCalls
from naiad.frontend.grpc.service import InferenceGrpcService
from naiad.frontend.header_forwarding import HeaderForwarding
from naiad.frontend.rest.metrics import MetricsRoute, respond_metrics
from naiad.frontend.router import Action, Router, respond_error
from naiad.frontend.slice_runner import SliceRunner
from naiad.protocol.grpc import control as control_grpc
from naiad.protocol.status import status_of

_SERVICE = "/inference.GRPCInferenceService/"
_CHANGING = frozenset(("model-repository", "logging", "trace", "shared-memory"))
"""Categories whose calls change a process, but for those that ask a question."""
_UNCHANGING_CALLS = frozenset(
    _SERVICE + name for name in ("SystemSharedMemoryStatus", "CudaSharedMemoryStatus", "RepositoryIndex")
)
# The index is not asked for here: the engine itself does so, on the thread that reads the repository.

_MODEL_READY = re.compile(r"/v2/models/([^/]+)(?:/versions/([0-9]+))?/ready")


def question_of_path(path: str) -> Question | None:
    """Return what has to be asked of all members to answer an HTTP request; None when one can answer alone."""
    if path == "/v2/health/ready":
        return IsReady()
    model = _MODEL_READY.fullmatch(path)
    if model is not None:
        return IsModelReady(model[1], model[2] or "")
    return AskStatistics() if category_of_path(path) == "statistics" else None


def changes_by_path(path: str) -> bool:
    """Tell whether a POST to `path` changes a process, so that all have to carry it out."""
    return category_of_path(path) in _CHANGING and not path.endswith("/index")


def _ask_model(message: Buffer) -> Question:
    return IsModelReady(*control_grpc.decode_model_reference(message))


_QUESTIONS: Mapping[str, Callable[[Buffer], Question]] = {
    _SERVICE + "ServerReady": lambda _: IsReady(),
    "/grpc.health.v1.Health/Check": lambda _: IsReady(),
    _SERVICE + "ModelReady": _ask_model,
    _SERVICE + "ModelStatistics": lambda _: AskStatistics(),
}


def question_of_call(path: str, message: Buffer) -> Question | None:
    """Return what has to be asked of all members to answer a gRPC call. Raises InferError as decoding it does."""
    ask = _QUESTIONS.get(path)
    return None if ask is None else ask(message)


def changes_by_call(path: str) -> bool:
    """Tell whether a gRPC call changes a process, so that all have to carry it out."""
    return category_of_call(path) in _CHANGING and path not in _UNCHANGING_CALLS


_Q = TypeVar("_Q", bound=Hashable)
_A = TypeVar("_A")


class RequestCoalescing(Generic[_Q, _A]):
    """Asks, and joins those who ask the same.

    While a question is being asked further callers wait for the next time it is: what they want to know may have
    changed since. So each question is asked once at a time, and a flood of callers costs no flood of questions.
    """

    def __init__(self, ask: Callable[[_Q], Awaitable[_A]]) -> None:
        self._ask = ask
        self._asking: dict[_Q, asyncio.Task[_A]] = {}
        self._next: dict[_Q, asyncio.Task[_A]] = {}

    async def get(self, question: _Q) -> _A:
        """Return an answer that was begun after this call. Raises what asking raises."""
        task = self._next.get(question)
        if task is None:
            before = self._asking.get(question)
            task = asyncio.get_running_loop().create_task(self._run(question, before))
            self._next[question] = task
        # One caller that gives up must not take the answer from the others.
        return await asyncio.shield(task)

    async def _run(self, question: _Q, before: "asyncio.Task[_A] | None") -> _A:
        if before is not None:
            await asyncio.wait([before])
        task = self._asking[question] = self._next.pop(question)
        try:
            return await self._ask(question)
        finally:
            if self._asking.get(question) is task:
                del self._asking[question]


_log = logging.getLogger(__name__)

Ask = Callable[[object], Coroutine[object, object, object]]
"""Asks the supervisor. Raises ChannelError."""


class ClusterRoutes:
    """What a member does with requests that concern all processes.

    The routes and calls themselves are those of a server of one process: a question's answer is what the engine
    knows while they answer, and a control call goes to the supervisor first, which has every member carry it out.
    """

    def __init__(self, engine: MemberEngine, ask: Ask) -> None:
        self.engine = engine
        self._ask = ask
        self._answers: RequestCoalescing[Question, Answer] = RequestCoalescing(self._ask_all)
        self._tasks: set[asyncio.Task[None]] = set()
        self._alone: Router | None = None
        self._grpc: ClusterGrpcService | None = None
        self._commands: ModelCommands | None = None

    # --- building ---------------------------------------------------------------------------------------------------

    def share(self, router: Router, alone: Router) -> None:
        """Have the routes of `router` answer for all processes; `alone` is an equal one that answers for this one."""
        self._alone = alone
        router.intercept(self._intercept)

    def connect(self) -> None:
        """Have the engine ask and command all processes; called on the loop."""
        loop = asyncio.get_running_loop()

        def ask() -> Sequence[IndexEntry]:
            answer = asyncio.run_coroutine_threadsafe(self.answer_of_all(AskIndex()), loop)
            return answer.result()  # type: ignore[return-value]  # AskIndex is answered with entries

        def order(wanted: ModelControl) -> None:
            outcome = asyncio.run_coroutine_threadsafe(self.everywhere(wanted), loop).result()
            if not outcome.is_success:
                raise InferError(outcome.code, outcome.text)

        self.engine.ask_index = ask
        self.engine.order = order
        self._commands = ModelCommands(self.engine, loop)

    def grpc_service(
        self,
        forwarding: HeaderForwarding | None = None,
        compression: GrpcCompression | None = None,
        repository: RepositoryCalls | None = None,
        runner: SliceRunner | None = None,
    ) -> InferenceGrpcService:
        """Return the gRPC service that answers for all processes."""
        self._grpc = ClusterGrpcService(self, forwarding, compression, repository, runner)
        return self._grpc

    def metrics_route(self, rule: AccessRule | None) -> MetricsRoute:
        """Return the metrics route that answers for all processes."""
        return ClusterMetricsRoute(self, rule)

    # --- asking -----------------------------------------------------------------------------------------------------

    async def _ask_all(self, question: Question) -> Answer:
        return await self._ask(question)  # type: ignore[return-value]  # an answer to a question

    async def answer_of_all(self, question: Question) -> Answer:
        """Return what all processes say. Raises InferError(UNAVAILABLE)."""
        try:
            return await self._answers.get(question)
        except ChannelError as error:
            raise unavailable(f"the processes of this server could not be asked: {error}") from error

    async def everywhere(self, call: ControlCall) -> Outcome:
        """Have a call carried out in all processes, this one included. Raises InferError."""
        try:
            return await self._ask(everywhere(call))  # type: ignore[return-value]  # the answer to it
        except ChannelError as error:
            raise unavailable(f"the processes of this server could not be reached: {error}") from error

    def spawn(self, work: Coroutine[object, object, None]) -> None:
        """Answer a request in a task of its own; the connection it came on waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- carrying out -----------------------------------------------------------------------------------------------

    async def carry_out(self, call: ControlCall) -> Outcome:
        """Carry a control call out in this process alone, and return its answer."""
        if isinstance(call, ModelControl):
            return await self._obey(call)
        if isinstance(call, messages.HttpCall):
            exchange = RecordedHttpContext(call)
            if self._alone is None:
                raise ChannelError("HTTP is not served")
            self._alone.handle(exchange)
            return await exchange.outcome
        captured = RecordedGrpcCall(call)
        if self._grpc is None:
            raise ChannelError("gRPC is not served")
        self._grpc.alone(captured, call.message)
        return await captured.outcome

    async def _obey(self, order: ModelControl) -> Outcome:
        if self._commands is None:
            raise ChannelError("this process does not serve yet")
        done: asyncio.Future[InferError | None] = asyncio.get_running_loop().create_future()
        self._commands.carry_out(
            order.name, order.parameters, done.set_result, is_load=order.is_load, everywhere=False
        )
        error = await done
        if error is None:
            return Outcome(True, 0)
        return Outcome(False, 0, text=error.message, code=error.code)

    # --- HTTP -------------------------------------------------------------------------------------------------------

    def _intercept(self, path: str, actions: Mapping[str, Action]) -> Mapping[str, Action]:
        question = question_of_path(path)
        if question is not None:
            return {method: self._asking(question, action) for method, action in actions.items()}
        if "POST" in actions and changes_by_path(path):
            return {**actions, "POST": self._carry_out_everywhere}
        return actions

    def _asking(self, question: Question, action: Action) -> Action:
        def ask(exchange: HttpContext, arguments: Mapping[str, str]) -> None:
            self.spawn(_answered(exchange, self._ask_and_act(question, action, exchange, arguments)))

        return ask

    async def _ask_and_act(
        self, question: Question, action: Action, exchange: HttpContext, arguments: Mapping[str, str]
    ) -> None:
        answer = await self.answer_of_all(question)
        with self.engine.knowing(question, answer):
            action(exchange, arguments)

    def _carry_out_everywhere(self, exchange: HttpContext, arguments: Mapping[str, str]) -> None:
        self.spawn(_answered(exchange, self._forward(exchange)))

    async def _forward(self, exchange: HttpContext) -> None:
        headers = tuple(exchange.headers.items())
        call = messages.HttpCall(exchange.method, exchange.path, headers, bytes(exchange.body))
        outcome = await self.everywhere(call)
        exchange.respond(outcome.status, outcome.headers, (outcome.body,) if outcome.body else ())


async def _answered(exchange: HttpContext, work: Coroutine[object, object, None]) -> None:
    """See to it that a failure of `work` is answered as a router would."""
    try:
        await work
    except InferError as error:
        respond_error(exchange, status_of(error.code).http, error.message)
    except Exception:
        _log.exception("%s %s failed", exchange.method, exchange.path)
        respond_error(exchange, 500, f"internal error of the server in {exchange.path}; its log says more")


async def _finished(call: GrpcCall, work: Coroutine[object, object, None]) -> None:
    """See to it that a failure of `work` ends the call."""
    try:
        await work
    except InferError as error:
        grpc_failure.finish(call, error)
    except Exception:
        _log.exception("gRPC call %s failed", call.path)
        grpc_failure.finish(call, internal(f"internal error of the server in {call.path}; its log says more"))


class ClusterMetricsRoute(MetricsRoute):
    """The metrics of all processes."""

    def __init__(self, sharing: ClusterRoutes, rule: AccessRule | None) -> None:
        super().__init__(sharing.engine.metrics_text, rule)
        self._sharing = sharing

    def _respond(self, context: HttpContext) -> None:
        self._sharing.spawn(_answered(context, self._ask_and_answer(context)))

    async def _ask_and_answer(self, exchange: HttpContext) -> None:
        text = await self._sharing.answer_of_all(AskMetrics())
        respond_metrics(exchange, text)  # type: ignore[arg-type]  # the answer to it


class ClusterGrpcService(InferenceGrpcService):
    """The gRPC service; inference is as fast as in a server of one process, for only control calls differ."""

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
        """Answer a control call for this process alone."""
        super()._control(call, message)

    def _control(self, call: GrpcCall, message: Buffer) -> None:
        try:
            question = question_of_call(call.path, message)
        except InferError as error:
            grpc_failure.finish(call, error)
            return
        if question is not None:
            self._sharing.spawn(_finished(call, self._ask_and_answer(question, call, message)))
        elif changes_by_call(call.path):
            self._sharing.spawn(_finished(call, self._forward(call, message)))
        else:
            super()._control(call, message)

    async def _ask_and_answer(self, question: Question, call: GrpcCall, message: Buffer) -> None:
        answer = await self._sharing.answer_of_all(question)
        with self._sharing.engine.knowing(question, answer):
            self.alone(call, message)

    async def _forward(self, call: GrpcCall, message: Buffer) -> None:
        forwarded = messages.GrpcCall(call.path, tuple(call.metadata), bytes(message))
        outcome = await self._sharing.everywhere(forwarded)
        if outcome.is_success:
            call.respond([outcome.body])
        else:
            call.finish(outcome.status, outcome.text, outcome.headers)
