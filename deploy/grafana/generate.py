#!/usr/bin/env python3
"""Write the Grafana dashboards of naiad to `dashboards/`.

    deploy/grafana/generate.py

The panels are declared here only. The JSON files are committed; a test compares them with the output of this script.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from panels import Dashboard, Panel, Query, Row, Variable

DIRECTORY = Path(__file__).parent / "dashboards"
TOP_MODELS = 10
"""Series of a panel per model: with hundreds of models only the largest are readable."""

INSTANCE = Variable("instance", "label_values(naiad_build_info, instance)")
MODEL = Variable("model", "label_values(nv_inference_request_success, model)")
SERVER = 'instance=~"$instance"'
SELECTED = 'instance=~"$instance",model=~"$model"'
RATE = "[$__rate_interval]"


def rate(metric: str, labels: str, by: str = "model") -> str:
    """Return the sum of the per-second rates of a counter."""
    return f"sum by ({by}) (rate({metric}{{{labels}}}{RATE}))"


def top(expression: str) -> str:
    """Return the largest series of an expression."""
    return f"topk({TOP_MODELS}, {expression})"


def ratio(part: str, whole: str, labels: str, by: str = "model") -> str:
    """Return the ratio of the rates of two counters; none while the second does not increase."""
    return f"{rate(part, labels, by)} / ({rate(whole, labels, by)} > 0)"


def graph(title: str, expr: str, legend: str = "", *style: str, **more: Any) -> Panel:
    """Return a panel of one query; `style` are its unit and description."""
    return Panel(title, [Query(expr, legend)], *style, **more)


def rates(title: str, metric: str, labels: str, by: str, *style: str, **more: Any) -> Panel:
    """Return a panel of the per-second rates of a counter, with a series for each value of the labels in `by`."""
    legend = " ".join(f"{{{{{label}}}}}" for label in by.split(", "))
    return graph(title, rate(metric, labels, by), legend, *style, **more)


def number(title: str, expr: str, unit: str = "short", description: str = "") -> Panel:
    """Return a small panel with the last value of a query."""
    return Panel(title, [Query(expr)], unit, description, kind="stat", width=4, height=4)


def quantiles(name: str, labels: str) -> list[Query]:
    """Return the median and the 95th and 99th percentile of a latency histogram, over all its models."""
    buckets = rate(f"naiad_inference_{name}_duration_seconds_bucket", labels, "le")
    return [Query(f"histogram_quantile({q / 100}, {buckets})", f"p{q}") for q in (50, 95, 99)]


def percentile_99(name: str, labels: str) -> list[Query]:
    """Return the 99th percentile of a latency histogram for each model."""
    buckets = rate(f"naiad_inference_{name}_duration_seconds_bucket", labels, "model, le")
    return [Query(top(f"histogram_quantile(0.99, {buckets})"), "{{model}}")]


def mean_s(name: str, labels: str, by: str = "model") -> str:
    """Return the mean of a duration of Triton per request, in seconds."""
    return f"{ratio(f'nv_inference_{name}_duration_us', 'nv_inference_request_success', labels, by)} / 1e6"


OVERVIEW = Dashboard(
    "naiad-overview",
    "naiad / Overview",
    "Traffic, latency, queues, batches and resources of all models.",
    [INSTANCE],
    [
        Row(
            "Traffic",
            [
                number("Servers", f"count(naiad_build_info{{{SERVER}}})"),
                number("Requests per second", f"sum(rate(nv_inference_request_success{{{SERVER}}}{RATE}))", "reqps"),
                number(
                    "Error responses",
                    f'sum(rate(naiad_responses_total{{{SERVER},code=~"5..|INTERNAL|UNAVAILABLE|UNKNOWN"}}{RATE}))'
                    f" / sum(rate(naiad_responses_total{{{SERVER}}}{RATE}))",
                    "percentunit",
                ),
                number("Waiting requests", f"sum(nv_inference_pending_request_count{{{SERVER}}})"),
                number(
                    "Failed loads",
                    f"sum(naiad_model_load_failures_total{{{SERVER}}})",
                    description="Since the servers started.",
                ),
                number("Workers not ready", f"count(naiad_worker_state{{{SERVER}}} > 0) or vector(0)"),
                graph("Requests by model", top(rate("nv_inference_request_success", SERVER)), "{{model}}", "reqps"),
                graph(
                    "Responses by code",
                    rate("naiad_responses_total", SERVER, "protocol, code") + " > 0",
                    "{{protocol}} {{code}}",
                    "reqps",
                ),
                rates(
                    "Rejected requests by reason",
                    "naiad_request_rejected_total",
                    SERVER,
                    "reason",
                    "reqps",
                    "The series of a reason begins with its first rejection.",
                ),
            ],
        ),
        Row(
            "Latency",
            [
                Panel("Latency, all models", quantiles("request", SERVER), "s"),
                Panel("Latency by model, p99", percentile_99("request", SERVER), "s"),
                Panel("Time to the first response by model, p99", percentile_99("first_response", SERVER), "s"),
            ],
        ),
        Row(
            "Queues and batches",
            [
                graph(
                    "Waiting requests by model",
                    top(f"sum by (model) (nv_inference_pending_request_count{{{SERVER}}})"),
                    "{{model}}",
                ),
                graph(
                    "Age of the oldest waiting request",
                    top(f"max by (model) (naiad_queue_oldest_age_seconds{{{SERVER}}})"),
                    "{{model}}",
                    "s",
                ),
                Panel("Time in the queue by model, p99", percentile_99("queue", SERVER), "s"),
                graph(
                    "Rows per batch, mean",
                    top(ratio("nv_inference_count", "nv_inference_exec_count", SERVER)),
                    "{{model}}",
                ),
                rates(
                    "Batches by release reason",
                    "naiad_batch_release_total",
                    SERVER,
                    "reason",
                    "ops",
                    "See the page Scheduling for the reasons.",
                    is_stacked=True,
                ),
                graph(
                    "Executing requests by model",
                    top(f"sum by (model) (naiad_inference_executing_request_count{{{SERVER}}})"),
                    "{{model}}",
                ),
            ],
        ),
        Row(
            "Machine and process",
            [
                graph("CPU utilization", f"nv_cpu_utilization{{{SERVER}}}", "{{instance}}", "percentunit", width=6),
                Panel(
                    "Memory of the machine",
                    [
                        Query(f"nv_cpu_memory_used_bytes{{{SERVER}}}", "{{instance}} used"),
                        Query(f"nv_cpu_memory_total_bytes{{{SERVER}}}", "{{instance}} total"),
                    ],
                    "bytes",
                    width=6,
                ),
                graph(
                    "Memory of the server process",
                    f"process_resident_memory_bytes{{{SERVER}}}",
                    "{{instance}}",
                    "bytes",
                    width=6,
                ),
                Panel(
                    "Request bodies in memory",
                    [
                        Query(f"naiad_request_bytes_in_flight{{{SERVER}}}", "{{instance}}"),
                        Query(f"naiad_request_bytes_limit{{{SERVER}}}", "{{instance}} limit"),
                    ],
                    "bytes",
                    width=6,
                ),
                graph(
                    "GPU utilization",
                    f"nv_gpu_utilization{{{SERVER}}}",
                    "{{gpu_uuid}}",
                    "percentunit",
                    "Empty without a GPU.",
                    width=6,
                ),
                Panel(
                    "GPU memory",
                    [
                        Query(f"nv_gpu_memory_used_bytes{{{SERVER}}}", "{{gpu_uuid}} used"),
                        Query(f"nv_gpu_memory_total_bytes{{{SERVER}}}", "{{gpu_uuid}} total"),
                    ],
                    "bytes",
                    "Empty without a GPU.",
                    width=6,
                ),
                graph("Connections", f"sum by (port) (naiad_connections{{{SERVER}}})", "{{port}}", width=6),
                graph(
                    "Worker restarts",
                    f"sum by (model) (increase(naiad_worker_restarts_total{{{SERVER}}}{RATE}))",
                    "{{model}}",
                    width=6,
                ),
            ],
        ),
    ],
)

MODELS = Dashboard(
    "naiad-model",
    "naiad / Model",
    "One model, or a few: requests, latency by phase, batches, workers.",
    [INSTANCE, MODEL],
    [
        Row(
            "Requests",
            [
                rates("Requests by version", "nv_inference_request_success", SELECTED, "model, version", "reqps"),
                rates("Failures by reason", "nv_inference_request_failure", SELECTED, "reason", "reqps"),
                rates("Rejections by reason", "naiad_request_rejected_total", SELECTED, "reason", "reqps"),
                rates("Cancelled requests", "naiad_inference_cancelled_total", SELECTED, "where", "reqps"),
                Panel(
                    "Cache hits",
                    [
                        Query(rate("nv_cache_num_hits_per_model", SELECTED), "{{model}} hits"),
                        Query(rate("nv_cache_num_misses_per_model", SELECTED), "{{model}} misses"),
                    ],
                    "reqps",
                    "Only for models with a response cache.",
                ),
                graph("Load time", f"nv_model_load_duration_secs{{{SELECTED}}}", "{{model}} {{version}}", "s"),
            ],
        ),
        Row(
            "Latency",
            [
                Panel("Latency", quantiles("request", SELECTED), "s"),
                Panel("Time to the first response", quantiles("first_response", SELECTED), "s"),
                Panel("Time in the queue", quantiles("queue", SELECTED), "s"),
                Panel("Time in the model", quantiles("compute_infer", SELECTED), "s"),
                Panel(
                    "Mean time by phase",
                    [
                        Query(f"sum({mean_s(phase, SELECTED)})", phase.replace("_", " "))
                        for phase in ("queue", "compute_input", "compute_infer", "compute_output")
                    ],
                    "s",
                    width=16,
                    is_stacked=True,
                ),
            ],
        ),
        Row(
            "Queue and batches",
            [
                Panel(
                    "Waiting and executing requests",
                    [
                        Query(f"sum(nv_inference_pending_request_count{{{SELECTED}}})", "waiting"),
                        Query(f"sum(naiad_inference_executing_request_count{{{SELECTED}}})", "executing"),
                    ],
                ),
                graph(
                    "Age of the oldest waiting request",
                    f"max by (model) (naiad_queue_oldest_age_seconds{{{SELECTED}}})",
                    "{{model}}",
                    "s",
                ),
                Panel(
                    "Rows per batch",
                    [
                        Query(ratio("nv_inference_count", "nv_inference_exec_count", SELECTED), "{{model}} mean"),
                        *(
                            Query(
                                f"histogram_quantile({q / 100},"
                                f" {rate('naiad_inference_batch_size_bucket', SELECTED, 'model, le')})",
                                f"{{{{model}}}} p{q}",
                            )
                            for q in (50, 95)
                        ),
                    ],
                ),
                rates("Batches per second", "nv_inference_exec_count", SELECTED, "model", "ops"),
                rates(
                    "Batches by release reason",
                    "naiad_batch_release_total",
                    SELECTED,
                    "reason",
                    "ops",
                    is_stacked=True,
                ),
                Panel(
                    "Workers: state and restarts",
                    [
                        Query(f"naiad_worker_state{{{SELECTED}}}", "{{exported_instance}} state"),
                        Query(f"naiad_worker_restarts_total{{{SELECTED}}}", "{{exported_instance}} restarts"),
                    ],
                    description="State: 0 ready, 1 restarting, 2 down until the next trial, 3 on trial.",
                ),
            ],
        ),
    ],
)

ENSEMBLE = 'instance=~"$instance",model=~"$ensemble"'
MEMBER = 'instance=~"$instance",model=~"$member"'
SEQUENCE = 'instance=~"$instance",model=~"$sequence"'
PIPELINES = Dashboard(
    "naiad-sequences-ensembles",
    "naiad / Sequences and ensembles",
    "Sequence models, and ensembles with the members that are selected at the top.",
    [
        INSTANCE,
        Variable("sequence", "label_values(naiad_live_sequence_count, model)"),
        Variable("ensemble", "label_values(nv_inference_request_success, model)"),
        Variable("member", "label_values(nv_inference_request_success, model)"),
    ],
    [
        Row(
            "Sequences",
            [
                graph("Live sequences", f"sum by (model) (naiad_live_sequence_count{{{SEQUENCE}}})", "{{model}}"),
                rates("Requests", "nv_inference_request_success", SEQUENCE, "model", "reqps"),
                Panel("Latency by model, p99", percentile_99("request", SEQUENCE), "s"),
                graph(
                    "Sequences per batch, mean",
                    ratio("nv_inference_count", "nv_inference_exec_count", SEQUENCE),
                    "{{model}}",
                ),
                graph(
                    "Age of the oldest waiting request",
                    f"max by (model) (naiad_queue_oldest_age_seconds{{{SEQUENCE}}})",
                    "{{model}}",
                    "s",
                    "Requests of sequences that wait for a slot are among them.",
                ),
                rates("Rejected requests", "naiad_request_rejected_total", SEQUENCE, "model, reason", "reqps"),
            ],
        ),
        Row(
            "Ensembles",
            [
                rates("Requests", "nv_inference_request_success", ENSEMBLE, "model", "reqps"),
                Panel("Latency by ensemble, p99", percentile_99("request", ENSEMBLE), "s"),
                rates("Failures", "nv_inference_request_failure", ENSEMBLE, "model, reason", "reqps"),
            ],
        ),
        Row(
            "Members",
            [
                graph(
                    "Mean latency by member",
                    mean_s("request", MEMBER),
                    "{{model}}",
                    "s",
                    "The sum of the members on the longest path is the latency of an ensemble.",
                    is_stacked=True,
                ),
                graph("Mean time in the queue by member", mean_s("queue", MEMBER), "{{model}}", "s"),
                graph(
                    "Waiting requests by member",
                    f"sum by (model) (nv_inference_pending_request_count{{{MEMBER}}})",
                    "{{model}}",
                ),
            ],
        ),
    ],
)

MIGRATION = Dashboard(
    "naiad-migration",
    "naiad / Migration from Triton",
    "Metrics of Triton only: the same panels for a Triton server and its replacement.",
    [Variable("instance", "label_values(nv_inference_request_success, instance)"), MODEL],
    [
        Row(
            "Inference",
            [
                rates("Successful requests", "nv_inference_request_success", SELECTED, "instance, model", "reqps"),
                rates("Failed requests", "nv_inference_request_failure", SELECTED, "instance, model", "reqps"),
                rates("Rows per second", "nv_inference_count", SELECTED, "instance, model", "ops"),
                *(
                    graph(f"Mean {title}", mean_s(name, SELECTED, "instance, model"), "{{instance}} {{model}}", "s")
                    for title, name in (
                        ("latency", "request"),
                        ("time in the queue", "queue"),
                        ("time to prepare inputs", "compute_input"),
                        ("time in the model", "compute_infer"),
                        ("time to extract outputs", "compute_output"),
                    )
                ),
                graph(
                    "Rows per batch, mean",
                    ratio("nv_inference_count", "nv_inference_exec_count", SELECTED, "instance, model"),
                    "{{instance}} {{model}}",
                ),
                graph(
                    "Waiting requests", f"nv_inference_pending_request_count{{{SELECTED}}}", "{{instance}} {{model}}"
                ),
                rates("Cache hits", "nv_cache_num_hits_per_model", SELECTED, "instance, model", "reqps"),
                graph(
                    "Load time",
                    f"nv_model_load_duration_secs{{{SELECTED}}}",
                    "{{instance}} {{model}} {{version}}",
                    "s",
                ),
            ],
        ),
        Row(
            "Machine",
            [
                graph("CPU utilization", f"nv_cpu_utilization{{{SERVER}}}", "{{instance}}", "percentunit"),
                graph("Memory", f"nv_cpu_memory_used_bytes{{{SERVER}}}", "{{instance}}", "bytes"),
                graph(
                    "GPU utilization", f"nv_gpu_utilization{{{SERVER}}}", "{{instance}} {{gpu_uuid}}", "percentunit"
                ),
                graph("GPU memory", f"nv_gpu_memory_used_bytes{{{SERVER}}}", "{{instance}} {{gpu_uuid}}", "bytes"),
                graph("GPU power", f"nv_gpu_power_usage{{{SERVER}}}", "{{instance}} {{gpu_uuid}}", "watt"),
                rates("GPU energy per second", "nv_energy_consumption", SERVER, "instance, gpu_uuid", "watt"),
            ],
        ),
    ],
)

DASHBOARDS = (OVERVIEW, MODELS, PIPELINES, MIGRATION)


def files() -> Iterator[tuple[Path, str]]:
    """Return the path and the text of each dashboard."""
    for dashboard in DASHBOARDS:
        text = json.dumps(dashboard.to_json(), indent=2, ensure_ascii=False) + "\n"
        yield DIRECTORY / f"{dashboard.uid.removeprefix('naiad-')}.json", text


if __name__ == "__main__":
    DIRECTORY.mkdir(exist_ok=True)
    for path, text in files():
        path.write_text(text)
        print(path)
