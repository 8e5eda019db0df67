"""Sums of the statistics of several processes for the same model versions."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from itertools import zip_longest
from typing import Any, TypeVar

from naiad.telemetry.statistics.version import BatchStatistics, VersionStatistics

_T = TypeVar("_T")


def sum_statistics(groups: Iterable[Sequence[VersionStatistics]]) -> list[VersionStatistics]:
    """Return one entry for each model version, in the order of first appearance."""
    sums: dict[tuple[str, str], VersionStatistics] = {}
    for group in groups:
        for counts in group:
            known = sums.get(counts.key)
            sums[counts.key] = counts if known is None else add_statistics(known, counts)
    return list(sums.values())


def add_statistics(one: VersionStatistics, other: VersionStatistics) -> VersionStatistics:
    """Return the sum of two counts of the same model version; the last inference is the later one."""
    return replace(
        _added(one, other),
        last_inference_ms=max(one.last_inference_ms, other.last_inference_ms),
        batch_stats=_added_batches(one.batch_stats, other.batch_stats),
    )


def _added_batches(one: Sequence[BatchStatistics], other: Sequence[BatchStatistics]) -> Sequence[BatchStatistics]:
    sizes: dict[int, BatchStatistics] = {entry.batch_size: entry for entry in one}
    for entry in other:
        known = sizes.get(entry.batch_size)
        added = entry if known is None else replace(_added(known, entry), batch_size=entry.batch_size)
        sizes[entry.batch_size] = added
    return [sizes[size] for size in sorted(sizes)]


def _added(one: _T, other: _T) -> _T:
    """Add values of the same form: numbers, and structures of numbers; names are from `one`."""
    values: tuple[Any, Any] = (one, other)
    if is_dataclass(one) and not isinstance(one, type):
        return replace(one, **{f.name: _added(getattr(one, f.name), getattr(other, f.name)) for f in fields(one)})
    if isinstance(one, int):
        return values[0] + values[1]  # type: ignore[no-any-return]  # two integers
    if isinstance(one, Mapping):
        return _added_mappings(*values)  # type: ignore[return-value]  # a mapping, as both are
    if isinstance(one, Sequence) and not isinstance(one, str):
        return _added_sequences(*values)  # type: ignore[return-value]  # a sequence, as both are
    return one


def _added_mappings(one: Mapping[Any, Any], other: Mapping[Any, Any]) -> dict[Any, Any]:
    added = {**one}
    for key, value in other.items():
        added[key] = _added(added[key], value) if key in added else value
    return added


def _added_sequences(one: Sequence[Any], other: Sequence[Any]) -> tuple[Any, ...]:
    """Add position by position; the longer one keeps its tail."""
    missing = object()
    pairs = zip_longest(one, other, fillvalue=missing)
    return tuple(b if a is missing else a if b is missing else _added(a, b) for a, b in pairs)
