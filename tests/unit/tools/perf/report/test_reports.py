"""Reports of a run: perf_analyzer's CSV, the text of the terminal, and the HTML page."""

import csv
import re
from dataclasses import replace
from pathlib import Path

import pytest

from naiad.tools.measure.result import (
    ClientFigures,
    Errors,
    GeneratorFigures,
    Interval,
    Latency,
    MetricFigure,
    Parts,
    Result,
    Row,
    ServerFigures,
)
from naiad.tools.perf.report.latency_csv import write_latency_csv
from naiad.tools.perf.report.perf_page import report
from naiad.tools.perf.report.perf_text import closing_text, row_text, unstable_text

PARTS = ("client_encode", "send", "parse", "queue", "hold", "gather", "compute", "scatter", "encode", "receive")


def interval(value: float) -> Interval:
    return Interval(value, value * 0.95, value * 1.05)


def latency(p50_us: float) -> Latency:
    percentiles = {50: p50_us, 90: p50_us * 1.5, 95: p50_us * 2, 99: p50_us * 3}
    return Latency(
        interval(p50_us * 1.1),
        20.0,
        p50_us / 2,
        p50_us * 5,
        {key: interval(each) for key, each in percentiles.items()},
    )


def row(concurrency: float, throughput: float, *, is_stable: bool = True) -> Row:
    server = ServerFigures("resnet", "1", 100, 60, 100, 0, 30.7, 5.0, 200.0, 4.0)
    return Row(
        mode="concurrency", value=concurrency, model="resnet", batch_size=2, duration_s=2.0,
        request_count=int(throughput * 2), throughput=interval(throughput), goodput=interval(throughput),
        response_throughput=throughput, sequences_per_s=0.0, latency=latency(500.0), service=latency(490.0),
        first_response=None, between_responses=None, client=ClientFigures(12.9, 3.0, 100.0), server=server,
        generator=GeneratorFigures(1, 0.3, 20_000.0, 2.0, 9.0, 0.0, "server"), errors=[], is_stable=is_stable,
        verdict="narrow", windows=[(0.0, throughput, 550.0), (1.0, throughput, 560.0)],
        histogram=[(250.0, 10), (500.0, 500), (1000.0, 400), (2500.0, 3)],
    )  # fmt: skip


def result(*rows: Row) -> Result:
    return Result(["naiad", "perf", "-m", "resnet"], "2026-01-02T03:04:05Z", {"server": "triton 2.51"}, None, rows)


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_csv_has_perf_analyzers_columns_in_order(tmp_path: Path) -> None:
    path = tmp_path / "report.csv"
    write_latency_csv(result(row(1, 1000.0)), path, is_verbose=True, has_metrics=False)
    assert path.read_text().split("\n")[0] == (
        "Concurrency,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,Server Compute Input,"
        "Server Compute Infer,Server Compute Output,Client Recv,p50 latency,p90 latency,p95 latency,p99 latency,"
        "Avg latency,request/response,response wait"
    )
    (only,) = read(path)
    assert only["Inferences/Second"] == "2000"
    assert only["Server Queue"] == "30"
    assert only["Client Send"] == "12"
    assert only["request/response"] == "15"


def test_csv_rows_ascend_by_throughput(tmp_path: Path) -> None:
    path = tmp_path / "report.csv"
    write_latency_csv(result(row(4, 3000.0), row(1, 1000.0)), path, is_verbose=False, has_metrics=False)
    assert [each["Concurrency"] for each in read(path)] == ["1", "4"]


def test_csv_of_composing_models_lies_beside(tmp_path: Path) -> None:
    part = ServerFigures("step", "3", 50, 50, 50, 0, 1.0, 2.0, 3.0, 4.0)
    whole = row(1, 1000.0)
    assert whole.server is not None
    whole = replace(whole, server=replace(whole.server, composing=[part]))
    paths = write_latency_csv(result(whole), tmp_path / "report.csv", is_verbose=False, has_metrics=False)
    assert paths[1] == tmp_path / "step_v3.report.csv"
    assert read(paths[1])[0]["Inferences/Second"] == "1000"


def test_csv_lists_gpus_by_uuid(tmp_path: Path) -> None:
    metrics = [MetricFigure("nv_gpu_utilization", 'gpu_uuid="GPU-1"', [0.0, 1.0], [0.2, 0.4])]
    path = tmp_path / "report.csv"
    rows = replace(row(1, 1000.0), metrics=metrics)
    write_latency_csv(result(rows), path, is_verbose=True, has_metrics=True)
    assert read(path)[0]["Avg GPU Utilization"] == "GPU-1:0.3;"


def test_text_shows_intervals_errors_and_verdict() -> None:
    failing = replace(row(1, 1000.0, is_stable=False), errors=[Errors("UNAVAILABLE", 3, "queue is full")])
    text = row_text(failing, 99)
    assert "Throughput: 2000 infer/sec (95 %: 950 to 1050)" in text
    assert "Errors: 3 x UNAVAILABLE: queue is full" in text
    assert "NOT STABLE: narrow" in text
    assert "Concurrency: 1, throughput: 2000 infer/sec, latency 550 usec, not stable, 3 errors" in closing_text(
        result(failing)
    )


def test_unstable_text_has_both_phrases_of_model_analyzer() -> None:
    text = unstable_text([row(1, 1.0), row(2, 2.0, is_stable=False)])
    assert "Failed to obtain stable measurement" in text
    assert "Please use a larger time window" in text


def test_html_needs_no_network_and_escapes(tmp_path: Path) -> None:
    parts = Parts(10, True, {name: {50: 1.0, 99: 2.0} for name in PARTS}, dict.fromkeys(PARTS, 5.0))
    hostile = replace(row(1, 1000.0), model="<script>alert(1)</script>", parts=parts)
    path = tmp_path / "report.html"
    report(result(hostile, row(2, 1500.0)), 2000.0).write(path)
    text = path.read_text()
    assert "<script" not in text
    assert not re.findall(r'(?:src|href)="(?:https?:)?//', text)
    assert text.count("<svg") == 5
    assert "client encode" in text


@pytest.mark.parametrize("rows", [(), (replace(row(1, 0.0), histogram=[], windows=[]),)])
def test_html_of_little_is_a_page(rows: tuple[Row, ...]) -> None:
    assert "</html>" in report(result(*rows)).render()
