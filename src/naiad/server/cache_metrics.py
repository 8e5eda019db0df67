"""What the response cache holds, as metrics."""

from collections.abc import Callable
from functools import partial
from operator import attrgetter

from naiad.engine.response_cache import CacheCounts, ResponseStore
from naiad.telemetry.exposition import Kind
from naiad.telemetry.metrics import Registry

_CACHE_FAMILIES: tuple[tuple[str, Kind, str, str], ...] = (
    ("naiad_cache_entries", "gauge", "Responses in the cache", "entry_count"),
    ("naiad_cache_bytes", "gauge", "Bytes that the cached responses take", "byte_size"),
    ("naiad_cache_evictions_total", "counter", "Responses that made room for others", "eviction_count"),
    ("naiad_cache_failures_total", "counter", "Times that the cache could not be asked", "failure_count"),
    ("naiad_cache_oldest_age_seconds", "gauge", "Age of the oldest response in the cache", "oldest_age_s"),
)


def show_cache(registry: Registry, store: ResponseStore) -> None:
    """Add the metrics of a store."""
    for name, kind, text, field in _CACHE_FAMILIES:
        registry.add_callback(name, kind, text, partial(_read, store, attrgetter(field)))


def _read(store: ResponseStore, field: Callable[[CacheCounts], float]) -> float:
    return field(store.counts())
