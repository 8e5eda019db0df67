"""What a search asks: which points to measure first, and what the rest would give."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

from naiad.config.forms.json_form import config_from_json
from naiad.config.model_config_pb2 import ModelConfig
from naiad.tools.analyze.point_measurement import Measured, Prediction
from naiad.tools.analyze.simulation.capacity import Capacity, capacity
from naiad.tools.analyze.simulation.fit import fit
from naiad.tools.analyze.simulation.fitted import Fitted, predict
from naiad.tools.analyze.space import Point, Space, Variant

_MAX_CONCURRENCY = 128
_REFIT_GROWTH = 1.3
"""A fit takes seconds: it is made again when there are this many times more measurements."""


class LearnedPredictor:
    """Predicts points of a space from costs that are fitted to measured points."""

    def __init__(
        self,
        configs: Mapping[str, ModelConfig],
        cores: float,
        *,
        processes: int = 1,
        simulate_all: Callable[[Sequence[Point], Fitted], Awaitable[list[Prediction | None]]] | None = None,
    ) -> None:
        """`configs` are the complete configurations of all models, members of ensembles included.

        `processes`: server processes. `simulate_all` predicts several points at the same time.
        """
        self._simulate_all = simulate_all
        self._configs = configs
        self._cores = cores
        self._processes = processes
        self._fitted: Fitted | None = None
        self._fitted_count = 0
        self._known: dict[str, Prediction | None] = {}
        """What the present fit predicts, by the key of the point."""

    def plan(self, space: Space, budget: int) -> Sequence[Point]:
        """Return at most `budget` points: no queue and saturation first, then each field at its greatest value."""
        points: list[Point] = []
        for point in self._wanted(space):
            if len(points) >= budget:
                break
            if all(point.key != each.key for each in points):
                points.append(point)
        return points

    def _wanted(self, space: Space) -> Iterator[Point]:
        defaults = {model: variants[0] for model, variants in space.variants.items()}
        batch = space.batch_sizes[0]
        if not space.request_rates and not space.concurrencies:
            yield Point(tuple(defaults.values()), 1, batch_size=batch)
        yield self._saturated(space, tuple(defaults.values()), batch)
        for model, variants in space.variants.items():
            for variant in _extremes(variants):
                chosen = tuple(variant if name == model else each for name, each in defaults.items())
                yield self._saturated(space, chosen, batch)
        for size in space.batch_sizes[1:]:
            yield self._saturated(space, tuple(defaults.values()), size)

    def _saturated(self, space: Space, variants: tuple[Variant, ...], batch_size: int) -> Point:
        if space.request_rates:
            return Point(variants, request_rate=max(space.request_rates), batch_size=batch_size)
        if space.concurrencies:
            return Point(variants, max(space.concurrencies), batch_size=batch_size)
        concurrency = max((2 * self._rows_in_execution(each) // batch_size for each in variants), default=2)
        return Point(variants, min(max(2, concurrency), _MAX_CONCURRENCY), batch_size=batch_size)

    def _rows_in_execution(self, variant: Variant) -> int:
        config = config_from_json(variant.config_json) if variant.config_json else self._configs.get(variant.model)
        if config is None:
            return 1
        return max(1, config.max_batch_size) * max(1, sum(each.count for each in config.instance_group))

    def fit(self, measured: Sequence[Measured]) -> None:
        """Take measurements as what predictions start from, once there are enough new ones.

        None that is usable leaves no predictions.
        """
        count = sum(each.repeats for each in measured)
        if self._fitted is not None and count < _REFIT_GROWTH * self._fitted_count:
            return
        self._known.clear()
        self._fitted_count = count
        try:
            self._fitted = fit(measured, self._configs, self._cores, processes=self._processes)
        except ValueError:
            self._fitted = None  # No point has server statistics: the search goes on by measurements alone.

    def capacity(self, point: Point, rate_per_s: float, latency_limit_us: float) -> Capacity | None:
        """Return the least machine that serves a rate with the configuration of `point` within a limit of the p99.

        None where the measurements say nothing about it, and where no number of machines is enough.
        """
        if self._fitted is None:
            return None
        try:
            return capacity(self._fitted, point, rate_per_s, latency_limit_us)
        except ValueError:
            return None  # A model of the point was not measured.

    def predict(self, point: Point) -> Prediction | None:
        """Return what is expected of a point; None where the measurements say nothing about it."""
        if point.key not in self._known:
            self._known[point.key] = None if self._fitted is None else simulated(point, self._fitted)
        return self._known[point.key]

    async def prepare(self, points: Sequence[Point]) -> None:
        """Predict points at the same time, so that `predict` has them at once."""
        if self._simulate_all is None or self._fitted is None:
            return
        unknown = list({point.key: point for point in points if point.key not in self._known}.values())
        predictions = await self._simulate_all(unknown, self._fitted)
        self._known |= {point.key: each for point, each in zip(unknown, predictions, strict=True)}


def simulated(point: Point, fitted: Fitted) -> Prediction | None:
    """Return what the fitted costs give at a point; None if a model of the point was not measured."""
    try:
        return predict(point, fitted)
    except ValueError:
        return None


def _extremes(variants: Sequence[Variant]) -> Iterator[Variant]:
    """Return for each field the variant that has its greatest value, and the smallest values of the other fields."""
    fields = list(dict.fromkeys(field for each in variants for field in each.settings))
    for field in fields:
        values = [each.settings[field] for each in variants if field in each.settings]
        last = values[-1]
        having = [each for each in variants if each.settings.get(field) == last]
        yield having[0]
    if variants:
        yield variants[-1]
