"""Keeps this server and the records of rollouts alike: other servers of the repository write the same records.

In a server with several processes one of them does so; what it finds reaches all processes as a client's changes do.
"""

import asyncio
import functools
import logging
import time

from naiad.config.rollout.state import RolloutState
from naiad.core.errors import InferError
from naiad.engine.engine import Engine
from naiad.repository.rollout_records import FoundRecord, RolloutRecords
from naiad.server.process.common_ticks import next_tick

_log = logging.getLogger(__name__)

FOLLOW_S = 0.5
"""Interval of the checks; records are looked at as often as their place allows."""
_IDLE_S = 1.0
"""The same without any rollout: other servers may begin one."""
_RETRY_S = 15.0
"""Pause after a state that could not be applied or stored."""
_LONGEST_RETRY_S = 600.0
"""The pauses grow while a state stays in the cache of this server: its repository may be read-only."""


class RolloutFollower:
    """Applies what the records say, and stores what they lack. Used on the event loop."""

    def __init__(self, engine: Engine, records: RolloutRecords) -> None:
        self._engine = engine
        self._records = records
        self._spread: dict[str, RolloutState] = {}
        """What all processes have got."""
        self._busy: set[str] = set()
        self._pause_until_s: dict[str, float] = {}
        self._shares: dict[str, tuple[float, float]] = {}
        """Of a state that other servers do not see yet: when it is stored again, and the pause after that."""

    async def run(self) -> None:
        """Check periodically, until cancelled."""
        while True:
            try:
                await self.check()
            except Exception:
                _log.exception("following the records of rollouts failed")
            await next_tick(self.pause_s)

    @property
    def pause_s(self) -> float:
        """The time until the next check."""
        return FOLLOW_S if self._engine.rollouts.decided() else _IDLE_S

    async def check(self) -> None:
        """Apply the records that have changed, and store the states that they lack."""
        for key, found in (await asyncio.to_thread(self._records.changed)).items():
            self._follow(key, found)
        decided = self._engine.rollouts.decided()
        for key in self._spread.keys() - decided.keys():
            del self._spread[key]
            self._shares.pop(key, None)
        for key, state in decided.items():
            if key in self._busy or time.monotonic() < self._pause_until_s.get(key, 0.0):
                continue
            stored = self._records.known(key)
            if stored is not None and self._engine.rollouts.followed(key, stored) is not None:
                self._follow(key, FoundRecord(stored))  # what could not be applied before
            elif self._engine.rollout_commands.changes.is_behind(key, state):
                await self._keep(key, state)
            elif self._spread.get(key) != state:
                self._give(key, state)
            elif self._is_to_share(key):
                await self._keep(key, state)

    def _follow(self, key: str, found: FoundRecord) -> None:
        if found.state is None or key in self._busy or not self._engine.models.is_loaded(key):
            return
        self._busy.add(key)
        self._engine.rollout_commands.changes.follow(key, found.state, functools.partial(self._done, key))

    def _give(self, key: str, state: RolloutState) -> None:
        """Give all processes the state of this one: they may have read different ones when they started."""
        self._busy.add(key)
        self._spread[key] = state
        self._engine.rollout_commands.broadcast(key, state, functools.partial(self._done, key), is_stored=True)

    def _done(self, key: str, error: InferError | None) -> None:
        self._busy.discard(key)
        if error is not None:
            _log.warning("the rollout of model '%s' could not be followed: %s", key, error.message)
            self._pause_until_s[key] = time.monotonic() + _RETRY_S

    def _is_to_share(self, key: str) -> bool:
        """Return whether it is time to store again what is in the cache of this server alone."""
        if not self._records.unshared(key):
            self._shares.pop(key, None)
            return False
        now_s = time.monotonic()
        due_s, pause_s = self._shares.get(key, (now_s + _RETRY_S, _RETRY_S))
        is_due = now_s >= due_s
        if is_due:
            pause_s = min(2 * pause_s, _LONGEST_RETRY_S)
            due_s = now_s + pause_s
        self._shares[key] = (due_s, pause_s)
        return is_due

    async def _keep(self, key: str, state: RolloutState) -> None:
        try:
            await asyncio.to_thread(self._records.keep, key, state)
        except InferError as error:
            _log.error("%s", error.message)
            self._pause_until_s[key] = time.monotonic() + _RETRY_S
