"""Which points to measure first, so that the costs of all points can be fitted."""

from collections.abc import Iterable, Mapping, Sequence

from naiad.analyze.prediction.configuration import Configured, configured
from naiad.analyze.space import Point
from naiad.config.model_config_pb2 import ModelConfig

MEASURED_SHARE = 0.1
"""Of the grid: the default budget."""
_FEWEST = 2


def plan_measurements(
    points: Sequence[Point], configs: Mapping[str, ModelConfig], cores: float, budget: int = 0
) -> list[Point]:
    """Return at most `budget` of the points to measure for `fit`, the most telling first.

    By default a tenth of the points, and at least two. Every set of files and threads gets a lone request and large
    batches on one instance; then come the most instances, and sizes between. A budget below the number of these sets
    leaves some without a measurement; `predict` raises ValueError for files that were not measured.
    """
    budget = budget or max(_FEWEST, int(MEASURED_SHARE * len(points)))
    queues: dict[object, list[Point]] = {}
    for point in points:
        models = configured(point, configs, cores)
        varied = [models[variant.model] for variant in point.variants]
        queues.setdefault(tuple((each.source, each.threads) for each in varied), []).append(point)
    orders = [_order(group, configs, cores) for _, group in sorted(queues.items(), key=lambda item: -len(item[1]))]
    return list({point.key: point for point in _in_turn(orders)}.values())[:budget]


def _in_turn(orders: Sequence[Sequence[Point]]) -> Iterable[Point]:
    for points in zip(*orders, strict=True):
        yield from points


def _order(points: Sequence[Point], configs: Mapping[str, ModelConfig], cores: float) -> list[Point]:
    """Return the telling points of a group of equal files and threads."""
    sizes = [_Size(point, configured(point, configs, cores)) for point in points]
    fewest = min(size.instances for size in sizes)
    small = [size for size in sizes if size.instances == fewest]
    lone = min(small, key=lambda size: (size.load, size.rows))
    full = max(small, key=lambda size: (size.filled_rows, size.load))
    wide = max(sizes, key=lambda size: (size.instances, size.filled_rows, size.load))
    middle = full.filled_rows**0.5
    half = min(small, key=lambda size: (abs(size.filled_rows - middle), -size.load))
    busy = max(sizes, key=lambda size: (size.load, size.instances))
    return [size.point for size in (lone, full, wide, half, busy)]


class _Size:
    """What of a point decides how telling it is."""

    def __init__(self, point: Point, models: Mapping[str, Configured]) -> None:
        varied = [models[variant.model] for variant in point.variants]
        self.point = point
        self.load = point.request_rate or float(point.concurrency)
        self.instances = sum(each.instance_count for each in varied)
        rows = [
            each.config.max_batch_size if each.config.HasField("dynamic_batching") else point.batch_size
            for each in varied
        ]
        self.rows = max(rows, default=point.batch_size)
        self.filled_rows = min(self.rows, self.load / max(1, self.instances) * point.batch_size)
        """Rows of a batch when everything outstanding is in one."""
