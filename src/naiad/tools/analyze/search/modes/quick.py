"""Model Analyzer's `quick`: hill climbing over the dimensions, under a load that saturates each configuration.

In the fast mode a few points around the current one (home) give a slope for each dimension, and the climb takes a
step of up to three values in all dimensions at once. Where some of these points meet the constraints and some do not,
or after a step back, the slow mode measures all direct neighbours and goes to the best.
"""

from collections.abc import Iterator
from itertools import product

from naiad.tools.analyze.point_measurement import Measured
from naiad.tools.analyze.search.best_comparison import best_points
from naiad.tools.analyze.search.configurations import saturating_loads
from naiad.tools.analyze.search.goal_score import gain, miss_share, rank
from naiad.tools.analyze.search.modes.brute import refine_best
from naiad.tools.analyze.search.modes.grid import Coordinate, Grid
from naiad.tools.analyze.search.modes.load_search import sweep
from naiad.tools.analyze.search.survey import Survey

_RADIUS = 3
_MIN_POINTS = 3
_THRESHOLDS = (0.09, 0.3, 1.0)
"""Slopes above which the step is 1, 2 and 3 values."""
_MAX_STEPS = 100


async def quick(survey: Survey) -> None:
    """Climb to the best configuration, then sweep the loads of the best. Raises ServerLostError."""
    await _Climb(survey).run()
    survey.phase = "loads of the best configurations"
    best = [each.point.variants for each in best_points(survey)[: survey.settings.top]]
    for configuration in best:
        await sweep(survey, configuration)
    await refine_best(survey)


class _Climb:
    def __init__(self, survey: Survey) -> None:
        self._survey = survey
        self._grid = Grid(survey.space, survey.settings)
        self._measured: dict[Coordinate, Measured] = {}
        self._visits: dict[Coordinate, int] = {}
        self._is_slow = False

    async def run(self) -> None:
        home = self._grid.first
        came_from: Coordinate | None = None
        for _ in range(_MAX_STEPS):
            self._visits[home] = self._visits.get(home, 0) + 1
            if self._visits[home] > 2:
                return
            self._survey.phase = f"climbing, step {sum(self._visits.values())}"
            here = await self._measure(home)
            if came_from is not None and self._is_worse_off(came_from, here):
                # A step too far: back to the best, with direct neighbours only.
                home, came_from, self._is_slow = self._best(), None, True
                continue
            await self._explore(home)
            if not self._is_slow and self._is_mixed(home):
                self._is_slow = True
                await self._explore(home)
            step = self._best_neighbour(home) if self._is_slow or here is None else self._slope_step(home, here)
            if step == home and not self._is_slow:
                self._is_slow = True
                await self._explore(home)
                step = self._best_neighbour(home)
            if step == home:
                return
            home, came_from = step, home

    async def _measure(self, coordinate: Coordinate) -> Measured | None:
        if coordinate not in self._measured:
            configuration = self._grid.configuration(coordinate)
            if configuration is None:
                return None
            tried = [
                await self._survey.measure(load.of(configuration))
                for load in saturating_loads(self._survey.space, configuration, self._survey.settings)
            ]
            good = [each for each in tried if not each.error]
            if not good:
                return None
            self._measured[coordinate] = max(good, key=lambda each: rank(self._survey.goals, each, good[0]))
        return self._measured[coordinate]

    async def _explore(self, home: Coordinate) -> None:
        """Measure around home: in the slow mode all direct neighbours, else what covers values not seen yet."""
        if self._is_slow:
            for coordinate in self._around(home, 1):
                await self._measure(coordinate)
            return
        around = list(self._around(home, _RADIUS))
        while True:
            known = [each for each in around if each in self._measured]
            wanted = [each for each in around if each not in self._measured and self._unseen(home, known, each)]
            if not wanted and len(known) < min(_MIN_POINTS, len(around)):
                wanted = [each for each in around if each not in self._measured]
            if not wanted:
                return
            chosen = max(wanted, key=lambda each: (self._unseen(home, known, each), -_distance(home, each)))
            if await self._measure(chosen) is None:
                around.remove(chosen)

    def _around(self, home: Coordinate, radius: int) -> Iterator[Coordinate]:
        ranges = [
            range(max(0, index - radius), min(size, index + radius + 1))
            for index, size in zip(home, self._grid.sizes, strict=True)
        ]
        if radius == 1:
            for axis, values in enumerate(ranges):
                for value in values:
                    coordinate = (*home[:axis], value, *home[axis + 1 :])
                    if value != home[axis] and self._grid.configuration(coordinate) is not None:
                        yield coordinate
            return
        for coordinate in product(*ranges):
            if 0 < _distance(home, coordinate) <= radius and self._grid.configuration(coordinate) is not None:
                yield coordinate

    @staticmethod
    def _unseen(home: Coordinate, known: list[Coordinate], coordinate: Coordinate) -> int:
        """Return in how many dimensions a coordinate is the first that differs from home."""
        return sum(
            value != home[axis] and all(each[axis] == home[axis] for each in known)
            for axis, value in enumerate(coordinate)
        )

    def _slope_step(self, home: Coordinate, here: Measured) -> Coordinate:
        known = [each for each in self._around(home, _RADIUS) if each in self._measured]
        step = list(home)
        for axis, size in enumerate(self._grid.sizes):
            offsets = [(each[axis] - home[axis], self._weight(here, self._measured[each])) for each in known]
            reach = sum(abs(offset) for offset, _ in offsets)
            slope = sum(weight * (offset > 0) - weight * (offset < 0) for offset, weight in offsets) / (reach or 1)
            length = sum(abs(slope) > threshold for threshold in _THRESHOLDS)
            step[axis] = min(max(home[axis] + (length if slope > 0 else -length), 0), size - 1)
        coordinate = tuple(step)
        return coordinate if self._grid.configuration(coordinate) is not None else self._best_neighbour(home)

    def _weight(self, here: Measured, there: Measured) -> float:
        """Return how much better a point is than home: by the gain, or by closeness to the constraints."""
        goals = self._survey.goals
        if not self._survey.meets(here):
            return miss_share(goals, here) - miss_share(goals, there)
        return gain(goals, there, here).value

    def _best_neighbour(self, home: Coordinate) -> Coordinate:
        near = [each for each in (home, *self._around(home, _RADIUS)) if each in self._measured]
        return self._greatest(near) if near else home

    def _best(self) -> Coordinate:
        return self._greatest(list(self._measured))

    def _greatest(self, coordinates: list[Coordinate]) -> Coordinate:
        reference = self._measured[coordinates[0]]
        return max(coordinates, key=lambda each: rank(self._survey.goals, self._measured[each], reference))

    def _is_mixed(self, home: Coordinate) -> bool:
        near = [each for each in (home, *self._around(home, _RADIUS)) if each in self._measured]
        return len({self._survey.meets(self._measured[each]) for each in near}) == 2

    def _is_worse_off(self, before: Coordinate, here: Measured | None) -> bool:
        return here is None or (
            before in self._measured and self._survey.meets(self._measured[before]) and not self._survey.meets(here)
        )


def _distance(home: Coordinate, coordinate: Coordinate) -> float:
    return float(sum((a - b) ** 2 for a, b in zip(home, coordinate, strict=True)) ** 0.5)
