"""Server figures of a measurement: the difference of two readings of the statistics extension, and its metrics.

perf_analyzer's rules: a version that was not asked for is the highest of the versions whose counters moved; a mean is
ns / count; with a response cache the times of cache and compute are spread over hits and computed requests; an
ensemble has the sum of the means of its composing models, recursively. Means are exact here; cut to whole us they
equal perf_analyzer's integer divisions.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from naiad.tools.measure.result import MetricFigure, ServerFigures
from naiad.tools.perf.records import Measurement

_PARTS = ("queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")
_DURATIONS = ("success", "fail", *_PARTS)


def server_figures(
    measurement: Measurement, model: str, version: str = "", called: Sequence[str] = ()
) -> ServerFigures | None:
    """Of a model; None where its counters did not move or the server has no statistics.

    `called` are models that the code of the model calls, as `NAME` or `NAME:VERSION`; its own times contain theirs.
    """
    return _figures(measurement, model, version, called, frozenset())


def _figures(
    measurement: Measurement, model: str, version: str, called: Sequence[str], above: frozenset[str]
) -> ServerFigures | None:
    moved = {
        number: moves
        for number, moves in _moves(measurement, model).items()
        if version in ("", number) and moves["success_count"] + moves["fail_count"] > 0
    }
    if not moved:
        return None
    number = max(moved, key=lambda each: (len(each), each))
    steps, above = measurement.composing.get(model, ()), above | {model}
    parts = []
    for name, _, part_version in (each.partition(":") for each in steps or called):
        part = _figures(measurement, name, part_version, (), above) if name not in above else None
        parts += [part] if part is not None else []
    return _of_moves(model, number, moved[number], parts, is_ensemble=bool(steps))


def _of_moves(
    model: str, version: str, moves: Mapping[str, int], composing: Sequence[ServerFigures], *, is_ensemble: bool
) -> ServerFigures:
    has_cache = moves["cache_hit_count"] + moves["cache_miss_count"] > 0
    requests = moves["cache_hit_count"] + moves["compute_infer_count"] if has_cache else 0
    means = {f"{name}_us": _mean_us(moves, name, requests) for name in _PARTS}
    means["queue_us"] = _mean_us(moves, "queue", 0)
    if is_ensemble and composing:
        means = {name: sum(getattr(part, name) for part in composing) for name in means}
    return ServerFigures(
        model=model,
        version=version,
        inference_count=moves["inference_count"],
        execution_count=moves["execution_count"],
        success_count=moves["success_count"],
        failure_count=moves["fail_count"],
        cache_hit_count=moves["cache_hit_count"],
        cache_miss_count=moves["cache_miss_count"],
        overhead_us=max(_mean_us(moves, "success", 0) - sum(means.values()), 0.0),
        composing=composing,
        **means,
    )


def _mean_us(moves: Mapping[str, int], name: str, requests: int) -> float:
    count = requests or moves[f"{name}_count"]
    return moves[f"{name}_ns"] / count / 1e3 if count else 0.0


def _moves(measurement: Measurement, model: str) -> dict[str, dict[str, int]]:
    """By version, by how much each counter of a model grew; counters of a restarted server count from 0."""
    versions = {}
    for key, after in measurement.statistics_after.items():
        name, _, version = key.rpartition("/")
        if name == model:
            before, after_counts = _counts(measurement.statistics_before.get(key, {})), _counts(after)
            is_restarted = any(after_counts[counter] < before[counter] for counter in before)
            versions[version] = {
                counter: count if is_restarted else count - before[counter] for counter, count in after_counts.items()
            }
    return versions


def _counts(row: Mapping[str, Any]) -> dict[str, int]:
    """Counters of a statistics row in its JSON form; 64-bit numbers may be strings, as protobuf writes them."""
    stats = row.get("inference_stats", {})
    counts = {name: int(row.get(name, 0)) for name in ("inference_count", "execution_count")}
    for name in _DURATIONS:
        duration = stats.get(name, {})
        counts[f"{name}_count"], counts[f"{name}_ns"] = int(duration.get("count", 0)), int(duration.get("ns", 0))
    return counts


# --- metrics ------------------------------------------------------------------------------------------------------

_FAMILIES = re.compile(r"(nv_cpu_|nv_gpu_|nv_energy_|nv_pinned_memory_|process_)")
_SAMPLE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:[^"}]|"(?:\\.|[^"\\])*")*)\})?\s+(\S+)(?:\s+-?\d+)?\s*')
_MAX_SERIES = 256


def metric_figures(scrapes: Sequence[tuple[int, str]], begin_ns: int) -> Sequence[MetricFigure]:
    """CPU, memory and GPU families of the server and its process, by name and labels; at most 256 series."""
    series: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for moment_ns, text in scrapes:
        at_s = max((moment_ns - begin_ns) / 1e9, 0.0)
        for name, labels, value in samples(text):
            key = name, labels
            if key in series or len(series) < _MAX_SERIES:
                series.setdefault(key, []).append((at_s, value))
    return [
        MetricFigure(name, labels, [at_s for at_s, _ in points], [value for _, value in points])
        for (name, labels), points in sorted(series.items())
    ]


def samples(text: str) -> list[tuple[str, str, float]]:
    """Name, labels and value of the samples of interest; other lines and values that are not finite are skipped."""
    found = []
    for line in text.splitlines():
        match = _SAMPLE.fullmatch(line) if _FAMILIES.match(line) else None
        if match is None:
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        if math.isfinite(value):
            found.append((match[1], match[2] or "", value))
    return found
