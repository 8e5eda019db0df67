"""Control calls: carried out by every member, and by those that start later."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence

from naiad.cluster.channel import ChannelError
from naiad.cluster.messages import ControlCall, ControlKey, ControlLog, Everywhere, Outcome
from naiad.cluster.supervisor.member_process import MemberProcess

_log = logging.getLogger(__name__)


class ControlBroadcast:
    """Has members carry out control calls; those about the same thing in the same order everywhere."""

    def __init__(self, serving: Callable[[], Sequence[MemberProcess]]) -> None:
        self._serving = serving
        self._control_log: ControlLog[ControlCall] = ControlLog()
        self._locks: dict[ControlKey, tuple[asyncio.Lock, int]] = {}
        """With how many hold or wait for each."""
        self._catching_up_count = 0
        """Members that are being told what was ordered before."""
        self._tasks: set[asyncio.Task[Outcome]] = set()

    async def everywhere(self, order: Everywhere) -> Outcome:
        """Have all members carry out a call; the answer is the first failure, otherwise that of the first member.

        Raises ChannelError when no member could.
        """
        # Whoever asked may die meanwhile. The others carry it out all the same, so its successor has to know of it.
        task = asyncio.get_running_loop().create_task(self._everywhere(order))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def _everywhere(self, order: Everywhere) -> Outcome:
        async with self._locked(order.key[:2]):
            outcomes: dict[MemberProcess, Outcome | None] = {}
            # One that begins to serve meanwhile has not found this call in the journal.
            while late := [member for member in self._serving() if member not in outcomes]:
                found = await asyncio.gather(*[self._carry_out(member, order.call) for member in late])
                outcomes.update(zip(late, found, strict=True))
            return self._concluded(order, [outcome for outcome in outcomes.values() if outcome is not None])

    def _concluded(self, order: Everywhere, outcomes: Sequence[Outcome]) -> Outcome:
        if not outcomes:
            raise ChannelError("no process could carry it out")
        failures = [outcome for outcome in outcomes if not outcome.is_success]
        if failures and len(failures) < len(outcomes):
            _log.error("%s failed in %d of %d processes", order.call.path, len(failures), len(outcomes))
        if len(failures) < len(outcomes):
            self._remember(order)
        return failures[0] if failures else outcomes[0]

    def _remember(self, order: Everywhere) -> None:
        if order.undoes:
            self._control_log.undo(order.key)
        if not order.undoes or self._catching_up_count:
            # A member that is catching up may have carried out what is forgotten now; it does not serve yet, so
            # only the journal tells it that this was undone.
            self._control_log.add(order.key, order.call)

    async def _carry_out(self, member: MemberProcess, call: ControlCall) -> Outcome | None:
        try:
            # Loading a model may take any time.
            return await member.ask(call)  # type: ignore[return-value]  # the answer to it
        except ChannelError as error:
            _log.warning("%s did not carry out %s: %s", member.name, call.path, error)
            return None

    async def bring_up(self, member: MemberProcess) -> None:
        """Tell a member that has just started what was ordered before, until it knows everything."""
        number = 0
        self._catching_up_count += 1
        try:
            while entries := list(self._control_log.after(number)):
                for number, call in entries:  # noqa: B007 - the last number is where the next round begins
                    outcome = await self._carry_out(member, call)
                    if outcome is not None and not outcome.is_success:
                        _log.error(
                            "%s could not catch up with %s: %r", member.name, call.path, outcome.text or outcome.body
                        )
        finally:
            self._catching_up_count -= 1

    @contextlib.asynccontextmanager
    async def _locked(self, key: ControlKey) -> AsyncIterator[None]:
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
