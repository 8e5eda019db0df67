"""Operations on the whole server: queries merge the state of all its processes, commands are executed by all of them.

Equal queries at the same time are sent once (`RequestCoalescing`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from naiad.cluster.member.all_processes import AllProcesses
from naiad.cluster.messages import (
    Answer,
    AskIndex,
    AskLive,
    AskMetrics,
    AskRollouts,
    AskStatistics,
    BroadcastRequest,
    ControlCall,
    ControlOutcome,
    IsModelReady,
    IsReady,
    ModelControl,
    OperationCall,
    Query,
    RolloutControl,
)
from naiad.cluster.packed_live import unpack_live
from naiad.cluster.process_channel import ClusterChannelError
from naiad.core.errors import InferError, internal, unavailable
from naiad.core.model import IndexEntry
from naiad.engine.engine import Engine
from naiad.engine.model_calls import ModelCommands
from naiad.frontend.context import HttpContext
from naiad.frontend.control.control import ControlCalls
from naiad.frontend.long_work.slice_runner import in_pieces
from naiad.frontend.rest.metrics_port import respond_metrics
from naiad.frontend.router import respond_failure
from naiad.operations.models import HEALTH_CHECK, MODEL_READY, ROLLOUT, SERVER_READY, STATISTICS
from naiad.operations.operation import AnyOperation
from naiad.operations.repository import ROLLOUT_SUBJECT, load_order, unload_order
from naiad.operations.requests import CommandOrder
from naiad.operations.table import BY_NAME
from naiad.telemetry.last_resort import begin_task
from naiad.telemetry.live.live_answer import LiveAnswer, LiveQuery

_MERGED: Mapping[AnyOperation, Callable[[Any], Query]] = {
    SERVER_READY: lambda _: IsReady(),
    HEALTH_CHECK: lambda _: IsReady(),
    MODEL_READY: lambda request: IsModelReady(request.model, request.version),
    STATISTICS: lambda _: AskStatistics(),
    ROLLOUT: lambda _: AskRollouts(),
}
"""The operations about all processes, with what they have to be asked. The index is missing here: the engine itself
queries it, on the thread that reads the repository."""

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


class ClusterOperations:
    """Has all processes take part in operations. Implements `frontend.control.Distribution`.

    Operations are the same as in a server of one process: a query runs against the engine with the merged state of
    all processes, and a command goes to the supervisor, which broadcasts it.
    """

    def __init__(self, engine: Engine, processes: AllProcesses, ask: Ask) -> None:
        self.engine = engine
        self.processes = processes
        self._ask = ask
        self._answers: RequestCoalescing[Query, Answer] = RequestCoalescing(self._ask_all)
        self._tasks: set[asyncio.Task[None]] = set()
        self.control_calls = ControlCalls(engine)
        """Carries out commands in this process; set with the ports."""
        self._commands: ModelCommands | None = None

    def connect(self) -> None:
        """Let the engine query and command all processes; called on the loop."""
        loop = asyncio.get_running_loop()

        def ask() -> Sequence[IndexEntry]:
            answer = asyncio.run_coroutine_threadsafe(self.merged_answer(AskIndex()), loop)
            return answer.result()  # type: ignore[return-value]  # AskIndex is answered with entries

        def request(wanted: ModelControl) -> None:
            error = asyncio.run_coroutine_threadsafe(self.broadcast(wanted), loop).result().error
            if error is not None:
                raise error

        self.processes.ask_index = ask
        self.processes.request = request
        self.processes.spread_rollout = lambda call, on_done: self._spawn(self._spread(call, on_done))
        self._commands = ModelCommands(self.engine.repository, loop)

    def answer_metrics(self, context: HttpContext) -> None:
        """Respond with the metrics of all processes."""

        async def ask_and_answer() -> None:
            try:
                text = await self.merged_answer(AskMetrics())
                respond_metrics(context, text)  # type: ignore[arg-type]  # the answer to it
            except Exception as error:
                respond_failure(context, error)

        self._spawn(ask_and_answer())

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        """Handle a request in a task of its own; its connection waits for it."""
        begin_task("a request to all processes", work, self._tasks)

    # --- Distribution -----------------------------------------------------------------------------------------------

    def execute(
        self,
        operation: AnyOperation,
        request: object,
        done: Callable[[Any], object],
        failed: Callable[[Exception], object],
    ) -> None:
        """Carry out a command in all processes, then call `done` with its result."""

        async def execute() -> None:
            try:
                outcome = await self.broadcast(OperationCall(operation.name, request))
                if outcome.error is not None:
                    raise outcome.error
                done(outcome.result)
            except Exception as error:
                failed(error)

        self._spawn(execute())

    def gather(
        self,
        operation: AnyOperation,
        request: object,
        work: Callable[[], object],
        failed: Callable[[Exception], object],
    ) -> bool:
        """Do `work` with the merged answer of all processes; return False if this process is enough."""
        ask = _MERGED.get(operation)
        if ask is None:
            return False
        query = ask(request)

        async def ask_and_work() -> None:
            try:
                answer = await self.merged_answer(query)
                with self.processes.with_answer(query, answer):
                    work()
            except Exception as error:
                failed(error)

        self._spawn(ask_and_work())
        return True

    # --- queries and broadcasts -------------------------------------------------------------------------------------

    async def _ask_all(self, query: Query) -> Answer:
        return await self._ask(query)  # type: ignore[return-value]  # an answer to a question

    async def merged_answer(self, query: Query) -> Answer:
        """Return the merged answer of all processes. Raises InferError(UNAVAILABLE)."""
        try:
            return await self._answers.get(query)
        except ClusterChannelError as error:
            raise unavailable(f"the processes of this server could not be queried: {error}") from error

    async def live_answer(self, query: LiveQuery) -> LiveAnswer:
        """Return the answer of all processes for the live streams. Raises InferError(UNAVAILABLE)."""
        packed = await self.merged_answer(AskLive(query))
        return await in_pieces(unpack_live(packed))  # type: ignore[arg-type]  # the answer to it

    async def broadcast(self, call: ControlCall) -> ControlOutcome:
        """Execute a call in all processes, this one included. Raises InferError."""
        try:
            return await self._ask(BroadcastRequest(call, order_of(call)))  # type: ignore[return-value]  # its answer
        except ClusterChannelError as error:
            raise unavailable(f"the processes of this server could not be reached: {error}") from error

    async def _spread(self, call: RolloutControl, on_done: Callable[[InferError | None], object]) -> None:
        """Execute a call in all processes and report its outcome."""
        try:
            error = (await self.broadcast(call)).error
        except InferError as failure:
            error = failure
        on_done(error)

    # --- execution --------------------------------------------------------------------------------------------------

    async def execute_here(self, call: ControlCall) -> ControlOutcome:
        """Execute a control call in this process alone, and return its outcome."""
        ended: asyncio.Future[ControlOutcome] = asyncio.get_running_loop().create_future()

        def end(error: InferError | None) -> None:
            ended.set_result(ControlOutcome.of(error))

        if isinstance(call, OperationCall):
            self._carry_out(call, ended)
        elif isinstance(call, RolloutControl):
            self.engine.rollout_commands.carry_out(call.key, call.state, end, is_stored=call.is_stored)
        elif self._commands is None:
            raise ClusterChannelError("this process is not ready yet")
        else:
            self._commands.execute(call.name, call.parameters, end, is_load=call.is_load, broadcast=False)
        return await ended

    def _carry_out(self, call: OperationCall, ended: "asyncio.Future[ControlOutcome]") -> None:
        def done(result: object) -> None:
            ended.set_result(ControlOutcome.of(None, result))

        def failed(error: Exception) -> None:
            if not isinstance(error, InferError):
                _log.error("%s failed", call.description, exc_info=error)
                error = internal("internal error; see the server log")
            ended.set_result(ControlOutcome.of(error))

        self.control_calls.carry_out(BY_NAME[call.operation], call.request, done, failed)


def order_of(call: ControlCall) -> CommandOrder:
    """Return the order of a call for the supervisor."""
    if isinstance(call, RolloutControl):
        subject = "rollout that loads versions" if call.loads else ROLLOUT_SUBJECT
        return CommandOrder((subject, call.key))
    if isinstance(call, ModelControl):
        return load_order(call.name) if call.is_load else unload_order(call.name)
    order = BY_NAME[call.operation].order
    found = None if order is None else order(call.request)
    assert found is not None, call.operation
    return found
