"""Calls to several servers: a call that one has certainly not begun goes to another one.

Theory of operation. A call is sent to one server at a time. It is sent again only after an error whose `has_begun` is
False: there was no connection, HTTP/2 refused the stream, or the server says that it did not begin (`status_table`).
With `retries_begun` also after a connection that broke, for models whose requests may be executed twice. Each retry
is taken from the budget, except that of a call without a connection while another server is there. A server without
a connection gets no calls until a task has seen that it answers; while all are away, calls try one of them. After a
call without an answer, such as one whose time was over, the next one begins such a look: a server that takes
connections and hangs is away too. Requests of a sequence go to one server, and only the first one may move.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias, TypeVar

from naiad.client.connecting import (
    ClientClosedError,
    ConnectionFailedError,
    DecodedResponse,
    NotConnectedError,
    ServerAddress,
)
from naiad.client.replicas.replica_set import Replica, ReplicaSet, ReplicaState
from naiad.client.transport.grpc import GrpcCalls
from naiad.client.transport.rest import RestCalls
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import InferError, excerpt
from naiad.core.limits.retry_budget import RetryBudget
from naiad.core.model import ModelMetadata, ServerMetadata
from naiad.core.request import RequestHeader
from naiad.core.tensor import Buffer

_AWAY_S = 1.0
"""Between two looks at a server without a connection."""
_ASIDE_S = 0.25
"""How long other servers are preferred to one that has refused a call."""
_LOOK_S = 5.0
"""For the answer to such a look."""
_RESOLVE_S = 30.0
"""Between two looks at the addresses of a name."""

Calls: TypeAlias = GrpcCalls | RestCalls
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class RetryCounts:
    """What a client of several servers has done."""

    calls: int = 0
    """Calls, each counted once."""
    retries: int = 0
    """Calls that were sent again, each time counted."""
    over_budget: int = 0
    """Calls that failed because the budget had no retry for them."""


@dataclass(slots=True)
class _Tries:
    """The servers that have got one call."""

    began: int
    """Number of closes of the client when the call began."""
    replicas: list[Replica[Calls]] = field(default_factory=list)


class ReplicaCalls:
    """The calls of `GrpcCalls` and `RestCalls` that do not need a certain server."""

    def __init__(
        self,
        addresses: Sequence[ServerAddress],
        open_calls: Callable[[ServerAddress], Calls],
        budget: RetryBudget,
        *,
        retries_begun: bool = False,
        resolve: Callable[[], Awaitable[Sequence[ServerAddress]]] | None = None,
    ) -> None:
        """`resolve` returns the addresses of the moment; without it they stay as they are."""
        self._open_calls = open_calls
        self._budget = budget
        self._retries_begun = retries_begun
        self._resolve = resolve
        self._resolving: asyncio.Task[None] | None = None
        self._resolve_at_s = 0.0
        self._resolve_problem = "the name has no address yet"
        self._set: ReplicaSet[Calls] = ReplicaSet([Replica(each, open_calls(each)) for each in addresses])
        self._leaving: set[Replica[Calls]] = set()
        """Servers that the name does not have any more, with calls in progress."""
        self._watching: dict[Replica[Calls], asyncio.Task[None]] = {}
        self._calls = self._retries = self._over_budget = 0
        self._closed_count = 0
        """Number of calls of `close`: calls that began before fail, and are not sent any more."""

    @property
    def counts(self) -> RetryCounts:
        """The counters."""
        return RetryCounts(self._calls, self._retries, self._over_budget)

    @property
    def states(self) -> list[ReplicaState]:
        """A row for each server."""
        return [each.state for each in self._set.all]

    async def infer(
        self,
        header: RequestHeader,
        request_id: str,
        data: Sequence[Buffer],
        timeout_s: float | None,
        headers: Mapping[str, str],
    ) -> DecodedResponse:
        """Execute a model; what is left of the time goes along with each try."""
        end_s = None if timeout_s is None else _now_s() + timeout_s

        def send(calls: Calls) -> Awaitable[DecodedResponse]:
            left_s = None if end_s is None else max(0.001, end_s - _now_s())
            return calls.infer(header, request_id, data, left_s, headers)

        if not header.sequence_id:
            return await self._send(send, retries_begun=self._retries_begun)
        if header.sequence_start:
            return await self._send(send, on_sent=lambda replica: self._set.keep(header, replica))
        return await self._send_in_sequence(header, send)

    async def infer_stream(
        self, header: RequestHeader, request_id: str, data: Sequence[Buffer], headers: Mapping[str, str]
    ) -> AsyncGenerator[DecodedResponse, None]:
        """Execute a model and yield its responses; it may move until the first one."""
        tries = _Tries(self._closed_count)
        while True:
            replica = await self._choose(tries)
            has_answer = False
            try:
                with self._noted(replica, tries.began):
                    stream = replica.calls.infer_stream(header, request_id, data, headers)
                    async with contextlib.aclosing(stream) as responses:
                        async for each in responses:
                            has_answer = True
                            yield each
            except InferError as error:
                if has_answer or not self._may_move(replica, error, tries, retries_begun=self._retries_begun):
                    raise
            else:
                return

    async def is_live(self) -> bool:
        """Return whether a server responds."""
        return await self._any(lambda calls: calls.is_live())

    async def is_ready(self) -> bool:
        """Return whether a server is ready."""
        return await self._any(lambda calls: calls.is_ready())

    async def is_model_ready(self, model: str, version: str) -> bool:
        """Return whether a server can execute requests of a model."""
        return await self._any(lambda calls: calls.is_model_ready(model, version))

    async def server_metadata(self) -> ServerMetadata:
        """Return name, version and extensions of a server."""
        return await self._send(lambda calls: calls.server_metadata(), retries_begun=True)

    async def model_metadata(self, model: str, version: str) -> ModelMetadata:
        """Return inputs, outputs and versions of a model."""
        return await self._send(lambda calls: calls.model_metadata(model, version), retries_begun=True)

    async def model_config(self, model: str, version: str) -> ModelConfig:
        """Return the complete configuration of a model."""
        return await self._send(lambda calls: calls.model_config(model, version), retries_begun=True)

    def close(self) -> None:
        """Close all connections; calls in progress fail with ClientClosedError."""
        self._closed_count += 1
        for task in self._watching.values():
            task.cancel()
        self._watching.clear()
        if self._resolving is not None:
            self._resolving.cancel()
            self._resolving, self._resolve_at_s = None, 0.0
        for replica in (*self._set.all, *self._leaving):
            replica.problem = ""  # nothing looks at it any more
            replica.calls.close()

    # --- sending ----------------------------------------------------------------------------------------------------

    async def _send(
        self,
        send: Callable[[Calls], Awaitable[_T]],
        *,
        retries_begun: bool = False,
        on_sent: Callable[[Replica[Calls]], None] | None = None,
    ) -> _T:
        """Return the result of a call on the first server that takes it. Raises InferError."""
        tries = _Tries(self._closed_count)
        while True:
            replica = await self._choose(tries)
            try:
                with self._noted(replica, tries.began):
                    found = await send(replica.calls)
            except InferError as error:
                if not self._may_move(replica, error, tries, retries_begun=retries_begun):
                    raise
            else:
                if on_sent is not None:
                    on_sent(replica)
                return found

    async def _send_in_sequence(
        self, header: RequestHeader, send: Callable[[Calls], Awaitable[DecodedResponse]]
    ) -> DecodedResponse:
        """Send a later request of a sequence to the server that has begun it."""
        self._begin_call()
        replica = self._set.holding(header)
        try:
            with self._noted(replica, self._closed_count):
                response = await send(replica.calls)
        except NotConnectedError as error:
            name = excerpt(str(header.sequence_id))
            raise NotConnectedError(f"the server that has sequence {name} is away: {error.message}") from None
        self._set.keep(header, replica)
        return response

    async def _any(self, ask: Callable[[Calls], Awaitable[bool]]) -> bool:
        """Return whether a server answers True: all are asked at a time, so that none waits for one that hangs.

        Raises the last error if none answers.
        """
        began = self._closed_count
        await self._keep_resolved(began)
        loop, failure, has_answer = asyncio.get_running_loop(), None, False
        asked = {loop.create_task(self._answer(each, ask, began)) for each in self._set.all}
        try:
            while asked:
                done, asked = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
                for answer in [each.result() for each in done]:
                    if answer is True:
                        return True
                    failure = failure if answer is False else answer
                    has_answer = has_answer or answer is False
        finally:
            for each in asked:
                each.cancel()
        if failure is not None and not has_answer:
            raise failure
        return False

    async def _answer(
        self, replica: Replica[Calls], ask: Callable[[Calls], Awaitable[bool]], began: int
    ) -> bool | InferError:
        """Return what a server answers; its error too, which is one answer of several."""
        if began != self._closed_count:
            return ClientClosedError()
        try:
            with self._noted(replica, began, is_question=True):
                return await ask(replica.calls)
        except InferError as error:
            return error

    async def _choose(self, tries: "_Tries") -> Replica[Calls]:
        """Return the server for the next try. Raises NotConnectedError if a name has no address."""
        if not tries.replicas:
            self._begin_call()
            await self._keep_resolved(tries.began)
        replica = self._set.choose(_now_s(), tries.replicas)
        if replica is None:
            raise NotConnectedError("the name has no address")
        if replica.is_doubted and _now_s() >= replica.looked_s + _AWAY_S:
            self._look_at(replica)
        return replica

    def _begin_call(self) -> None:
        self._calls += 1
        self._budget.note_call(_now_s())

    @contextlib.contextmanager
    def _noted(self, replica: Replica[Calls], began: int, *, is_question: bool = False) -> Iterator[None]:
        """Count a call while it is open, and note what it says about its server.

        `began` is the number of closes before it: after another one, a broken connection is that of a closed client.
        A question to all servers is cancelled when one has answered: it says nothing about the other servers.
        """
        began_s = _now_s()
        replica.call_count += 1
        replica.open_count += 1
        try:
            yield
        except ConnectionFailedError as error:
            if began != self._closed_count:
                raise ClientClosedError(has_begun=error.has_begun) from None
            if isinstance(error, NotConnectedError):
                self._note_away(replica, error.message)
            elif error.has_begun:
                replica.is_doubted = True
            raise
        except asyncio.CancelledError:  # by its deadline, perhaps before there was a connection
            replica.is_doubted = replica.is_doubted or not is_question
            raise
        else:
            # A server that ends still answers over the connections that it has.
            if replica.problem and began_s > replica.since_s:
                replica.problem = ""
        finally:
            replica.open_count -= 1
            if replica.is_removed and not replica.open_count:
                self._leaving.discard(replica)
                replica.calls.close()

    def _may_move(self, replica: Replica[Calls], error: InferError, tries: "_Tries", *, retries_begun: bool) -> bool:
        """Return whether a call is sent to another server after an error."""
        tries.replicas.append(replica)
        is_away = isinstance(error, NotConnectedError)
        is_safe = not error.has_begun or (retries_begun and isinstance(error, ConnectionFailedError))
        left = [each for each in self._set.all if each not in tries.replicas]
        is_there = any(not each.problem for each in left)
        # What a server has refused says more than that another one is away.
        is_left = is_there or (is_away and bool(left))
        if not error.has_begun and not is_away:
            replica.aside_s = _now_s() + _ASIDE_S
        if not is_safe or not is_left or tries.began != self._closed_count:
            return False
        # A call that found no connection is new to the next server: it was not sent, and is no load that multiplies.
        if not (is_away and is_there) and not self._budget.take(_now_s()):
            self._over_budget += 1
            return False
        replica.moved_count += 1
        self._retries += 1
        return True

    # --- servers that are away, and new ones ------------------------------------------------------------------------

    def _note_away(self, replica: Replica[Calls], problem: str) -> None:
        replica.problem, replica.since_s = problem, _now_s()
        self._resolve_at_s = min(self._resolve_at_s, _now_s() + _AWAY_S)  # its successor may have another address
        self._look_at(replica)

    def _look_at(self, replica: Replica[Calls]) -> None:
        watching = self._watching.get(replica)
        if (watching is None or watching.done()) and not replica.is_removed:
            task = self._watching[replica] = asyncio.get_running_loop().create_task(self._watch(replica))
            task.add_done_callback(partial(self._watched, replica))

    async def _watch(self, replica: Replica[Calls]) -> None:
        """Look at a server until it answers; at once if it is only doubted."""
        while True:
            if replica.problem:
                await asyncio.sleep(_AWAY_S)
            replica.is_doubted, replica.looked_s = False, _now_s()
            problem = await self._problem_of(replica)
            if problem and not replica.problem:
                self._note_away(replica, problem)
            replica.problem = problem
            if not problem:
                return

    async def _problem_of(self, replica: Replica[Calls]) -> str:
        """Return why a server does not answer; empty if it does, also with an error.

        Over a connection of its own: calls may use all connections of the pool.
        """
        calls = self._open_calls(replica.address)
        try:
            async with asyncio.timeout(_LOOK_S):
                await calls.is_live()
        except TimeoutError:
            return f"no answer within {_LOOK_S:g} s"
        except ConnectionFailedError as error:
            return error.message
        except InferError:
            pass
        finally:
            calls.close()
        return ""

    def _watched(self, replica: Replica[Calls], done: "asyncio.Task[None]") -> None:
        if self._watching.get(replica) is done:  # after a close there may be a new one
            del self._watching[replica]

    async def _keep_resolved(self, began: int) -> None:
        """Look at the addresses of the name from time to time; wait for it only while there are none.

        Raises ClientClosedError if the client was closed after `began` closes.
        """
        if self._resolve is None:
            return
        if _now_s() >= self._resolve_at_s and self._resolving is None:
            self._resolve_at_s = _now_s() + _AWAY_S  # if it fails
            self._resolving = asyncio.get_running_loop().create_task(self._look_up(self._resolve))
            self._resolving.add_done_callback(self._looked_up)
        if not self._set.all:
            await self._first_addresses()
        if began != self._closed_count:
            raise ClientClosedError

    async def _first_addresses(self) -> None:
        """Wait for the look-up that has begun. Raises what it raises."""
        looking = self._resolving
        if looking is None:
            raise NotConnectedError(f"{self._resolve_problem}; it is looked up once a second")
        await asyncio.wait([looking])
        if looking.cancelled():
            raise ClientClosedError
        looking.result()

    def _looked_up(self, done: "asyncio.Task[None]") -> None:
        if self._resolving is done:  # after a close there may be a new one
            self._resolving = None
        if not done.cancelled() and (error := done.exception()) is not None:
            # Calls that wait raise it; with addresses the known ones stay.
            self._resolve_problem = str(error)

    async def _look_up(self, resolve: Callable[[], Awaitable[Sequence[ServerAddress]]]) -> None:
        found = {each.url: each for each in await resolve()}
        self._resolve_at_s = _now_s() + _RESOLVE_S
        for replica in [each for each in self._set.all if each.url not in found]:
            self._set.all.remove(replica)
            replica.is_removed = True
            if (watching := self._watching.pop(replica, None)) is not None:
                watching.cancel()
            if replica.open_count:
                self._leaving.add(replica)
            else:
                replica.calls.close()
        known = {each.url for each in self._set.all}
        self._set.all += [Replica(each, self._open_calls(each)) for url, each in found.items() if url not in known]


def _now_s() -> float:
    return asyncio.get_running_loop().time()
