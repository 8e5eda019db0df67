"""Series of the server's metrics from scrapes of its Prometheus endpoint."""

import math
import re
from collections.abc import Sequence

from naiad.perf.result import MetricFigure

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
