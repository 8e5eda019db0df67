"""The events of the live stream: server-sent events whose data is JSON, as `dashboard/src/live.ts` declares them."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import orjson

from naiad.core.errors import FailureReason
from naiad.telemetry.live.live_answer import FailureEntry, GpuUse, LiveAnswer, LiveDetail, LogEntry, RequestTimes
from naiad.telemetry.statistics.live_counts import LiveCounts
from naiad.telemetry.statistics.version_statistics import LATENCY_BOUNDS_NS

HEARTBEAT = b":\n\n"
"""A comment, which readers ignore; it shows that the stream lives."""
_BOUNDS_US = [bound // 1000 for bound in LATENCY_BOUNDS_NS]
_NO_LATENCIES = [0] * (len(_BOUNDS_US) + 1)
_REASONS = [reason.value for reason in FailureReason]
_NO_FAILURES = dict.fromkeys(_REASONS, 0)
_NUMBERS = (
    *("success", "failure", "executions", "inferences", "request_ns", "queue_ns", "compute_input_ns"),
    *("compute_ns", "compute_output_ns", "cache_hits", "cache_misses", "pending", "executing"),
)


def event(name: str, data: bytes) -> bytes:
    """Return an event with a JSON text as its data."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), data)


def encode_version(row: LiveCounts) -> bytes:
    """Return a version's sample as JSON."""
    values: dict[str, Any] = dict(zip(_NUMBERS, row, strict=False))
    values["failures"] = dict(zip(_REASONS, row.failures, strict=True)) if row.failures else _NO_FAILURES
    values["latency_counts"] = row.latency_counts or _NO_LATENCIES
    values["bounds_us"] = _BOUNDS_US
    values["batch_sizes"] = {str(size): count for size, count in row.batch_sizes}
    return orjson.dumps(values)


def encode_sample(answer: LiveAnswer, time_ms: int, versions: Sequence[tuple[str, bytes]]) -> bytes:
    """Return the event `sample`; `versions` are the names and encoded samples of those that have changed."""
    opening: dict[str, Any] = {
        "time_ms": time_ms,
        "process": {
            "cpu_s": round(answer.cpu_s, 3),
            "resident_bytes": answer.resident_bytes,
            "in_flight": answer.in_flight,
        },
    }
    if answer.gpus:
        opening["gpus"] = [_gpu(gpu) for gpu in answer.gpus]
    parts = b",".join([b"%s:%s" % (orjson.dumps(printable(name)), data) for name, data in versions])
    return event("sample", b'%s,"versions":{%s}}' % (orjson.dumps(opening)[:-1], parts))


def _gpu(gpu: GpuUse) -> dict[str, Any]:
    return {
        "index": gpu.index,
        "utilization": gpu.utilization,
        "used_bytes": gpu.used_bytes,
        "total_bytes": gpu.total_bytes,
    }


def encode_server(values: Mapping[str, Any]) -> bytes:
    """Return the event `server`."""
    return event("server", orjson.dumps(values))


def encode_models(rows: Sequence[Mapping[str, Any]], left_out: int) -> bytes:
    """Return the event `models`."""
    return event("models", orjson.dumps({"models": rows, "left_out": left_out}))


def encode_detail(model: str, detail: LiveDetail, *, has_ids: bool) -> bytes:
    """Return the event `detail`. Without `has_ids` requests have no ids: they are texts of clients."""
    body = {
        "model": printable(model),
        "version": detail.version,
        "recent": [_request(times, has_ids=has_ids) for times in detail.recent],
        "slowest": [_request(times, has_ids=has_ids) for times in detail.slowest],
        "batches": [batch._asdict() for batch in detail.batches],
        "instances": [
            {name: value for name, value in instance._asdict().items() if value is not None}
            for instance in detail.instances
        ],
        "calls": {printable(name): counts._asdict() for name, counts in detail.calls.items()},
    }
    return event("detail", orjson.dumps(body))


def _request(times: RequestTimes, *, has_ids: bool) -> dict[str, Any]:
    return {
        "id": printable(times.id) if has_ids else "",
        "time_ms": times.time_ms,
        "outcome": times.outcome,
        "batch_size": times.batch_size,
        "queue_us": times.queue_ns // 1000,
        "input_us": times.input_ns // 1000,
        "compute_us": times.compute_ns // 1000,
        "output_us": times.output_ns // 1000,
        "response_us": times.response_ns // 1000,
    }


def encode_failures(entries: Sequence[FailureEntry], left_out: int, names: Collection[str] | None) -> bytes:
    """Return the event `failures`.

    With `names` it has no texts of clients: neither ids nor messages, and only models and versions that are among the
    names, `model` and `model/version`.
    """
    rows = entries if names is None else [_without_texts(entry, names) for entry in entries]
    return event("failures", _tail("failures", [row._asdict() for row in rows], left_out))


def _without_texts(entry: FailureEntry, names: Collection[str]) -> FailureEntry:
    model = entry.model if entry.model in names else ""
    version = entry.version if f"{model}/{entry.version}" in names else ""
    return entry._replace(id="", message="", model=model, version=version)


def encode_log(entries: Sequence[LogEntry], left_out: int) -> bytes:
    """Return the event `log`."""
    return event("log", _tail("lines", [entry._asdict() for entry in entries], left_out))


def encode_gone(reason: str) -> bytes:
    """Return the event `gone`, the last one of a stream."""
    return event("gone", orjson.dumps({"reason": reason}))


def _tail(name: str, rows: Sequence[Mapping[str, Any]], left_out: int) -> bytes:
    printed = [{key: printable(v) if isinstance(v, str) else v for key, v in row.items()} for row in rows]
    return orjson.dumps({name: printed, "left_out": left_out})


def printable(text: str) -> str:
    """Return a text that JSON can have: Python's texts of undecodable file names cannot be encoded."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
