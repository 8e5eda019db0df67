"""The measurements of a search: recorded at once and not made twice; failed variants are skipped."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from naiad.tools.analyze.point_measurement import Instrument, Measured, Prediction
from naiad.tools.analyze.search.configurations import Configuration, configuration_key
from naiad.tools.analyze.search.goal_score import Goals, combine, misses
from naiad.tools.analyze.search.search_checkpoint import SearchCheckpoint
from naiad.tools.analyze.search.search_settings import (
    BESIDE_S,
    MIN_TURNS,
    ProgressCallback,
    SearchProgress,
    SearchSettings,
)
from naiad.tools.analyze.space import Point, Space


class TimeLimitError(Exception):
    """The next measurement would exceed the time limit of the search."""


@dataclass(frozen=True, slots=True)
class PointComparison:
    """Complete turns over the same points."""

    rows: Sequence[Sequence[Measured]]
    """By turn, the measurements of the points in the same order."""

    @property
    def measured(self) -> list[Measured]:
        """The figures of each point, from the turns alone."""
        return [combine(each) for each in zip(*self.rows, strict=True)]


class Survey:
    """What a mode measures with, and what it has measured."""

    def __init__(
        self,
        space: Space,
        goals: Goals,
        instrument: Instrument,
        settings: SearchSettings,
        checkpoint: SearchCheckpoint | None = None,
        progress: ProgressCallback | None = None,
    ) -> None:
        self.space = space
        self.goals = goals
        self.settings = settings
        self.phase = ""
        self.expected = 0
        """Measurements of the present stage with those before it; 0 where that is not known."""
        self.expected_later: Callable[[], int] = int
        """Returns the measurements of the stages after it."""
        self.may_end_early = False
        """The stage may end before `expected` is reached."""
        self.is_comparing = False
        """The time that was kept for the comparison may be used."""
        self.comparison: PointComparison | None = None
        self.predictions: Sequence[Prediction] = ()
        self.estimates: Mapping[str, Measured] = {}
        """What is expected of measured points, by their keys, with what is known of other points."""
        self._instrument = instrument
        self._checkpoint = checkpoint
        self._progress = progress
        self._repeats: dict[str, list[Measured]] = {}
        self._failed: dict[str, str] = {}
        self._made = 0
        self._measuring_s = 0.0
        self._began_s = settings.clock_s()

    @property
    def count(self) -> int:
        """Measurements so far, with repeats and the measurements of the checkpoint."""
        return sum(len(each) for each in self._repeats.values())

    @property
    def measurements(self) -> list[Measured]:
        """All points, repeats combined, in the order in which they were measured first."""
        return [combine(each) for each in self._repeats.values()]

    @property
    def usable(self) -> list[Measured]:
        """The points that have figures, of configurations that did not fail at another load.

        The figures of a compared point are from the turns alone: it may have been chosen for a lucky measurement.
        """
        known = [combine([one for one in each if one.turn] or each) for each in self._repeats.values()]
        return [each for each in known if not each.error and not self.has_failed(each.point.variants)]

    def has_failed(self, configuration: Configuration) -> bool:
        """Whether a measurement of a configuration failed, under any load."""
        return configuration_key(configuration) in self._failed

    def repeats(self, point: Point) -> Sequence[Measured]:
        """Return the single measurements of a point."""
        return self._repeats.get(point.key, ())

    async def measure(self, point: Point) -> Measured:
        """Return the measurement of a point, which is made unless it is known or its configuration failed.

        Raises ServerLostError.
        """
        known = self._repeats.get(point.key)
        return combine(known) if known else await self.repeat(point)

    async def repeat(self, point: Point) -> Measured:
        """Measure a point, once more if it is known; all its measurements combined are returned.

        Raises ServerLostError, and TimeLimitError from the second measurement on.
        """
        failure = self._failed.get(configuration_key(point.variants))
        if failure is not None:
            return Measured(point, error=failure)
        self._report(None)
        measured = self._checkpoint.take(point) if self._checkpoint else None
        if measured is None:
            if self._made and not self.affordable:
                raise TimeLimitError
            measured = await self._make(point, "")
        self._keep(measured, point)
        return combine(self._repeats[point.key])

    async def measure_turn(self, points: Sequence[Point], turn: str, *, is_planned: bool) -> list[Measured]:
        """Measure points one after the other, as one turn of a comparison; return these measurements alone.

        Recorded measurements are taken if the whole turn was recorded. A turn ends with the first point that fails.
        One that `is_planned` does not look at the time limit. Raises ServerLostError and TimeLimitError.
        """
        self._report(None)
        recorded = self._checkpoint.take_turn(points, turn) if self._checkpoint else None
        found: list[Measured] = []
        for index, point in enumerate(points):
            if recorded is None and not is_planned and not self.affordable:
                raise TimeLimitError
            measured = recorded[index] if recorded else await self._make(point, turn)
            found.append(measured)
            self._keep(measured, point)
            if measured.error:
                break
        return found

    async def _make(self, point: Point, turn: str) -> Measured:
        began_s = self.settings.clock_s()
        measured = replace(await self._instrument.measure(point, self.settings.seconds), point=point, turn=turn)
        self._measuring_s += self.settings.clock_s() - began_s
        self._made += 1
        if self._checkpoint:
            self._checkpoint.append(measured)
        return measured

    def _keep(self, measured: Measured, point: Point) -> None:
        if measured.error:
            self._failed[configuration_key(point.variants)] = measured.error
        self._repeats.setdefault(point.key, []).append(replace(measured, point=point))
        self._report(measured)

    @property
    def affordable(self) -> int:
        """Further measurements that fit into the time limit, less those that are kept for the comparison.

        Each is expected to take the mean time so far, with the predictions between measurements.
        """
        limit_s = self.settings.time_limit_s
        if not limit_s:
            return sys.maxsize
        spent_s = self.settings.clock_s() - self._began_s
        mean_s = max(self._mean_s, self.settings.seconds)
        kept = 0 if self.is_comparing else _kept_count(int(limit_s / mean_s), self.settings.top)
        return max(0, int((limit_s - spent_s) / mean_s) - kept)

    @property
    def _mean_s(self) -> float:
        """Time of a measurement so far; while candidates are looked for, with the predictions between them."""
        if not self._made:
            return self.settings.seconds + BESIDE_S
        if self.is_comparing:
            return self._measuring_s / self._made
        return (self.settings.clock_s() - self._began_s) / self._made

    async def walk(self, points: Sequence[Point], stops: "Callable[[Sequence[Measured]], bool]") -> list[Measured]:
        """Measure points in order until one fails or `stops` returns true for what has been measured."""
        found: list[Measured] = []
        for point in points:
            measured = await self.measure(point)
            if measured.error:
                break
            found.append(measured)
            if stops(found):
                break
        return found

    def meets(self, measured: Measured) -> bool:
        """Whether a measurement has figures, and these are within the constraints."""
        return not measured.error and not misses(self.goals, measured)

    def enter(self, phase: str) -> None:
        """Report that another phase begins."""
        self.phase = phase
        self._report(None)

    def _report(self, latest: Measured | None) -> None:
        if not self._progress:
            return
        stage = min(max(0, self.expected - self.count), self.affordable)
        later = self.expected_later()
        left = stage + later
        recorded = self._checkpoint.waiting if self._checkpoint else 0
        # Nothing is predicted between the measurements of a comparison.
        later_s = self._measuring_s / self._made if self._made else self._mean_s
        expected_s = stage * self._mean_s + later * later_s
        # While it is not known how long the stage is, no time is shown.
        remaining_s = expected_s * max(0, left - recorded) / left if self.expected and left else 0.0
        self._progress(
            SearchProgress(self.phase, self.count, self.count + left, remaining_s, latest, self.may_end_early)
        )


def _kept_count(fitting: int, top: int) -> int:
    """Return the measurements that are kept for the comparison, of those that fit into the time limit.

    The best and the configuration of the repository are measured in turns. Where little fits, fewer are compared.
    """
    return min(MIN_TURNS * (top + 1), max(2 * MIN_TURNS, fitting // 2))
