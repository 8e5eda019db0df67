"""The metrics of rollouts."""

from collections.abc import Iterator

from naiad.core.model import ModelKey, name_of
from naiad.engine.rollout.rollouts import Rollouts
from naiad.engine.rollout.sides import CANARY, STABLE
from naiad.telemetry.metrics.exposition import Row
from naiad.telemetry.metrics.metrics import Registry


def show_rollouts(registry: Registry, rollouts: Rollouts) -> None:
    """Show requests by role, weights, steps, rollbacks and the results of shadow copies."""
    families = _Families(rollouts)
    registry.add_family(
        "naiad_rollout_requests_total",
        "counter",
        "Requests without a version, by the role of the version that a rollout picked",
        families.requests,
    )
    registry.add_family(
        "naiad_rollout_weight_percent", "gauge", "Percentage of the requests without a version", families.weights
    )
    registry.add_family(
        "naiad_rollout_step", "gauge", "Number of the current step of a rollout, 0 without steps", families.steps
    )
    registry.add_family("naiad_rollout_rollbacks_total", "counter", "Rollbacks, by reason", families.rollbacks)
    registry.add_family(
        "naiad_rollout_shadow_total",
        "counter",
        "Shadow copies, by the comparison of their responses with the responses of stable",
        families.shadow,
    )


class _Families:
    """The rows of each family."""

    def __init__(self, rollouts: Rollouts) -> None:
        self._rollouts = rollouts

    def requests(self) -> Iterator[Row]:
        for key, totals in self._rollouts.totals():
            for (role, version, outcome), count in totals.requests.copy().items():
                yield {**_labels(key), "role": role, "version": version, "outcome": outcome}, count

    def weights(self) -> Iterator[Row]:
        for key, state in self._rollouts.states().items():
            rollout = state.rollout
            if rollout is None:
                continue
            yield {**_labels(key), "role": STABLE, "version": str(rollout.stable)}, 100 - rollout.weight
            if rollout.canary is not None:
                yield {**_labels(key), "role": CANARY, "version": str(rollout.canary)}, rollout.weight

    def steps(self) -> Iterator[Row]:
        for key, state in self._rollouts.states().items():
            yield _labels(key), 0 if state.step is None else state.step + 1

    def rollbacks(self) -> Iterator[Row]:
        for key, totals in self._rollouts.totals():
            for reason, count in totals.rollbacks.copy().items():
                yield {**_labels(key), "reason": reason}, count

    def shadow(self) -> Iterator[Row]:
        for key, totals in self._rollouts.totals():
            if any(totals.shadow.values()):
                for result, count in totals.shadow.items():
                    yield {**_labels(key), "result": result}, count


def _labels(key: str) -> dict[str, str]:
    labels = {"model": name_of(key)}
    if isinstance(key, ModelKey):
        labels["namespace"] = key.namespace
    return labels
