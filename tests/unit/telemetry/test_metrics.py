"""The exposition, read back by Prometheus' own parser."""

import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

import naiad
from naiad.core.batch import Batch
from naiad.core.errors import FailureReason
from naiad.core.request import InferRequest, RequestHeader
from naiad.core.response import InferResponse, ResponseHeader
from naiad.options.network.endpoints import MetricsOptions
from naiad.telemetry.metrics.exposition import format_labels
from naiad.telemetry.metrics.metrics import Registry
from naiad.telemetry.metrics.model_metrics import ModelMetricSource
from naiad.telemetry.process_resources import CpuMeter, read_memory, read_process
from naiad.telemetry.statistics.model_statistics import ModelStatistics

US = 1000


def families(registry):
    return {family.name: family for family in text_string_to_metric_families(registry.render().decode())}


def samples(registry):
    """(name, sorted labels) to value; fails for a duplicate series."""
    values = {}
    text = registry.render().decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            # The parser gives every counter a `_total`; Triton's have none.
            name = sample.name if sample.name in text else sample.name.removesuffix("_total")
            key = (name, *sorted(sample.labels.items()))
            assert key not in values
            values[key] = sample.value
    return values


def of_model(values, name, **labels):
    return values[(name, *sorted({"model": "m", "version": "1", **labels}.items()))]


def executed_statistics(end_ns=10_000 * US, rows=3):
    statistics = ModelStatistics("m", "1")
    request = InferRequest(RequestHeader(model_name="m"), (), lambda request, response: None, arrival_ns=999)
    request.batch_size = rows
    batch = Batch([request], rows, "shape")
    batch.exec_start_ns = 2_000 * US
    batch.compute_start_ns = 2_150 * US
    batch.compute_end_ns = 9_000 * US
    batch.exec_end_ns = 10_000 * US
    statistics.record_batch(batch, [InferResponse(ResponseHeader("m", "1", ()))], end_ns)
    statistics.record_dropped(request, FailureReason.REJECTED, end_ns)
    return statistics


def registry_of(statistics=None, options=None, **settings):
    registry = Registry(options or MetricsOptions(settings=settings))
    if statistics is not None:
        registry.add_model(
            ModelMetricSource(statistics, pending=lambda: 5, executing=lambda: 2, load_duration_s=0.25)
        )
    return registry


def test_triton_metrics_have_names_labels_and_meanings():
    values = samples(registry_of(executed_statistics()))
    assert of_model(values, "nv_inference_request_success") == 1
    assert of_model(values, "nv_inference_request_failure", reason="REJECTED") == 1
    for reason in ("CANCELED", "BACKEND", "OTHER"):
        assert of_model(values, "nv_inference_request_failure", reason=reason) == 0
    assert of_model(values, "nv_inference_count") == 3
    assert of_model(values, "nv_inference_exec_count") == 1
    assert of_model(values, "nv_inference_request_duration_us") == 9999, "whole microseconds"
    assert of_model(values, "nv_inference_queue_duration_us") == 1999
    assert of_model(values, "nv_inference_compute_input_duration_us") == 150
    assert of_model(values, "nv_inference_compute_infer_duration_us") == 6850
    assert of_model(values, "nv_inference_compute_output_duration_us") == 1000
    assert of_model(values, "nv_inference_pending_request_count") == 5
    assert of_model(values, "nv_model_load_duration_secs") == 0.25
    assert of_model(values, "naiad_inference_executing_request_count") == 2


def test_age_of_the_oldest_request():
    registry, statistics = registry_of(None), executed_statistics()
    arrivals = iter((time.monotonic_ns() - 2 * 10**9, 0))
    registry.add_model(
        ModelMetricSource(statistics, pending=lambda: 1, executing=lambda: 0, oldest_ns=lambda: next(arrivals))
    )
    assert 2 <= of_model(samples(registry), "naiad_queue_oldest_age_seconds") < 60
    assert of_model(samples(registry), "naiad_queue_oldest_age_seconds") == 0


def test_series_exist_before_the_first_request():
    values = samples(registry_of(ModelStatistics("m", "1")))
    assert of_model(values, "nv_inference_request_success") == 0
    assert of_model(values, "nv_inference_request_failure", reason="OTHER") == 0
    for reason in ("full", "preferred", "delay", "shape", "priority", "idle"):
        assert of_model(values, "naiad_batch_release_total", reason=reason) == 0


def test_default_histograms_agree_with_counters():
    values = samples(registry_of(executed_statistics()))
    name = "naiad_inference_request_duration_seconds"
    assert of_model(values, f"{name}_bucket", le="0.005") == 0
    assert of_model(values, f"{name}_bucket", le="0.01") == 1
    assert of_model(values, f"{name}_bucket", le="+Inf") == of_model(values, f"{name}_count") == 1
    assert of_model(values, f"{name}_sum") == pytest.approx(9_999_001e-9)
    for latency in ("first_response", "queue", "compute_input", "compute_infer", "compute_output"):
        assert of_model(values, f"naiad_inference_{latency}_duration_seconds_count") == 1
    assert of_model(values, "naiad_inference_batch_size_bucket", le="2") == 0
    assert of_model(values, "naiad_inference_batch_size_bucket", le="4") == 1
    assert of_model(values, "naiad_inference_batch_size_sum") == 3
    assert of_model(values, "naiad_batch_release_total", reason="shape") == 1


def test_first_responses_of_ordinary_models_are_their_latencies():
    values = samples(registry_of(executed_statistics(), histogram_latencies="true"))
    name = "nv_inference_first_response_histogram_ms"
    assert [of_model(values, f"{name}_bucket", le=bound) for bound in ("100", "500", "+Inf")] == [1, 1, 1]
    assert of_model(values, f"{name}_sum") == 9
    assert of_model(values, f"{name}_count") == 1


def test_types_and_help_are_given_once():
    text = registry_of(executed_statistics()).render().decode()
    types = [line.split()[2:] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len({name for name, _ in types}) == len(types)
    assert ["nv_inference_request_success", "counter"] in types
    assert ["nv_inference_pending_request_count", "gauge"] in types
    assert ["naiad_inference_queue_duration_seconds", "histogram"] in types
    assert "# HELP nv_inference_request_success Number of successful inference requests, all batch sizes\n" in text


def test_switches_of_metrics_config():
    names = families(registry_of(executed_statistics(), counter_latencies="false", histogram_latencies="false"))
    assert "nv_inference_request_duration_us" not in names
    assert "naiad_inference_request_duration_seconds" not in names
    assert "nv_inference_request_success" in names


def test_summaries_are_exact_over_the_last_minute():
    statistics = executed_statistics(end_ns=time.monotonic_ns())
    registry = Registry(MetricsOptions(settings={"summary_latencies": "true", "summary_quantiles": "0.5:0.05,1:0"}))
    registry.add_model(ModelMetricSource(statistics, pending=lambda: 0, executing=lambda: 0))
    assert (
        samples(registry)[
            ("nv_inference_compute_infer_summary_us", ("model", "m"), ("quantile", "0.5"), ("version", "1"))
        ]
        != samples(registry)[("nv_inference_compute_infer_summary_us_sum", ("model", "m"), ("version", "1"))]
    ), "samples are kept from the moment the model is shown"
    for infer_us in (10, 20, 30):
        request = InferRequest(RequestHeader(model_name="m"), (), lambda request, response: None)
        batch = Batch([request], 1)
        batch.compute_end_ns = batch.exec_end_ns = infer_us * US
        answer = InferResponse(ResponseHeader("m", "1", ()))
        statistics.record_batch(batch, [answer], time.monotonic_ns())
        # Ended long ago: beyond the window.
        batch.compute_end_ns = batch.exec_end_ns = 10**6 * US
        statistics.record_batch(batch, [answer], time.monotonic_ns() - 61 * 10**9)
    values = samples(registry)
    name = "nv_inference_compute_infer_summary_us"
    assert of_model(values, name, quantile="0.5") == 20
    assert of_model(values, name, quantile="1") == 30
    assert of_model(values, f"{name}_count") == 7


def test_summaries_of_cached_model_separate_hits_and_misses():
    statistics = ModelStatistics("m", "1")
    registry = Registry(MetricsOptions(settings={"summary_latencies": "true", "summary_quantiles": "0.5:0.05"}))
    registry.add_model(ModelMetricSource(statistics, pending=lambda: 0, executing=lambda: 0, is_cached=True))
    now_ns = time.monotonic_ns()
    for lookup_us in (10, 20, 30):
        request = InferRequest(RequestHeader(model_name="m"), (), lambda request, response: None, arrival_ns=now_ns)
        statistics.record_cache_hit(request, lookup_us * US, now_ns + 40 * US)
    statistics.record_cache_miss(7 * US)
    values = samples(registry)
    assert of_model(values, "nv_cache_hit_summary_per_model", quantile="0.5") == 20
    assert of_model(values, "nv_cache_hit_summary_per_model_count") == 3
    assert of_model(values, "nv_cache_hit_summary_per_model_sum") == 60
    assert of_model(values, "nv_cache_miss_summary_per_model", quantile="0.5") == 7
    assert of_model(values, "nv_cache_miss_summary_per_model_count") == 1
    # A hit is a request with zero queue time and no compute time.
    assert of_model(values, "nv_inference_request_summary_us", quantile="0.5") == 40
    assert of_model(values, "nv_inference_queue_summary_us", quantile="0.5") == 0
    assert of_model(values, "nv_inference_queue_summary_us_count") == 3
    assert of_model(values, "nv_inference_compute_infer_summary_us_count") == 0


def test_uncached_models_have_no_cache_summaries():
    names = families(registry_of(executed_statistics(), summary_latencies="true"))
    assert names["nv_inference_request_summary_us"].samples
    assert not [family.samples for name, family in names.items() if name.startswith("nv_cache") and family.samples]
    # Triton calls the summaries of the compute times cumulative.
    assert names["nv_inference_queue_summary_us"].documentation.startswith("Summary of inference queuing duration")
    documentation = names["nv_inference_compute_output_summary_us"].documentation
    assert documentation.startswith("Cumulative inference compute output duration in microseconds")


def test_odd_names_are_escaped():
    statistics = ModelStatistics('a"b\\c\n%s', "1")
    registry = Registry()
    registry.add_model(ModelMetricSource(statistics, pending=lambda: 1, executing=lambda: 0, tags={"team": "vision"}))
    key = ("nv_inference_pending_request_count", ("_team", "vision"), ("model", 'a"b\\c\n%s'), ("version", "1"))
    assert samples(registry)[key] == 1


def test_reloaded_version_replaces_old_one():
    old, new = ModelStatistics("m", "1"), executed_statistics()
    registry = registry_of(old)
    registry.add_model(ModelMetricSource(new, pending=lambda: 0, executing=lambda: 0))
    registry.remove_model(old)
    assert of_model(samples(registry), "nv_inference_request_success") == 1
    registry.remove_model(new)
    assert "nv_inference_request_success" not in {key[0] for key in samples(registry)}


def test_gauges_by_callback_and_families_of_others():
    registry = Registry()
    open_connections = [3]
    registry.add_callback("naiad_connections", "gauge", "Open connections", lambda: open_connections[0])
    registry.add_family("restarts_total", "counter", "Restarts", lambda: [({"model": "m"}, 1)])
    shown = ["# TYPE mine_total counter\nmine_total 2", "# TYPE more gauge\nmore 3"]
    registry.add_families(lambda: shown)
    values = samples(registry)
    assert values[("naiad_connections",)] == 3
    assert values[("restarts_total", ("model", "m"))] == 1
    assert (values[("mine_total",)], values[("more",)]) == (2, 3)
    shown.clear()
    assert "more" not in families(registry)


@pytest.mark.parametrize("name", ["nv_inference_count", "mine", "nv_cpu_utilization", "process_open_fds"])
def test_a_name_is_taken_once(name):
    registry = Registry()
    registry.add_callback("mine", "gauge", "", lambda: 0.0)
    assert registry.has_family(name)
    assert not registry.has_family(f"{name}_total")
    with pytest.raises(ValueError, match="exists already"):
        registry.add_family(name, "gauge", "", list)


class TestMachine:
    def test_readings_of_a_made_up_proc(self, tmp_path):
        (tmp_path / "self" / "fd").mkdir(parents=True)
        (tmp_path / "self" / "fd" / "0").touch()
        (tmp_path / "self" / "status").write_text("Name:\tnaiad\nVmRSS:\t  2048 kB\nThreads:\t7\n")
        (tmp_path / "meminfo").write_text("MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable: 400 kB\n")
        usage = read_process(tmp_path)
        assert (usage.resident_bytes, usage.open_fds, usage.threads) == (2048 * 1024, 1, 7)
        memory = read_memory(tmp_path)
        assert (memory.total_bytes, memory.used_bytes) == (1000 * 1024, 600 * 1024)

    def test_cpu_utilization_is_busy_share_since_reading(self, tmp_path):
        stat = tmp_path / "stat"
        stat.write_text("cpu  10 0 10 80 0 0 0 0 0 0\ncpu0 1\n")
        meter = CpuMeter(tmp_path)
        assert meter.read() == pytest.approx(0.2), "since the machine started, for the first"
        stat.write_text("cpu  40 0 40 100 20 0 0 0 0 0\n")
        assert meter.read() == pytest.approx(0.6)
        assert meter.read() == pytest.approx(0.6), "nothing passed, nothing new"

    def test_without_proc_there_is_nothing_to_say(self, tmp_path):
        missing = tmp_path / "none"
        assert (read_process(missing), read_memory(missing), CpuMeter(missing).read()) == (None, None, None)

    def test_server_reports_its_own_metrics(self):
        values = samples(Registry())
        info = [dict(key[1:]) for key in values if key[0] == "naiad_build_info"]
        assert [labels["version"] for labels in info] == [naiad.__version__]
        assert "nv_cpu_utilization" not in {key[0] for key in samples(Registry(MetricsOptions(allow_cpu=False)))}


@pytest.mark.parametrize(("interval_ms", "measured"), [(3_600_000, 1), (0.000001, 3)])
def test_machine_is_measured_once_an_interval(monkeypatch, interval_ms, measured):
    registry = Registry(MetricsOptions(interval_ms=interval_ms))
    readings = []
    monkeypatch.setattr(registry._cpu, "read", lambda: readings.append(1) or 0.5)
    for _ in range(3):
        assert b"nv_cpu_utilization 0.5" in registry.render()
    assert len(readings) == measured


def test_distribution_is_shown_from_first_sample():
    statistics = ModelStatistics("m", "1")
    registry = registry_of(statistics)
    assert "naiad_inference_request_duration_seconds_bucket" not in registry.render().decode()
    assert "naiad_inference_batch_size" not in families(registry)
    request = InferRequest(RequestHeader(model_name="m"), (), lambda request, response: None, arrival_ns=0)
    request.batch_size = 1
    batch = Batch([request], 1, "idle")
    batch.exec_start_ns = batch.compute_start_ns = batch.compute_end_ns = batch.exec_end_ns = 150 * US
    statistics.record_batch(batch, [InferResponse(ResponseHeader("m", "1", ()))], 150 * US)
    values = samples(registry)
    assert of_model(values, "naiad_inference_request_duration_seconds_bucket", le="0.0001") == 0
    assert of_model(values, "naiad_inference_request_duration_seconds_bucket", le="0.0002") == 1
    assert of_model(values, "naiad_inference_batch_size_bucket", le="1") == 1


def test_rendering_gives_way_between_a_few_models():
    registry = Registry()
    for number in range(100):
        registry.add_model(
            ModelMetricSource(ModelStatistics(f"m{number}", "1"), pending=lambda: 0, executing=lambda: 0)
        )
    work = registry.render_in_slices()
    turns = 0
    while True:
        try:
            next(work)
        except StopIteration as end:
            parts = end.value
            break
        turns += 1
    assert turns >= 10
    counts = {line for line in b"".join(parts).decode().splitlines() if line.startswith("nv_inference_count{")}
    assert counts == {f'nv_inference_count{{model="m{number}",version="1"}} 0' for number in range(100)}


def test_versions_of_equal_names_have_namespace_label():
    registry = Registry()
    for namespace in ("/srv/a", "/srv/b"):
        statistics = ModelStatistics("m", "1", namespace=namespace)
        registry.add_model(ModelMetricSource(statistics, pending=lambda: 0, executing=lambda: 0, tags={"team": "x"}))
    registry.remove_model(ModelStatistics("m", "1", namespace="/srv/a"))  # another object: no effect
    shown = [line for line in registry.render().decode().splitlines() if line.startswith("nv_inference_count{")]
    assert shown == [
        'nv_inference_count{_team="x",model="m",namespace="/srv/a",version="1"} 0',
        'nv_inference_count{_team="x",model="m",namespace="/srv/b",version="1"} 0',
    ]
    registry.remove_model(statistics)
    assert b"/srv/b" not in registry.render()


def test_labels_are_sorted_as_triton_sorts_them():
    labels = {"version": "1", "model": "m", "quantile": "0.5", "_team": "x"}
    assert format_labels(labels) == '{_team="x",model="m",version="1",quantile="0.5"}'
    registry = registry_of(ModelStatistics("m", "1"))
    assert 'nv_inference_request_failure{model="m",reason="BACKEND",version="1"} 0' in registry.render().decode()


def test_no_family_is_announced_without_a_sample():
    registry = registry_of()
    registry.add_family("mine", "gauge", "Help", list)
    registry.add_families(lambda: ["", "# HELP yours Help\n# TYPE yours gauge\nyours 1"])
    text = registry.render().decode()
    assert "nv_inference_count" not in text
    assert "mine" not in text
    assert all(line for line in text.splitlines())
    assert families(registry)["yours"].samples
