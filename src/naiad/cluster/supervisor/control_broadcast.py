"""Control broadcast: every server process executes the control calls, including processes that start later.

Theory of operation. A load, a registration or a change of settings that one process receives must take effect in all
of them, in the same order, and also in processes that replace a dead one.

- The process with the client sends a `BroadcastRequest` (the call and its order) to the supervisor, which runs it in
  a task of its own: the call completes even if that process dies.
- A lock per subject (the first two parts of the key) orders calls about the same subject; other calls run at the same
  time. Under the lock every serving process executes the call. The loop repeats for processes that began to serve
  meanwhile, because their catch-up has not seen this call in the control log.
- The outcome is the first failure, otherwise the first success. A call that succeeded in at least one process enters
  the control log (`ControlLog`), where it replaces an earlier call with the same key.
- A call that undoes others (for example unregister) removes them from the log; so does an unload with the changes of
  the model's rollout. While a process catches up, the
  undoing call is also kept as an entry, because that process may already have executed the removed calls.
- `catch_up` replays the log to a new process from entry to entry, until no later entry exists. The
  process then counts as serving in the same turn of the event loop, so every later call includes it.
- The log is bounded: a call beyond the bound is logged as an error, because a process that starts
  later will lack it.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence

from naiad.cluster.messages import BroadcastRequest, ControlCall, ControlOutcome
from naiad.cluster.process_channel import ClusterChannelError
from naiad.cluster.supervisor.member_process import MemberProcess
from naiad.operations.requests import OrderKey

_log = logging.getLogger(__name__)

_LOG_LIMIT = 10_000
"""Limit of the entries; settings and regions are few, and a model has one entry for all its loads."""


class ControlLog:
    """Successful calls, the last one of each key, in order."""

    def __init__(self, limit: int = _LOG_LIMIT) -> None:
        self._limit = limit
        self._number = 0
        self._entries: dict[OrderKey, tuple[int, ControlCall]] = {}

    def add(self, key: OrderKey, entry: ControlCall) -> None:
        """Record a call."""
        self._entries.pop(key, None)
        self._number += 1
        self._entries[key] = (self._number, entry)
        if len(self._entries) > self._limit:
            oldest = next(iter(self._entries))
            del self._entries[oldest]
            _log.warning("the control log is full; a process that starts later will lack %s", oldest)

    def undo(self, key: OrderKey) -> None:
        """Remove the calls with keys that begin with `key`: another call has undone them."""
        for undone in [known for known in self._entries if known[: len(key)] == key]:
            del self._entries[undone]

    def after(self, number: int) -> list[tuple[int, ControlCall]]:
        """Return the entries after entry `number`, 0 for all, each with its own number."""
        return [found for found in self._entries.values() if found[0] > number]


class ControlBroadcast:
    """Broadcasts control calls; calls about the same subject run in the same order in all processes."""

    def __init__(self, serving: Callable[[], Sequence[MemberProcess]]) -> None:
        self._serving = serving
        self._control_log = ControlLog()
        self._locks: dict[OrderKey, tuple[asyncio.Lock, int]] = {}
        """Each lock with the number of its holder and waiters."""
        self._catching_up_count = 0
        """Processes that replay the control log."""
        self._tasks: set[asyncio.Task[ControlOutcome]] = set()

    async def broadcast(self, request: BroadcastRequest) -> ControlOutcome:
        """Execute a call in all processes; return the first failure, otherwise the first outcome.

        Raises ChannelError when no process could execute it.
        """
        # The sending process may die meanwhile. The other processes still execute the call, so it must reach the log.
        task = asyncio.get_running_loop().create_task(self._broadcast(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def _broadcast(self, request: BroadcastRequest) -> ControlOutcome:
        async with self._locked(request.order.key[:2]):
            outcomes: dict[MemberProcess, ControlOutcome | None] = {}
            # A process that begins to serve meanwhile has not found this call in the control log.
            while late := [member for member in self._serving() if member not in outcomes]:
                found = await asyncio.gather(*[self._execute(member, request.call) for member in late])
                outcomes.update(zip(late, found, strict=True))
            return self._concluded(request, [outcome for outcome in outcomes.values() if outcome is not None])

    def _concluded(self, request: BroadcastRequest, outcomes: Sequence[ControlOutcome]) -> ControlOutcome:
        if not outcomes:
            raise ClusterChannelError("no process could execute it")
        failures = [outcome for outcome in outcomes if not outcome.is_success]
        if failures and len(failures) < len(outcomes):
            _log.error("%s failed in %d of %d processes", request.call.description, len(failures), len(outcomes))
        if len(failures) < len(outcomes):
            self._remember(request)
        return failures[0] if failures else outcomes[0]

    def _remember(self, request: BroadcastRequest) -> None:
        order = request.order
        if order.outdates:
            self._control_log.undo(order.outdates)
        if order.undoes:
            self._control_log.undo(order.key)
        if not order.undoes or self._catching_up_count:
            # A process that catches up may have executed the removed calls; it does not serve yet, so only the
            # control log can undo them there.
            self._control_log.add(order.key, request.call)

    async def _execute(self, member: MemberProcess, call: ControlCall) -> ControlOutcome | None:
        try:
            # Loading a model may take any time.
            return await member.ask(call)  # type: ignore[return-value]  # the answer to it
        except ClusterChannelError as error:
            _log.warning("%s did not execute %s: %s", member.name, call.description, error)
            return None

    async def catch_up(self, member: MemberProcess) -> None:
        """Replay the control log to a process that has just started, until it is complete."""
        number = 0
        self._catching_up_count += 1
        try:
            while entries := self._control_log.after(number):
                for number, call in entries:  # noqa: B007 - the last number is where the next round begins
                    outcome = await self._execute(member, call)
                    if outcome is not None and not outcome.is_success:
                        _log.error("%s could not catch up with %s: %s", member.name, call.description, outcome.text)
        finally:
            self._catching_up_count -= 1

    @contextlib.asynccontextmanager
    async def _locked(self, key: OrderKey) -> AsyncIterator[None]:
        lock, count = self._locks.get(key, (asyncio.Lock(), 0))
        self._locks[key] = (lock, count + 1)
        try:
            async with lock:
                yield
        finally:
            lock, count = self._locks[key]
            if count == 1:
                del self._locks[key]
            else:
                self._locks[key] = (lock, count - 1)
