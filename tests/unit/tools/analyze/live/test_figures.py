"""Figures, resources and checks of served configurations."""

import os
import shutil
from pathlib import Path

import pytest

from naiad.tools.analyze.live.configurations import has_settings
from naiad.tools.analyze.live.metric_figures import figures_of
from naiad.tools.analyze.live.server_resources import MeasuredUsage, ResourceMeter, mean_interval, read_usage
from naiad.tools.analyze.live.undo_journal import Original, read_journal, write_journal
from naiad.tools.measure.result import (
    ClientFigures,
    GeneratorFigures,
    Interval,
    Latency,
    MetricFigure,
    Row,
    ServerFigures,
)


def row() -> Row:
    def latency(mean: float) -> Latency:
        return Latency(Interval(mean, mean - 100, mean + 100), 1, 1, 1, {99: Interval(3000, 2000, 4000)})

    return Row(
        mode="concurrency",
        value=4,
        model="m",
        batch_size=8,
        duration_s=1,
        request_count=100,
        throughput=Interval(100, 90, 110),
        goodput=Interval(100, 90, 110),
        response_throughput=100,
        sequences_per_s=0,
        latency=latency(2000),
        service=latency(2000),
        first_response=None,
        between_responses=None,
        client=ClientFigures(10, 20, 500),
        server=ServerFigures("m", "1", 1, 1, 1, 0, 100, 200, 300, 400),
        generator=GeneratorFigures(1, 0.1, 1000, 1, 1, 0, "server"),
        errors=(),
        is_stable=True,
        verdict="",
        metrics=[
            MetricFigure("nv_gpu_memory_used_bytes", 'gpu_uuid="a"', (0, 1), (1e6, 3e6)),
            MetricFigure("nv_gpu_memory_used_bytes", 'gpu_uuid="b"', (0, 1), (1e6, 1e6)),
            MetricFigure("nv_gpu_utilization", 'gpu_uuid="a"', (0, 1), (0.5, 0.5)),
            MetricFigure("nv_gpu_utilization", 'gpu_uuid="b"', (0, 1), (1.0, 1.0)),
            MetricFigure("nv_cpu_memory_used_bytes", "", (0,), (7e6,)),
            MetricFigure("process_resident_memory_bytes", "", (0,), (5e6,)),
        ],
    )


def test_metrics_have_model_analyzers_units():
    found = figures_of(row())
    assert found["perf_throughput"] == Interval(800, 720, 880)
    assert found["perf_latency_avg"].value == 2
    assert found["perf_latency_avg"].high == pytest.approx(2.1)
    assert found["perf_latency_p99"] == Interval(3, 2, 4)
    parts = {name: each.value for name, each in found.items() if name.startswith(("perf_client", "perf_server"))}
    assert parts == {
        "perf_client_send_recv": 0.03,
        "perf_client_response_wait": 1.5,
        "perf_server_queue": 0.1,
        "perf_server_compute_input": 0.2,
        "perf_server_compute_infer": 0.3,
        "perf_server_compute_output": 0.4,
    }


def test_gpus_are_added_up_and_averaged():
    found = figures_of(row())
    assert found["gpu_used_memory"].value == 3
    assert found["gpu_utilization"].value == 75
    assert found["cpu_used_ram"].value == 5


def test_usage_includes_child_processes(tmp_path: Path):
    for pid, parent, ticks, pages in ((10, 1, 100, 1), (11, 10, 200, 2), (12, 11, 300, 4), (13, 1, 7, 8)):
        (tmp_path / str(pid)).mkdir()
        fields = ["S", parent, *[0] * 9, ticks, 0, *[0] * 8, pages]
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a (b) c) " + " ".join(map(str, fields)))
    usage = read_usage(10, tmp_path)
    assert usage is not None
    assert usage.cpu_s == pytest.approx(600 / os.sysconf("SC_CLK_TCK"))
    assert usage.resident_bytes == 7 * os.sysconf("SC_PAGE_SIZE")
    assert read_usage(99, tmp_path) is None


def test_time_of_ended_children_stays(tmp_path: Path):
    def write(pid: int, parent: int, ticks: int, of_children: int) -> None:
        (tmp_path / str(pid)).mkdir(exist_ok=True)
        fields = ["S", parent, *[0] * 9, ticks, 0, of_children, 0, *[0] * 7]
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a) " + " ".join(map(str, fields)))

    (tmp_path / "stat").write_text("cpu  600 0 0 9000 0 0 0 0 0 0\n")
    write(10, 1, 100, 0)
    write(11, 10, 400, 0)
    before = read_usage(10, tmp_path)
    shutil.rmtree(tmp_path / "11")
    write(10, 1, 110, 400)
    (tmp_path / "stat").write_text("cpu  610 0 0 9000 0 0 0 0 0 0\n")
    after = read_usage(10, tmp_path)
    assert before is not None
    assert after is not None
    assert after.cpu_s - before.cpu_s == pytest.approx(10 / os.sysconf("SC_CLK_TCK"))
    assert after.foreign_s == before.foreign_s


def test_usage_of_other_programs_excludes_the_server(tmp_path: Path):
    for pid, parent, ticks in ((10, 1, 100), (11, 10, 200), (13, 1, 50)):
        (tmp_path / str(pid)).mkdir()
        fields = ["S", parent, *[0] * 9, ticks, 0, *[0] * 9]
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a) " + " ".join(map(str, fields)))
    # user, nice, system, idle, iowait, irq, softirq, steal; guest is a part of user.
    (tmp_path / "stat").write_text("cpu  300 20 60 9000 900 1 2 7 300 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n")
    usage = read_usage(10, tmp_path)
    assert usage is not None
    assert usage.foreign_s == pytest.approx((390 - 300) / os.sysconf("SC_CLK_TCK"))


def test_usage_includes_the_main_thread(tmp_path: Path):
    fields = " ".join(["S", "1", *["0"] * 20])
    (tmp_path / "10" / "task" / "10").mkdir(parents=True)
    (tmp_path / "10" / "stat").write_text(f"10 (a) {fields}")
    usage = read_usage(10, tmp_path)
    assert usage is not None
    assert usage.main_s == 0  # a kernel without schedstat
    (tmp_path / "10" / "task" / "10" / "schedstat").write_text("1500000000 7 3\n")
    usage = read_usage(10, tmp_path)
    assert usage is not None
    assert usage.main_s == 1.5


def test_meter_gives_the_cores_of_the_event_loop():
    meter = ResourceMeter(0)
    assert meter.loop_cores() == 0
    meter.usages = [MeasuredUsage(at_s, 0, 1, main_s=main_s) for at_s, main_s in ((0, 9), (1, 10), (3, 11))]
    assert meter.loop_cores() == 0.5


def test_meter_gives_the_mean_of_other_programs():
    meter = ResourceMeter(0)
    assert meter.foreign_cores() == 0
    meter.usages = [MeasuredUsage(0, 0, 1, 10), MeasuredUsage(1, 0, 1, 11), MeasuredUsage(2, 1, 1, 13)]
    assert meter.foreign_cores() == 1.5
    meter.usages = [
        MeasuredUsage(0, 0, 1, 10),
        MeasuredUsage(2, 1, 1, 9.9),
    ]  # a process of ours ended between two readings
    assert meter.foreign_cores() == 0


def test_meter_gives_cores_and_largest_memory():
    meter = ResourceMeter(0)
    assert meter.metrics() == {}
    meter.usages = [
        MeasuredUsage(0, 0, 10**6),
        MeasuredUsage(1, 9, 3 * 10**6),
        MeasuredUsage(2, 10, 2 * 10**6),
        MeasuredUsage(3, 12, 10**6),
    ]
    found = meter.metrics()
    assert found["cpu_utilization"].value == 1.5
    assert found["cpu_used_ram"].value == 3


def test_interval_of_a_single_value_is_the_value():
    assert mean_interval([2.0]) == Interval(2, 2, 2)
    assert mean_interval([1.0, 3.0]).low < 1


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"max_batch_size": 4, "instance_group.count": 2}, True),
        ({"max_batch_size": 8}, False),
        ({"instance_group.count": 1}, False),
        ({"instance_group": [{"count": 7}]}, True),
        ({"dynamic_batching.max_queue_delay_microseconds": 5}, True),
        ({"dynamic_batching.max_queue_delay_microseconds": None}, False),
        ({"response_cache.enable": False}, True),
        ({"response_cache.enable": True}, False),
        ({"parameters.threads": "2", "parameters.adaptive_batching": "false"}, True),
        ({"parameters.threads": 3}, False),
    ],
)
def test_served_configuration_is_compared_with_settings(settings, expected):
    served = {
        "max_batch_size": 4,
        "instance_group": [{"name": "m_0", "count": 2}],
        "dynamic_batching": {"max_queue_delay_microseconds": 5},
        "parameters": {"threads": {"string_value": "2"}},
    }
    assert has_settings(served, settings) is expected


def test_journal_is_read_as_written(tmp_path: Path):
    path = tmp_path / "inner" / "journal.json"
    write_journal(path, "grpc://host:1", {"m": Original('{"name":"m"}'), "n": Original("")})
    journal = read_journal(path)
    assert (journal.url, journal.is_in_use) == ("grpc://host:1", False)
    assert journal.models == {"m": Original('{"name":"m"}'), "n": Original("")}
    assert [each.name for each in path.parent.iterdir()] == ["journal.json"]
