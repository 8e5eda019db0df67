"""Keeps rollouts within their guards: it reads the counts of all processes and carries out the decisions.

In a server with several processes one of them does so; its decisions reach all processes as a client's changes do.
"""

import functools
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from naiad.config.rollout.guard import (
    Decision,
    GuardVerdict,
    GuardWindow,
    RolloutCounts,
    decide,
    is_guarded,
)
from naiad.config.rollout.rollout_declaration import Guard
from naiad.config.rollout.state import RolloutState, promoted, rolled_back, stepped
from naiad.core.errors import InferError
from naiad.core.model import name_of
from naiad.engine.engine import Engine
from naiad.server.process.common_ticks import next_tick
from naiad.telemetry.last_resort import keep_running_task

_log = logging.getLogger(__name__)

CHECK_S = 0.25
"""Interval of the decisions."""
_IDLE_S = 1.0
"""Between looks for a rollout to decide about: an idle server sleeps."""

CountRollouts = Callable[[], Awaitable[Mapping[str, RolloutCounts]]]
"""Returns the counts of all processes, by the keys of the models. May raise InferError."""


@dataclass(slots=True)
class _Watch:
    """The recent counts of one state of a rollout."""

    era: tuple[str, int]
    stable: int
    """The version that the requests of stable were for."""
    window: GuardWindow
    is_deciding: bool = False
    """Whether a decision is on its way to the processes."""


class RolloutKeeper:
    """Decides about all rollouts with a guard or steps. Used on the event loop."""

    def __init__(self, engine: Engine, count: CountRollouts) -> None:
        self._engine = engine
        self._count = count
        self._watches: dict[str, _Watch] = {}

    async def run(self) -> None:
        """Decide periodically, until cancelled."""
        await keep_running_task("deciding about rollouts", self._decide_regularly)

    @property
    def pause_s(self) -> float:
        """The time until the next check."""
        return CHECK_S if self._watches else _IDLE_S

    async def _decide_regularly(self) -> None:
        while True:
            await next_tick(self.pause_s)
            try:
                await self.check()
            except InferError as error:
                _log.warning("the counts of rollouts cannot be read: %s", error.message)

    async def check(self) -> None:
        """Decide once. Raises InferError if the counts cannot be read."""
        guarded = {key: state for key, state in self._engine.rollouts.states().items() if is_guarded(state)}
        for key in self._watches.keys() - guarded.keys():
            del self._watches[key]
        if not guarded:
            return
        counts = await self._count()
        for key, state in guarded.items():
            found = counts.get(key)
            # The state may have changed during the query.
            if found is not None and found.era == state.era and self._engine.rollouts.state(key) is state:
                self._decide(key, state, found, time.monotonic_ns())

    def _decide(self, key: str, state: RolloutState, counts: RolloutCounts, now_ns: int) -> None:
        watch = self._watches.get(key)
        if watch is None or watch.era != state.era:
            watch = self._watches[key] = _watch(state, watch)
        if watch.is_deciding:
            return
        recent = watch.window.observe(counts)
        decision = decide(state, recent, self._engine.rollouts.began_ns(key), now_ns)
        if decision.verdict is GuardVerdict.KEEP:
            return
        watch.is_deciding = True
        after = _after(state, decision, name_of(key))
        self._engine.rollout_commands.changes.decide(
            key, after, functools.partial(self._decided, key, watch, state, after, decision)
        )

    def _decided(
        self,
        key: str,
        watch: _Watch,
        before: RolloutState,
        after: RolloutState,
        decision: Decision,
        error: InferError | None,
    ) -> None:
        watch.is_deciding = False
        if error is not None:
            # A client has changed the rollout at the same time, or a process was replaced: the next check decides.
            _log.warning("the rollout of model '%s' could not be changed: %s", name_of(key), error.message)
        elif decision.verdict is GuardVerdict.ROLL_BACK:
            self._engine.rollout_commands.report_rollback(key, before, decision.limit, decision.text)
        else:
            _log.info("rollout of model '%s': %s", name_of(key), after.note)


def _watch(state: RolloutState, before: _Watch | None) -> _Watch:
    """Return a watch of a new state, such as the next step; what is known of the same stable version still counts."""
    rollout = state.rollout
    guard, stable = (Guard(), 0) if rollout is None else (rollout.guard or Guard(), rollout.stable)
    known = before.window.stable if before is not None and before.stable == stable else None
    return _Watch(state.era, stable, GuardWindow(guard.min_requests, RolloutCounts(state.era), known))


def _after(state: RolloutState, decision: Decision, model: str) -> RolloutState:
    """Return the state after a decision."""
    if decision.verdict is GuardVerdict.ROLL_BACK:
        return rolled_back(state, model, f"rolled back by the guard ({decision.limit}): {decision.text}")
    if decision.verdict is GuardVerdict.PROMOTE:
        return promoted(state, model, f"promoted {decision.text}")
    return stepped(state, f"next step {decision.text}")
