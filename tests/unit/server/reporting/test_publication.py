from typing import Any

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.model import AdaptiveState
from naiad.options.network.endpoints import MetricsOptions
from naiad.scheduler.adaptive import AdaptiveScheduler
from naiad.server.reporting.ready_set import ReadySetPublisher
from naiad.telemetry.metrics.metrics import Registry
from naiad.telemetry.metrics.model_metrics import FIRST_RESPONSE_MS
from naiad.telemetry.statistics.model_statistics import ModelStatistics
from naiad.telemetry.statistics.part_statistics import SUCCESS
from support.one_engine import OneEngine


class Served:
    instances = ()
    pending_count = 2
    in_flight_count = 5
    oldest_ns = 0
    load_duration_ns = 1_500_000_000
    adaptive_state: AdaptiveState | None = None

    def __init__(self, name: str, version: str, **tags: str) -> None:
        self.name, self.version = name, version
        self.statistics = ModelStatistics(name, version)
        self.config = ModelConfig(name=name, metric_tags=tags)


class Engine(OneEngine):
    def __init__(self) -> None:
        self.ready: Any = None

    def publish(self, ready: Any, name: str) -> None:
        self.ready = ready


def publish(ready_set: ReadySetPublisher, **models: Served) -> None:
    """Publish version 1 of each model in turn, as the life cycle does."""
    ready: dict[str, dict[int, Any]] = {}
    for name, served in models.items():
        ready = {**ready, name: {1: served}}
        ready_set.publish(ready, name)


def test_metrics_and_engine_follow_the_ready_versions() -> None:
    engine, registry = Engine(), Registry()
    ready_set = ReadySetPublisher(engine, registry)  # type: ignore[arg-type]
    first, second, replacement = Served("a", "1", team="x"), Served("b", "1"), Served("b", "1")

    publish(ready_set, a=first, b=second)
    text = registry.render().decode()
    assert 'nv_inference_pending_request_count{_team="x",model="a",version="1"} 2' in text
    assert 'naiad_inference_executing_request_count{model="b",version="1"} 3' in text
    assert 'nv_model_load_duration_secs{model="b",version="1"} 1.5' in text

    ready = {"b": {1: replacement}}
    ready_set.publish({"b": {1: second}}, "a")  # type: ignore[dict-item]
    ready_set.publish(ready, "b")  # type: ignore[arg-type]
    assert engine.ready == ready
    text = registry.render().decode()
    assert 'model="a"' not in text
    assert text.count('nv_inference_pending_request_count{model="b",version="1"}') == 1


def test_only_models_whose_batcher_adapts_have_its_metrics() -> None:
    registry = Registry()
    ready_set = ReadySetPublisher(Engine(), registry)  # type: ignore[arg-type]
    adaptive, other = Served("a", "1", team="x"), Served("b", "1")
    adaptive.adaptive_state = AdaptiveScheduler(max_batch_size=4).state()
    publish(ready_set, a=adaptive, b=other)
    text = registry.render().decode()
    assert 'naiad_adaptive_release_total{_team="x",decision="no_gain",model="a",version="1"} 0' in text
    assert 'naiad_adaptive_parallelism{_team="x",model="a",version="1"} 1' in text
    assert not [line for line in text.splitlines() if line.startswith("naiad_adaptive") and 'model="b"' in line]


def test_models_have_tritons_histogram_of_first_responses() -> None:
    registry = Registry(MetricsOptions(settings={"histogram_latencies": "true"}))
    ready_set = ReadySetPublisher(Engine(), registry)  # type: ignore[arg-type]
    usual, own, other = Served("usual", "1"), Served("own", "1"), Served("other", "1")
    for served in (usual, own):
        served.config.model_transaction_policy.decoupled = True
    control = own.config.model_metrics.metric_control.add()
    control.metric_identifier.family = FIRST_RESPONSE_MS
    control.histogram_options.buckets.extend([-1, 0.0, 2.5])
    publish(ready_set, usual=usual, own=own, other=other)
    for latency_ms in (2.4, 2.6, 501):
        usual.statistics.responses.record(0, SUCCESS, 0, 1, 2)
        usual.statistics.responses.record_first(int(latency_ms * 1e6))
        own.statistics.responses.record_first(int(latency_ms * 1e6))
    text = registry.render().decode()
    lines = [line.removeprefix(FIRST_RESPONSE_MS) for line in text.splitlines() if line.startswith(FIRST_RESPONSE_MS)]
    others, lines = lines[:7], lines[7:]
    # Newer versions of Triton: also of ordinary models, from the latencies of their requests.
    assert others[0] == '_bucket{model="other",version="1",le="100"} 0'
    assert others[-1] == '_count{model="other",version="1"} 0'
    assert lines == [
        '_bucket{model="own",version="1",le="-1"} 0',
        '_bucket{model="own",version="1",le="0"} 0',
        '_bucket{model="own",version="1",le="2.5"} 1',
        '_bucket{model="own",version="1",le="+Inf"} 3',
        '_sum{model="own",version="1"} 506',
        '_count{model="own",version="1"} 3',
        '_bucket{model="usual",version="1",le="100"} 2',
        '_bucket{model="usual",version="1",le="500"} 2',
        '_bucket{model="usual",version="1",le="2000"} 3',
        '_bucket{model="usual",version="1",le="5000"} 3',
        '_bucket{model="usual",version="1",le="+Inf"} 3',
        '_sum{model="usual",version="1"} 506',
        '_count{model="usual",version="1"} 3',
    ]
    assert 'naiad_inference_first_response_duration_seconds_count{model="usual",version="1"} 3' in text
    assert 'naiad_inference_first_response_duration_seconds_count{model="other"' not in text


def test_only_cached_models_have_cache_metrics() -> None:
    registry = Registry()
    ready_set = ReadySetPublisher(Engine(), registry)  # type: ignore[arg-type]
    cached, other = Served("cached", "1"), Served("other", "1")
    publish(ready_set, other=other)
    assert "\nnv_cache" not in registry.render().decode()
    cached.config.response_cache.enable = True
    publish(ready_set, other=other, cached=cached)
    lines = [line for line in registry.render().decode().splitlines() if line.startswith("nv_cache")]
    assert len(lines) == 4
    assert all('model="cached"' in line for line in lines)
