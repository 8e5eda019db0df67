"""The JSON payload of how a model is scheduled: its queue, its batches and their reasons."""

from typing import Any

import orjson

from naiad.core.model import AdaptiveState, name_of
from naiad.telemetry.statistics.version_statistics import Duration, Explanation, RecentBatch, StepStatistics


def encode_explanation(explanation: Explanation) -> bytes:
    """Return the body. Durations are in microseconds."""
    counts = explanation.counts
    body: dict[str, Any] = {
        "name": explanation.name,
        "version": explanation.version,
        "scheduler": explanation.scheduler,
        "rules": list(explanation.rules),
        "hints": list(explanation.hints),
        "instances": explanation.instance_count,
        "waiting": explanation.waiting,
        "executing": explanation.in_flight - explanation.waiting,
        "queue_mean_us": _mean_us(counts.queue),
        "batches": counts.execution_count,
        "batch_sizes": {str(batch.batch_size): batch.compute_infer.count for batch in counts.batch_stats},
        "release_reasons": counts.release_reasons,
        "recent_batches": [_batch(batch, explanation.now_ns) for batch in reversed(explanation.recent)],
        "completed_fields": list(explanation.completed_fields),
    }
    if counts.padding:
        body["padding"] = dict(counts.padding)
    if counts.steps:
        body["steps"] = [_explained_step(step) for step in counts.steps]
    if explanation.resources:
        body["resources"] = [resource._asdict() for resource in explanation.resources]
    if explanation.adaptive is not None:
        body["adaptive"] = _adaptive(explanation.adaptive)
    return orjson.dumps(body)


def _batch(batch: RecentBatch, now_ns: int) -> dict[str, Any]:
    row = {
        "ended_us_ago": _us(now_ns - batch.end_ns),
        "rows": batch.rows,
        "requests": batch.requests,
        "waited_us": _us(batch.start_ns - batch.arrival_ns),
        "executed_us": _us(batch.end_ns - batch.start_ns),
        "reason": batch.reason,
    }
    return {**row, "decision": batch.decision} if batch.decision else row


def _explained_step(step: StepStatistics) -> dict[str, Any]:
    return {
        "model": name_of(step.model),
        "requests": step.success.count,
        "failed": step.fail.count,
        "mean_us": _mean_us(step.success),
        "queue_mean_us": _mean_us(step.queue),
        "compute_mean_us": _mean_us(step.compute),
    }


def _mean_us(duration: Duration) -> float:
    return round(duration.ns / duration.count / 1000, 1) if duration.count else 0.0


def _adaptive(state: AdaptiveState) -> dict[str, Any]:
    return {
        "fixed_us": _us(state.fixed_ns),
        "row_us": _us(state.row_ns),
        "tail_ratio": round(state.tail_ratio, 2),
        "parallelism": round(state.parallelism, 2),
        "arrivals_per_s": round(state.arrival_rate, 1),
        "holds": state.hold_count,
        "held_mean_us": _us(state.hold_ns / state.hold_count) if state.hold_count else 0.0,
        "decisions": dict(state.decisions),
    }


def _us(ns: float) -> float:
    return round(ns / 1000, 1)
