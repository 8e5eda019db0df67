"""The CSV that perf_analyzer's `-f` writes, with its columns, so that scripts and Model Analyzer can read it.

Times are whole microseconds. Rows are sorted by throughput, as perf_analyzer's are.
"""

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from naiad.tools.measure.result import Result, Row, ServerFigures

_GPU_COLUMNS = {
    "Avg GPU Utilization": ("nv_gpu_utilization", "mean"),
    "Avg GPU Power Usage": ("nv_gpu_power_usage", "mean"),
    "Max GPU Memory Usage": ("nv_gpu_memory_used_bytes", "max"),
    "Total GPU Memory": ("nv_gpu_memory_total_bytes", "max"),
}
_LOAD_COLUMNS = {"concurrency": "Concurrency", "periodic_concurrency": "Concurrency", "request_rate": "Request Rate"}


def write_latency_csv(result: Result, path: Path, *, is_verbose: bool, has_metrics: bool) -> list[Path]:
    """Write the rows of `result`, and a file for each composing model beside it; return the paths.

    Raises OSError.
    """
    rows = sorted(result.rows, key=lambda row: row.inferences_per_s)
    _write(path, [_columns(row, row.server, result.percentile, is_verbose, has_metrics) for row in rows])
    written = [path]
    for index, model in enumerate(_composing(rows)):
        # Triton: the name of the model goes before the file's name; perf_analyzer puts it before the whole path.
        beside = path.with_name(f"{model.model}_v{model.version}.{path.name}")
        parts = [row.server.composing[index] for row in rows if row.server and len(row.server.composing) > index]
        _write(beside, [_composing_columns(row, part) for row, part in zip(rows, parts, strict=False)])
        written.append(beside)
    return written


def _composing(rows: Sequence[Row]) -> Sequence[ServerFigures]:
    return rows[-1].server.composing if rows and rows[-1].server else ()


def _write(path: Path, rows: Sequence[Mapping[str, str]]) -> None:
    names: list[str] = []
    for row in rows:
        names += [name for name in row if name not in names]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _columns(
    row: Row, server: ServerFigures | None, percentile: int | None, is_verbose: bool, has_metrics: bool
) -> dict[str, str]:
    columns = {
        _LOAD_COLUMNS.get(row.mode, "Request Rate"): f"{row.value:g}",
        "Inferences/Second": f"{row.inferences_per_s:.6g}",
    }
    if row.first_response is not None:
        columns["Response Throughput"] = f"{row.response_throughput:.6g}"
    columns["Client Send"] = _whole(row.client.send_us)
    columns["Network+Server Send/Recv"] = _whole(row.client.network_us)
    columns |= _server_columns(server)
    columns["Client Recv"] = _whole(row.client.receive_us)
    for number in sorted({50, 90, 95, 99, percentile or 50}):
        columns[f"p{number} latency"] = _whole(row.latency.percentiles[number].value)
    if is_verbose:
        if percentile is None:
            columns["Avg latency"] = _whole(row.latency.mean.value)
        send_receive_us = row.client.send_us + row.client.receive_us
        columns["request/response"] = _whole(send_receive_us)
        columns["response wait"] = _whole(max(0.0, row.service.mean.value - send_receive_us))
        if has_metrics:
            columns |= {name: _gpu(row, *source) for name, source in _GPU_COLUMNS.items()}
    return columns


def _server_columns(server: ServerFigures | None) -> dict[str, str]:
    columns = {
        "Server Queue": _whole(server.queue_us if server else 0.0),
        "Server Compute Input": _whole(server.compute_input_us if server else 0.0),
        "Server Compute Infer": _whole(server.compute_infer_us if server else 0.0),
        "Server Compute Output": _whole(server.compute_output_us if server else 0.0),
    }
    if server and (server.cache_hit_count or server.cache_miss_count):
        columns["Server Cache Hit"] = _whole(server.cache_hit_us)
        columns["Server Cache Miss"] = _whole(server.cache_miss_us)
    return columns


def _composing_columns(row: Row, part: ServerFigures) -> dict[str, str]:
    share = part.success_count / row.server.success_count if row.server and row.server.success_count else 0.0
    return {
        _LOAD_COLUMNS.get(row.mode, "Request Rate"): f"{row.value:g}",
        "Inferences/Second": f"{row.inferences_per_s * share:.6g}",
        "Client Send": "0",
        "Network+Server Send/Recv": "0",
        **_server_columns(part),
        "Client Recv": "0",
    }


def _gpu(row: Row, name: str, how: str) -> str:
    """Return `uuid:value;` for each GPU."""
    parts = []
    for series in row.metrics:
        if series.name == name and series.values:
            value = max(series.values) if how == "max" else sum(series.values) / len(series.values)
            parts.append(f"{_label(series.labels, 'gpu_uuid')}:{value:.6g};")
    return "".join(parts)


def _label(labels: str, name: str) -> str:
    found: Iterable[str] = (part.partition("=")[2].strip('"') for part in labels.split(",") if part.startswith(name))
    return next(iter(found), labels)


def _whole(value_us: float) -> str:
    return str(int(value_us))
