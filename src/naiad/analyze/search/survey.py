"""The measurements of a search: recorded at once and not made twice; failed variants are skipped."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from naiad.analyze.measurement import Instrument, Measured, Prediction
from naiad.analyze.search.checkpoint import Checkpoint
from naiad.analyze.search.configurations import Configuration, configuration_key
from naiad.analyze.search.goal_score import Goals, combine, misses
from naiad.analyze.search.settings import ProgressCallback, SearchProgress, SearchSettings
from naiad.analyze.space import Point, Space


class TimeLimitError(Exception):
    """The next measurement would exceed the time limit of the search."""


class Survey:
    """What a mode measures with, and what it has measured."""

    def __init__(
        self,
        space: Space,
        goals: Goals,
        instrument: Instrument,
        settings: SearchSettings,
        checkpoint: Checkpoint | None = None,
        progress: ProgressCallback | None = None,
    ) -> None:
        self.space = space
        self.goals = goals
        self.settings = settings
        self.phase = ""
        self.expected = 0
        self.predictions: Sequence[Prediction] = ()
        self.estimates: Mapping[str, Measured] = {}
        """What is expected of measured points, by their keys, with what is known of other points."""
        self._instrument = instrument
        self._checkpoint = checkpoint
        self._progress = progress
        self._repeats: dict[str, list[Measured]] = {}
        self._failed: dict[str, str] = {}
        self._spent_s = 0.0
        self._made = 0
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
        """The points that have figures, of configurations that did not fail at another load."""
        return [each for each in self.measurements if not each.error and not self.has_failed(each.point.variants)]

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
            measured = await self._instrument.measure(point, self.settings.seconds)
            self._spent_s += measured.duration_s or self.settings.seconds
            self._made += 1
            if self._checkpoint:
                self._checkpoint.append(measured)
        if measured.error:
            self._failed[configuration_key(point.variants)] = measured.error
        self._repeats.setdefault(point.key, []).append(replace(measured, point=point))
        self._report(measured)
        return combine(self._repeats[point.key])

    @property
    def affordable(self) -> int:
        """Further measurements that fit into the time limit.

        Each is expected to take the mean time so far, with the predictions between measurements.
        """
        limit_s = self.settings.time_limit_s
        if not limit_s:
            return sys.maxsize
        spent_s = self.settings.clock_s() - self._began_s
        mean_s = max(spent_s / self._made if self._made else 0.0, self.settings.seconds)
        return max(0, int((limit_s - spent_s) / mean_s))

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
        if self._progress:
            left = min(max(0, self.expected - self.count), self.affordable)
            mean_s = self._spent_s / self._made if self._made else self.settings.seconds
            self._progress(SearchProgress(self.phase, self.count, self.count + left, left * mean_s, latest))
