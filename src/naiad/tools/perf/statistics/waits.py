"""Requests that had no response when the measurement ended: as errors, in the distribution, and in the verdict."""

from collections.abc import Sequence

import numpy as np

from naiad.tools.measure.intervals import Floats, Sample
from naiad.tools.measure.result import Errors, error_share
from naiad.tools.perf.perf_exchange import CONNECTION, TIMEOUT, UNANSWERED
from naiad.tools.perf.perf_plan import Concurrency, Load
from naiad.tools.perf.records import Measurement

_SILENT_KINDS = (TIMEOUT,)
"""Failures whose requests also waited in vain: their time is part of the distribution."""
_SILENT = (UNANSWERED, CONNECTION, *_SILENT_KINDS)
_MOST_FOR_ONE = 10
_SILENT_SHARE = 0.01


def unanswered(measurement: Measurement, model_index: int) -> Sequence[Errors]:
    """Return the requests of a model that never got a response, as an error of its own kind.

    They may be older than the last windows, from the warm-up for example: they are a part of all requests since then.
    """
    unended = measurement.unended
    silent_s = [
        age_ns / 1e9
        for model, age_ns, is_answered in zip(unended.model, unended.age_ns, unended.is_answered, strict=True)
        if model == model_index and not is_answered
    ]
    if not silent_s:
        return ()
    among = int((measurement.columns.model == model_index).sum()) + measurement.ended_outside[model_index]
    text = f"no response, the oldest request waits since {max(silent_s):.1f} s"
    return (Errors(UNANSWERED, len(silent_s), text, among=among),)


def is_server_silent(errors: Sequence[Errors], successes: int) -> bool:
    """Whether over 1 % of the requests got no response: the generator then waits for a server that is not there."""
    others = sum(each.count for each in errors if each.kind not in _SILENT)
    silent = [each for each in errors if each.kind in _SILENT]
    return error_share(silent, successes + others) > _SILENT_SHARE


def waiting_text(load: Load, measurement: Measurement) -> str:
    """Return what waited at the end: `3 of 4 slots wait since 12 s`; "" for nothing."""
    unended = measurement.unended
    count = len(unended.age_ns)
    if not count:
        return ""
    answered = sum(unended.is_answered)
    oldest = f"{max(unended.age_ns) / 1e9:.1f} s"
    if isinstance(load, Concurrency):
        what = f"{count} of {load.value} slots"
    else:
        what = "1 request" if count == 1 else f"{count} requests"
    verb = "waits" if count == 1 and not isinstance(load, Concurrency) else "wait"
    text = f"{what} {verb} since {oldest} for a response"
    return f"{text} ({answered} got it after the end)" if answered else text


def with_unended(sample: Sample, measurement: Measurement, model_index: int, *, is_closed: bool) -> Sample:
    """Add the requests that wait, with their ages so far, and those that reached their time limit.

    A slot of a closed loop that is stuck sends nothing: its one request stands for those that it kept from being
    sent, as many as the ages are times the mean latency, so that percentiles show the share of the slots that wait.
    """
    ages_us = _timeouts_us(measurement, model_index)
    unended = measurement.unended
    waiting_us = np.array(unended.age_ns, np.float64)[np.array(unended.model, np.int64) == model_index] / 1e3
    if is_closed and len(sample.values) and len(waiting_us):
        each = waiting_us / max(float(sample.values.mean()), 1.0)
        most = _MOST_FOR_ONE * len(sample.values) / len(waiting_us)
        waiting_us = np.repeat(waiting_us, np.clip(each, 1, max(most, 1)).astype(np.int64))
    ages_us = np.concatenate((ages_us, waiting_us))
    return sample.extended(ages_us) if len(ages_us) else sample


def _timeouts_us(measurement: Measurement, model_index: int) -> Floats:
    columns = measurement.columns
    numbers = [place + 1 for place, each in enumerate(columns.failures) if each.kind in _SILENT_KINDS]
    if not numbers:
        return np.empty(0)
    is_chosen = np.isin(columns.failure, numbers) & (columns.model == model_index)
    is_chosen &= (columns.end_ns > measurement.begin_ns) & (columns.end_ns <= measurement.end_ns)
    times: Floats = (columns.end_ns - columns.intended_ns)[is_chosen] / 1e3
    return times
