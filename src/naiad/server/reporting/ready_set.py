"""Publishes changes of the set of ready versions to the engine's table and the metrics."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

from naiad.backend.api import Instance
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.environment.ports import Loop
from naiad.engine.engine import Engine
from naiad.engine.serving.served import Served
from naiad.server.reporting.server_metrics import show_adaptive
from naiad.telemetry.metrics.exposition import Row
from naiad.telemetry.metrics.metrics import Registry
from naiad.telemetry.metrics.model_metrics import FIRST_RESPONSE_MS, ModelMetricSource, model_labels

_TURN_TIMEOUT_S = 5.0
"""A loop that is this busy has bigger problems than one request for a version that is being unloaded."""

Ready = Mapping[str, Mapping[int, Served]]


def settle(loop: Loop) -> None:
    """Wait until the loop's current callbacks are over: then no request is about to use the previous set.

    Called on other threads than the loop's.
    """
    over = threading.Event()
    try:
        loop.call_soon_threadsafe(over.set)
    except RuntimeError:
        return  # the loop has ended
    over.wait(_TURN_TIMEOUT_S)


class ReadySetPublisher:
    """Publishes every new set of ready versions. The life cycle calls it, one call at a time."""

    def __init__(self, engine: Engine, registry: Registry) -> None:
        self._engine = engine
        self._registry = registry
        self._ready: Ready = {}
        text = "Workers that were restarted after one died"
        registry.add_family(
            "naiad_worker_restarts_total", "counter", text, lambda: self._instances(lambda each: each.restart_count)
        )
        text = "State of an instance: 0 ready, 1 restarting, 2 down until its next trial, 3 on trial"
        registry.add_family(
            "naiad_worker_state", "gauge", text, lambda: self._instances(lambda each: int(each.state))
        )
        text = "Sequences that have begun and not ended"
        registry.add_family("naiad_live_sequence_count", "gauge", text, self._sequences)
        show_adaptive(registry, self._served)

    def publish(self, ready: Ready, name: str) -> None:
        """Publish the set of versions that are ready now, after a change of one model."""
        serving = {id(served): served for served in ready.get(name, {}).values()}
        shown = {id(served): served for served in self._ready.get(name, {}).values()}
        # New versions first: a replacement takes its place in the metrics without a gap.
        for key, served in serving.items():
            if key not in shown:
                self._add(served)
        for key, served in shown.items():
            if key not in serving:
                self._registry.remove_model(served.statistics)
        self._ready = ready
        self._engine.models.publish(ready, name)

    def _served(self) -> list[Served]:
        return [served for versions in self._ready.values() for served in versions.values()]

    def _sequences(self) -> Iterator[Row]:
        for served in self._served():
            if served.config.HasField("sequence_batching"):
                yield model_labels(served.statistics), served.live_sequence_count

    def _instances(self, value_of: Callable[[Instance], int]) -> Iterator[Row]:
        for served in self._served():
            for number, instance in enumerate(served.instances):
                yield {**model_labels(served.statistics), "instance": f"{served.name}_{number}"}, value_of(instance)

    def _add(self, served: Served) -> None:
        config = served.config
        source = ModelMetricSource(
            served.statistics,
            pending=lambda: served.pending_count,
            executing=lambda: served.in_flight_count - served.pending_count,
            oldest_ns=lambda: served.oldest_ns,
            load_duration_s=served.load_duration_ns / 1e9,
            tags=dict(config.metric_tags),
            is_decoupled=config.model_transaction_policy.decoupled,
            is_cached=config.response_cache.enable,
            first_response_bounds_ms=_buckets(config, FIRST_RESPONSE_MS),
        )
        self._registry.add_model(source)


def _buckets(config: ModelConfig, family: str) -> Sequence[float]:
    """Return the histogram buckets in a configuration; empty for the default."""
    for control in config.model_metrics.metric_control:
        if control.metric_identifier.family == family:
            return tuple(control.histogram_options.buckets)
    return ()
