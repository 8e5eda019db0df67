from typing import Any

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.adaptive_state import AdaptiveState
from naiad.scheduler.adaptive import AdaptiveScheduler
from naiad.server.publication import Publication
from naiad.telemetry.metrics import Registry
from naiad.telemetry.statistics import ModelStatistics


class Served:
    instances = ()
    pending_count = 2
    in_flight_count = 5
    load_duration_ns = 1_500_000_000
    adaptive_state: AdaptiveState | None = None

    def __init__(self, name: str, version: str, **tags: str) -> None:
        self.name, self.version = name, version
        self.statistics = ModelStatistics(name, version)
        self.config = ModelConfig(name=name, metric_tags=tags)


class Engine:
    def __init__(self) -> None:
        self.ready: Any = None

    def publish(self, ready: Any) -> None:
        self.ready = ready


def test_metrics_and_engine_follow_the_ready_versions() -> None:
    engine, registry = Engine(), Registry()
    publication = Publication(engine, registry)  # type: ignore[arg-type]
    first, second, replacement = Served("a", "1", team="x"), Served("b", "1"), Served("b", "1")

    publication.publish({"a": {1: first}, "b": {1: second}})  # type: ignore[dict-item]
    text = registry.render().decode()
    assert 'nv_inference_pending_request_count{model="a",version="1",team="x"} 2' in text
    assert 'naiad_inference_executing_request_count{model="b",version="1"} 3' in text
    assert 'nv_model_load_duration_secs{model="b",version="1"} 1.5' in text

    ready = {"b": {1: replacement}}
    publication.publish(ready)  # type: ignore[arg-type]
    assert engine.ready == ready
    text = registry.render().decode()
    assert 'model="a"' not in text
    assert text.count('nv_inference_pending_request_count{model="b",version="1"}') == 1


def test_only_models_whose_batcher_adapts_have_its_metrics() -> None:
    registry = Registry()
    publication = Publication(Engine(), registry)  # type: ignore[arg-type]
    adaptive, other = Served("a", "1", team="x"), Served("b", "1")
    adaptive.adaptive_state = AdaptiveScheduler(max_batch_size=4).state()
    publication.publish({"a": {1: adaptive}, "b": {1: other}})  # type: ignore[dict-item]
    text = registry.render().decode()
    assert 'naiad_adaptive_release_total{model="a",version="1",team="x",decision="no_gain"} 0' in text
    assert 'naiad_adaptive_parallelism{model="a",version="1",team="x"} 1' in text
    assert not [line for line in text.splitlines() if line.startswith("naiad_adaptive") and 'model="b"' in line]
