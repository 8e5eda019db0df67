import pytest

from naiad.telemetry.metrics import exposition
from naiad.telemetry.metrics import exposition as exposition_sum
from naiad.telemetry.metrics.metrics import Registry
from naiad.telemetry.metrics.model_metrics import ModelMetricSource
from naiad.telemetry.statistics.model_statistics import ModelStatistics


def text(*lines: str) -> bytes:
    return ("\n".join(lines) + "\n").encode()


def counter(value: object, labels: str = '{model="m"}') -> bytes:
    return text("# HELP c_total Some help", "# TYPE c_total counter", f"c_total{labels} {value}")


def added(*texts: bytes) -> bytes:
    return exposition_sum.add([exposition_sum.parse(one) for one in texts]).render()


def test_counters_add_up_and_keep_help_and_type() -> None:
    assert added(counter(2), counter(3)) == counter(5)


def test_integers_stay_exact_beyond_float_precision() -> None:
    assert added(counter(2**60), counter(1)) == counter(2**60 + 1)


def test_series_of_one_side_are_kept() -> None:
    total = added(counter(2), counter(3, '{model="n"}'))
    assert total == text(
        "# HELP c_total Some help", "# TYPE c_total counter", 'c_total{model="m"} 2', 'c_total{model="n"} 3'
    )


def test_histograms_add_up_bucket_by_bucket() -> None:
    def histogram(*values: object) -> bytes:
        names = ('h_bucket{le="1"}', 'h_bucket{le="+Inf"}', "h_sum", "h_count")
        lines = [f"{name} {value}" for name, value in zip(names, values, strict=True)]
        return text("# HELP h Help", "# TYPE h histogram", *lines)

    assert added(histogram(1, 2, 3.5, 2), histogram(10, 20, 0.25, 20)) == histogram(11, 22, 3.75, 22)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("process_open_fds", 7),
        ("nv_inference_pending_request_count", 7),
        ("nv_cpu_utilization", 4),
        ("nv_gpu_memory_total_bytes", 4),
        ("nv_model_load_duration_secs", 4),
        ("naiad_build_info", 4),
    ],
)
def test_gauges_add_up_except_machine_and_model(name: str, expected: int) -> None:
    def gauge(value: int) -> bytes:
        return text(f"# HELP {name} Help", f"# TYPE {name} gauge", f"{name} {value}")

    assert added(gauge(3), gauge(4)) == gauge(expected)
    assert added(gauge(4), gauge(3)) == gauge(expected)


def test_summary_counts_add_and_largest_quantile_stays() -> None:
    def summary(count: int, total: int, quantile: object) -> bytes:
        opening = ("# HELP s Help", "# TYPE s summary")
        return text(*opening, f"s_count {count}", f"s_sum {total}", f's{{quantile="0.5"}} {quantile}')

    assert added(summary(1, 10, 10), summary(2, 60, 30)) == summary(3, 70, 30)
    assert added(summary(0, 0, "NaN"), summary(2, 60, 30)) == summary(2, 60, 30)
    assert added(summary(2, 60, 30), summary(0, 0, "NaN")) == summary(2, 60, 30)
    assert added(summary(0, 0, "NaN"), summary(0, 0, "NaN")) == summary(0, 0, "NaN")


def test_spaces_in_labels_are_no_border() -> None:
    labels = '{model="a b",reason="x # y"}'
    assert added(counter(1, labels), counter(1, labels)) == counter(2, labels)


def test_only_what_grows_is_left_of_the_dead() -> None:
    gauge = text("# HELP g Help", "# TYPE g gauge", "g 5")
    opening = ("# HELP s Help", "# TYPE s summary")
    summary = text(*opening, "s_count 1", "s_sum 2", 's{quantile="0.5"} 9')
    left = exposition_sum.cumulative(exposition_sum.parse(counter(2) + gauge + summary))
    assert left.render() == counter(2) + text(*opening, "s_count 1", "s_sum 2")


def test_counters_of_ended_processes_are_added() -> None:
    shown = exposition_sum.parse(counter(2))
    left = exposition_sum.parse(counter(40) + text("# HELP x Help", "# TYPE x counter", "x 1"))
    left.samples["c_total"]['c_total{model="unloaded"}'] = 7
    assert exposition_sum.add_exited(shown, left).render() == counter(42)


def test_model_series_are_removed_at_any_label_position() -> None:
    lines = ['c{model="m",version="1"} 1', 'c{a="b",model="m"} 1', 'c{model="mm"} 2', 'c{submodel="m"} 3', "c 4"]
    one = exposition_sum.parse(text("# HELP c Help", "# TYPE c counter", *lines))
    assert exposition_sum.without_models(one, {("", "m")}).samples == {
        "c": {'c{model="mm"}': 2, 'c{submodel="m"}': 3, "c": 4}
    }


def test_series_are_removed_by_namespace() -> None:
    lines = ['c{model="m",version="1",namespace="/a"} 1', 'c{model="m",version="1",namespace="/b"} 2']
    one = exposition_sum.parse(text("# HELP c Help", "# TYPE c counter", *lines))
    assert list(exposition_sum.without_models(one, {("/a", "m")}).samples["c"].values()) == [2]


def test_a_real_exposition_survives_unchanged() -> None:
    registry = Registry()
    registry.add_model(
        ModelMetricSource(ModelStatistics("m", "1"), pending=lambda: 1, executing=lambda: 0, load_duration_s=0.5)
    )
    labels = exposition.format_labels({"path": "a\\b\nc"})
    registry.add_families(
        lambda: [exposition.format_family("custom", "counter", 'a "help" text\nwith lines', [f"custom{labels} 1.5"])]
    )
    rendered = registry.render()
    assert exposition_sum.parse(rendered).render() == rendered
