"""The CSV files of an analysis, with Model Analyzer's columns and file names."""

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from naiad.tools.analyze.point_measurement import Measured, Ranked, Ranking
from naiad.tools.analyze.space import Variant

INFERENCE_FILE = "metrics-model-inference.csv"
GPU_FILE = "metrics-model-gpu.csv"

METRIC_NAMES = {
    "perf_throughput": "Throughput (infer/sec)",
    "perf_latency_avg": "Avg Latency (ms)",
    "perf_latency_p50": "p50 Latency (ms)",
    "perf_latency_p90": "p90 Latency (ms)",
    "perf_latency_p95": "p95 Latency (ms)",
    "perf_latency_p99": "p99 Latency (ms)",
    "perf_client_send_recv": "Client Send/Recv (ms)",
    "perf_client_response_wait": "Response Wait Time (ms)",
    "perf_server_queue": "Server Queue time (ms)",
    "perf_server_compute_input": "Server Compute Input time (ms)",
    "perf_server_compute_infer": "Server Compute Infer time (ms)",
    "perf_server_compute_output": "Server Compute Output time (ms)",
    "cpu_utilization": "CPU Utilization (cores)",
    "cpu_used_ram": "RAM Usage (MB)",
    "gpu_used_memory": "GPU Memory Usage (MB)",
    "gpu_utilization": "GPU Utilization (%)",
    "gpu_power_usage": "GPU Power Usage (W)",
}
"""Model Analyzer's headings; the p50 and the CPU utilization are naiad's own."""

_DEFAULT_FIELDS = ("perf_throughput", "perf_latency_p99")
_GPU_FIELDS = ("gpu_used_memory", "gpu_utilization", "gpu_power_usage")


def write_tables(
    ranking: Ranking,
    folder: Path,
    fields: Sequence[str] = _DEFAULT_FIELDS,
    *,
    accepts: Callable[[Measured], bool] | None = None,
    configured: Mapping[str, Mapping[str, object]] | None = None,
) -> list[Path]:
    """Write the measurements, those that were compared first, and return the paths. `fields` are metrics.

    A point that was compared has its figures of the comparison. `accepts` says whether a measurement meets the
    constraints; `configured` has by model the values of fields that a variant leaves as they are. Raises OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows = _Rows(accepts or (lambda measured: not measured.error), configured or {})
    order = [each.measured for each in ranking.candidates]
    order += [each for each in ranking.measurements if all(each.point.key != done.point.key for done in order)]
    written = [folder / INFERENCE_FILE]
    _write(written[0], rows.of(order, fields))
    if any(name in metrics for each in order for metrics in each.metrics.values() for name in _GPU_FIELDS):
        written.append(folder / GPU_FILE)
        _write(written[1], rows.of(order, _GPU_FIELDS))
    return written


class _Rows:
    def __init__(self, accepts: Callable[[Measured], bool], configured: Mapping[str, Mapping[str, object]]) -> None:
        self._accepts = accepts
        self._configured = configured

    def of(self, measured: Sequence[Measured], fields: Sequence[str]) -> Iterator[dict[str, str]]:
        """Return a row for each model of each measurement."""
        for each in measured:
            point = each.point
            load = {"Request Rate": f"{point.request_rate:g}"} if point.request_rate else {}
            for model, metrics in each.metrics.items():
                variant = variant_of(each, model)
                settings = {**self._configured.get(model, {}), **(variant.settings if variant else {})}
                yield {
                    "Model": model,
                    "Batch": str(point.batch_size),
                    **(load or {"Concurrency": str(point.concurrency)}),
                    "Model Config Path": variant.name if variant else model,
                    "Instance Group": instance_group(settings),
                    "Max Batch Size": str(settings.get("max_batch_size", "")),
                    "Satisfies Constraints": "Yes" if self._accepts(each) else "No",
                    **{
                        METRIC_NAMES.get(name, name): f"{metrics[name].value:.6g}" if name in metrics else ""
                        for name in fields
                    },
                }


def _write(path: Path, rows: Iterator[dict[str, str]]) -> None:
    found = list(rows)
    names = list(dict.fromkeys(name for row in found for name in row))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)


def variant_of(measured: Measured, model: str) -> Variant | None:
    """Return the variant of a model in a measurement; None for a model that does not vary."""
    return next((each for each in measured.point.variants if each.model == model), None)


def instance_group(settings: Mapping[str, object]) -> str:
    """Return the instances as Model Analyzer shows them: `2:CPU`."""
    groups = settings.get("instance_group")
    if isinstance(groups, Sequence) and not isinstance(groups, str):
        named = [(each.get("count", 1), each.get("kind", "KIND_CPU")) for each in groups if isinstance(each, Mapping)]
        return " ".join(f"{count}:{str(kind).removeprefix('KIND_')}" for count, kind in named)
    count = settings.get("instance_group.count", "")
    return f"{count}:{str(settings.get('instance_group.kind', 'KIND_CPU')).removeprefix('KIND_')}" if count else ""


def by_load(ranked: Sequence[Ranked]) -> dict[str, list[Ranked]]:
    """Return what was not compared by its load, so that no table mixes loads."""
    found: dict[str, list[Ranked]] = {}
    for each in ranked:
        found.setdefault(each.measured.point.load, []).append(each)
    return found


def mark(ranking: Ranking, ranked: Ranked) -> str:
    """Return what a table says of a configuration: now, tie, misses, or nothing."""
    is_now = ranking.baseline is not None and ranking.baseline.point.key == ranked.measured.point.key
    is_chosen = ranking.winner is not None and ranking.winner.measured.point.key == ranked.measured.point.key
    words = ["now"] if is_now else []
    words += ["tie"] if ranked.is_tie and not is_chosen else [] if ranked.meets_constraints else ["misses"]
    return ", ".join(words)


def gain_text(ranking: Ranking, ranked: Ranked, digits: int = 0) -> str:
    """Return the gain over the configuration of the repository; "" for what was not compared with it."""
    is_now = ranking.baseline is not None and ranking.baseline.point.key == ranked.measured.point.key
    return "" if is_now or ranked.gain_percent is None else f"{ranked.gain_percent.value:+.{digits}f} %"


def variants_text(measured: Measured) -> str:
    """Return what the variants of a measurement change, in a line."""
    if len(measured.point.variants) == 1:
        return measured.point.variants[0].summary
    return "; ".join(f"{each.model}: {each.summary}" for each in measured.point.variants)
