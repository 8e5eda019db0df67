"""The Prometheus text format, and sums of the expositions of several processes.

Counters and histograms add up. So do most gauges, which count objects of a process. Gauges that describe the machine
or a model are equal in all processes, and the largest is shown. Quantiles of summaries cannot be added: the largest
is shown.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Literal

from naiad.core.errors import encodable

Kind = Literal["counter", "gauge", "histogram"]
Row = tuple[Mapping[str, str], float]
"""Labels and value of one sample."""

_LAST_LABELS = frozenset(("le", "quantile"))


def escape_label(value: str) -> str:
    """Return a label value in the form between quotes."""
    return encodable(value).replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def escape_help(text: str) -> str:
    """Return the text of a HELP line."""
    return encodable(text).replace("\\", r"\\").replace("\n", r"\n")


def format_labels(labels: Mapping[str, str]) -> str:
    """Return `{a="1",b="2"}`, or nothing without labels.

    Triton: sorted by name, with `le` of a bucket and `quantile` of a summary last.
    """
    if not labels:
        return ""
    ordered = sorted(labels.items(), key=lambda label: (label[0] in _LAST_LABELS, label[0]))
    return "{" + ",".join(f'{name}="{escape_label(value)}"' for name, value in ordered) + "}"


def format_value(value: float) -> str:
    """Return a sample's value; whole numbers without a fraction."""
    if value != value:  # NaN has no other name
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) else repr(value)


def format_family(name: str, kind: str, help_text: str, samples: Iterable[str]) -> str:
    """Return a family: its HELP and TYPE lines and `samples`, one or several lines each.

    Triton: a family without samples is omitted; the result is then empty.
    """
    lines = list(samples)
    if not lines:
        return ""
    return "\n".join([*format_opening(name, kind, help_text), *lines])


def format_rows(name: str, kind: Kind, help_text: str, rows: Iterable[Row]) -> str:
    """Return a family with a sample for each of `rows`."""
    samples = [f"{name}{format_labels(labels)} {format_value(value)}" for labels, value in rows]
    return format_family(name, kind, help_text, samples)


def format_opening(name: str, kind: str, help_text: str) -> tuple[str, str]:
    """Return the HELP and TYPE lines of a family."""
    return f"# HELP {name} {escape_help(help_text)}", f"# TYPE {name} {kind}"


_SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("", "_sum", "_count")}


def series_names(family: str, kind: str) -> Sequence[str]:
    """Return the names of a family's series: no other family may have one of them, or be called so."""
    return (family, *(family + suffix for suffix in _SUFFIXES.get(kind, ())))


_LARGEST_PREFIXES = ("nv_cpu_", "nv_gpu_")
_LARGEST = frozenset(
    (
        *("nv_model_load_duration_secs", "naiad_build_info", "naiad_cache_oldest_age_seconds"),
        "naiad_queue_oldest_age_seconds",
        *("naiad_adaptive_fixed_seconds", "naiad_adaptive_row_seconds", "naiad_adaptive_tail_ratio"),
        "naiad_model_repository_away",
        *("naiad_rollout_weight_percent", "naiad_rollout_step"),
        *("naiad_adaptive_profile_drift_ratio", "naiad_adaptive_parallelism", "nv_energy_consumption"),
    )
)


class Exposition:
    """Families of one exposition: their opening lines, kinds, and samples in order."""

    def __init__(self) -> None:
        self.openings: dict[str, list[str]] = {}
        """Family to its HELP and TYPE lines."""
        self.kinds: dict[str, str] = {}
        self.samples: dict[str, dict[str, float]] = {}
        """Family to the values of its series; a series is its name and labels in text form."""

    def render(self) -> bytes:
        """Return the text format, without families that have no samples."""
        lines: list[str] = []
        for family, opening in self.openings.items():
            samples = self.samples[family]
            if samples:
                lines += opening
                lines += [f"{series} {format_value(value)}" for series, value in samples.items()]
        return ("\n".join(lines) + "\n").encode()


def parse(text: bytes) -> Exposition:
    """Return the families of an exposition rendered by this server: HELP, TYPE, then the samples."""
    found = Exposition()
    samples: dict[str, float] = {}
    for line in text.decode().split("\n"):
        if line.startswith("# "):
            _, what, family, rest = (*line.split(" ", 3), "")[:4]
            samples = found.samples.setdefault(family, {})
            found.openings.setdefault(family, []).append(line)
            if what == "TYPE":
                found.kinds[family] = rest
        elif line:
            series, _, value = line.rpartition(" ")
            # Whole numbers stay exact beyond 2 ** 53.
            samples[series] = int(value) if value.isdigit() else float(value)
    return found


def add(expositions: Iterable[Exposition]) -> Exposition:
    """Return the sum of expositions; families and series in the order of their first appearance."""
    total = Exposition()
    for one in expositions:
        for family, opening in one.openings.items():
            total.openings.setdefault(family, opening)
            kind = total.kinds.setdefault(family, one.kinds.get(family, "untyped"))
            _add_samples(family, kind, total.samples.setdefault(family, {}), one.samples[family])
    return total


def _add_samples(family: str, kind: str, total: dict[str, float], samples: Mapping[str, float]) -> None:
    for series, value in samples.items():
        known = total.get(series)
        if known is None or math.isnan(known):
            total[series] = value
        elif _adds_up(family, kind, series):
            total[series] = known + value
        elif value > known:  # never for NaN
            total[series] = value


def _adds_up(family: str, kind: str, series: str) -> bool:
    if family in _LARGEST:
        return False
    if kind == "gauge":
        return not family.startswith(_LARGEST_PREFIXES)
    return kind in ("counter", "histogram") or (kind == "summary" and _is_total(family, series))


def _is_total(family: str, series: str) -> bool:
    """Return whether a series of a summary is its count or sum, not a quantile."""
    return series.startswith((f"{family}_count", f"{family}_sum"))


def cumulative(one: Exposition) -> Exposition:
    """Return the series that only increase: they stay after the end of a process."""
    left = Exposition()
    for family, kind in one.kinds.items():
        if kind == "gauge":
            continue
        samples = one.samples[family]
        if kind == "summary":
            samples = {series: value for series, value in samples.items() if _is_total(family, series)}
        left.openings[family] = one.openings[family]
        left.kinds[family] = kind
        left.samples[family] = dict(samples)
    return left


def add_exited(shown: Exposition, left: Exposition) -> Exposition:
    """Return `shown` with the values of `left` added to its series; other series of `left` stay hidden."""
    visible = Exposition()
    for family in left.openings.keys() & shown.openings.keys():
        known = shown.samples[family]
        visible.openings[family] = left.openings[family]
        visible.kinds[family] = left.kinds[family]
        visible.samples[family] = {s: value for s, value in left.samples[family].items() if s in known}
    return add((shown, visible))


_MODEL_LABEL = re.compile(r'[{,]model="((?:[^"\\]|\\.)*+)"')
_NAMESPACE_LABEL = re.compile(r'[{,]namespace="((?:[^"\\]|\\.)*+)"')


def without_models(one: Exposition, models: Set[tuple[str, str]]) -> Exposition:
    """Return the exposition without the series of models, each with its namespace before it; empty: in any."""
    escaped = {(escape_label(namespace), escape_label(name)) for namespace, name in models}
    rest = Exposition()
    rest.openings, rest.kinds = one.openings, one.kinds
    for family, samples in one.samples.items():
        rest.samples[family] = {s: value for s, value in samples.items() if not _is_about(s, escaped)}
    return rest


def _is_about(series: str, models: Set[tuple[str, str]]) -> bool:
    model = _MODEL_LABEL.search(series)
    if model is None:
        return False
    namespace = _NAMESPACE_LABEL.search(series)
    return ("", model[1]) in models or (namespace is not None and (namespace[1], model[1]) in models)
