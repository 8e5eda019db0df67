"""From a row of naiad perf to metrics with Model Analyzer's names."""

from collections.abc import Callable, Mapping, Sequence

from naiad.tools.analyze.live.server_resources import mean_interval
from naiad.tools.measure.result import Interval, MetricFigure, Row

_US_PER_MS = 1e3
_BYTES_PER_MB = 1e6


def figures_of(row: Row) -> dict[str, Interval]:
    """Return throughput (inferences/s), latencies (ms), their parts, and the metrics of the server."""
    latency = row.latency
    found = {
        "perf_throughput": _scaled(row.throughput, row.batch_size),
        "perf_latency_avg": _scaled(latency.mean, 1 / _US_PER_MS),
    }
    for percentile, interval in latency.percentiles.items():
        found[f"perf_latency_p{percentile}"] = _scaled(interval, 1 / _US_PER_MS)
    parts = {
        "perf_client_send_recv": row.client.send_us + row.client.receive_us,
        "perf_client_response_wait": row.client.network_us,
    }
    if row.server is not None:
        parts |= {
            "perf_server_queue": row.server.queue_us,
            "perf_server_compute_input": row.server.compute_input_us,
            "perf_server_compute_infer": row.server.compute_infer_us,
            "perf_server_compute_output": row.server.compute_output_us,
        }
        parts["perf_client_response_wait"] += sum(
            value for name, value in parts.items() if name.startswith("perf_server")
        )
    found |= {name: _exact(value / _US_PER_MS) for name, value in parts.items()}
    return found | _server_metrics(row.metrics)


_Combine = Callable[[Sequence[float]], float]
_SERVER_METRICS: Mapping[str, tuple[str, float, _Combine]] = {
    "process_resident_memory_bytes": ("cpu_used_ram", 1 / _BYTES_PER_MB, sum),
    "nv_cpu_memory_used_bytes": ("cpu_used_ram", 1 / _BYTES_PER_MB, sum),
    "nv_gpu_memory_used_bytes": ("gpu_used_memory", 1 / _BYTES_PER_MB, sum),
    "nv_gpu_utilization": ("gpu_utilization", 100.0, lambda values: sum(values) / len(values)),
    "nv_gpu_power_usage": ("gpu_power_usage", 1.0, sum),
}
"""Series to metric, factor, and how the values of several GPUs combine; the first series of a metric counts.

`nv_cpu_utilization` is a share of the machine: without its number of cores it gives no cores in use.
"""


def _server_metrics(series: Sequence[MetricFigure]) -> dict[str, Interval]:
    found: dict[str, Interval] = {}
    for name, (metric, factor, combine) in _SERVER_METRICS.items():
        values = [each.values for each in series if each.name == name and each.values]
        if values and metric not in found:
            moments = [combine(moment) * factor for moment in zip(*values, strict=False)]
            found[metric] = mean_interval(moments)
    return found


def _scaled(interval: Interval, factor: float) -> Interval:
    return Interval(interval.value * factor, interval.low * factor, interval.high * factor)


def _exact(value: float) -> Interval:
    return Interval(value, value, value)
