"""For how long a hold pays: turns, bursts and a latency goal, rules 2 to 4 of the adaptive batcher."""

from collections.abc import Sequence

from naiad.core.request import InferRequest
from naiad.scheduler.adaptive.arrival_model import ArrivalModel, bin_of
from naiad.scheduler.adaptive.burst_record import BurstRecord
from naiad.scheduler.adaptive.executions import Executions

_LATENESS_NS = 60_000.0
"""How late a hold is taken to end at first: what it takes to be woken."""
_LATENESS_STEP = 1 / 16
_MOST_LATE_NS = 1_000_000
"""More than this was a pause of the machine."""
_MEMO_LIMIT = 1024
_FRESH_COUNT = 512
"""Batches after which what was concluded is concluded anew."""
_LIKELY = 0.5
_SAVING = 0.2
"""A batch of one of which less than this is fixed is not worth growing for a goal."""


class HoldChoice:
    """What was learned of executions and arrivals, and what follows from it for a batch that could grow."""

    def __init__(self, *, instance_count: int, goal_ns: int, max_rows: int) -> None:
        """`goal_ns` is what a request may take until its answer; 0 for as little as possible."""
        self.executions = Executions(instance_count)
        self.arrivals = ArrivalModel()
        self.is_certain = False
        """Whether enough is known to decide by it."""
        self._bursts = BurstRecord()
        self._goal_ns = goal_ns
        self._max_rows = max_rows
        self._lateness_ns = _LATENESS_NS
        """By how much a hold lasts longer than it was to."""
        self._memo: dict[tuple[int, int, int], int] = {}
        """Requests, size of a turn and time since the newest, all roughly, to how long the next is waited for."""
        self._memo_end = _FRESH_COUNT
        self._is_asked = False
        """Whether it was decided for the next batch if it is to find out what instances gain from each other."""
        self._is_probing = False

    # --- learning ---------------------------------------------------------------------------------------------------

    def check_certain(self) -> None:
        """See whether enough is known by now."""
        self.is_certain = self.executions.latency.is_certain and self.arrivals.is_certain

    def note_begun(self, requests: Sequence[InferRequest]) -> None:
        """Learn from a batch that goes."""
        # hot: once a batch
        self.arrivals.observe(requests)
        if self._is_asked:
            self.executions.is_followed |= self._is_probing
            self._is_asked = self._is_probing = False

    def note_late(self, late_ns: int) -> None:
        """Learn from a hold that has ended so long after the moment it was to end at."""
        self._lateness_ns += _LATENESS_STEP * (min(late_ns, _MOST_LATE_NS) - self._lateness_ns)

    def note_burst(self, *, held_ns: int, before: int, came: int, rows: int) -> None:
        """Learn from a hold for a burst, which `came` requests have joined and has become a batch of `rows`."""
        turn_ns = self.executions.turn_ns(rows)
        mean_gap_ns = self.arrivals.mean_gap_ns
        self._bursts.note(held_ns=held_ns, before=before, came=came, turn_ns=turn_ns, mean_gap_ns=mean_gap_ns)

    # --- deciding ---------------------------------------------------------------------------------------------------

    def probes(self) -> bool:
        """Tell whether the next batch begins without its turn, to find out what that does; decided once for each."""
        if not self._is_asked:
            self._is_asked = True
            self._is_probing = self.executions.parallelism.should_probe()
        return self._is_probing

    def crowd_until_ns(self) -> int:
        """Return until when the next batch is left to an instance that executes; 0 if another is to look at it."""
        executions = self.executions
        if not self.is_certain or not executions.is_crowded or executions.alone_until_ns() or self.probes():
            return 0
        return executions.turn_end_ns()

    def until(
        self, requests: int, rows: int, *, oldest_ns: int, now_ns: int, waited_ns: int, is_held: bool
    ) -> tuple[int, str]:
        """Return until when a batch that could grow is held, and what for; a time that has come for not at all.

        `oldest_ns` is when its oldest request came, `waited_ns` how long ago its newest did.
        """
        until_ns, why = self._turn_or_burst(requests, rows, now_ns, waited_ns, is_held=is_held)
        if not self._goal_ns:
            return until_ns, why
        latest_ns = self._latest_ns(rows, oldest_ns, now_ns)
        if until_ns > now_ns:
            return (latest_ns, "goal") if latest_ns < until_ns else (until_ns, why)
        return (latest_ns, "goal") if self._pays_for_goal(latest_ns, now_ns, waited_ns) else (0, "")

    def _turn_or_burst(
        self, requests: int, rows: int, now_ns: int, waited_ns: int, *, is_held: bool
    ) -> tuple[int, str]:
        executions = self.executions
        if executions.count:
            until_ns = executions.turn_end_ns()
            # Who sleeps for less is woken too late.
            if until_ns - now_ns > self._lateness_ns and not self.probes():
                return until_ns, "turn"
        if not (is_held or self._bursts.opens()):
            return 0, ""
        hold_ns = self._burst_ns(requests, executions.turn_ns(rows), waited_ns)
        if hold_ns:
            return now_ns + hold_ns, "burst"
        self._bursts.note_none()
        return 0, ""

    def _burst_ns(self, requests: int, turn_ns: float, waited_ns: int) -> int:
        """Return for how long the next request is waited for; remembered for a while, for it takes a while."""
        if self.executions.ended_count >= self._memo_end or len(self._memo) >= _MEMO_LIMIT:
            self._memo_end = self.executions.ended_count + _FRESH_COUNT
            self._memo.clear()
        key = requests.bit_length(), int(turn_ns).bit_length(), bin_of(max(0, waited_ns)) // 2
        hold_ns = self._memo.get(key)
        if hold_ns is None:
            hold_ns = self.arrivals.best_hold_ns(max(0, waited_ns), requests, turn_ns, self._lateness_ns)
            self._memo[key] = hold_ns
        return hold_ns

    def _latest_ns(self, rows: int, oldest_ns: int, now_ns: int) -> int:
        """Return when a batch must go whose oldest request is to be answered within the goal.

        The batch counts with the rows that will have come by then.
        """
        latency = self.executions.latency
        tail = max(1.0, latency.tail_ratio) * self.executions.parallelism.slowed(self.executions.count)
        answer_ns = oldest_ns + self._goal_ns
        slack_ns = max(0.0, answer_ns - now_ns - tail * latency.duration_ns(rows))
        grown = min(self._max_rows, rows + 1 + int(slack_ns / max(1.0, self.arrivals.mean_gap_ns)))
        return int(answer_ns - tail * latency.duration_ns(grown))

    def _pays_for_goal(self, latest_ns: int, now_ns: int, waited_ns: int) -> bool:
        """Tell whether another request is likely by then, and saves an execution something worth the while."""
        latency = self.executions.latency
        if latest_ns <= now_ns or latency.fixed_ns < _SAVING * latency.duration_ns(1):
            return False
        return self.arrivals.probability_within(waited_ns, latest_ns - now_ns) >= _LIKELY
