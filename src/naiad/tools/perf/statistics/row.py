"""A measurement of a load as a row of the result, with the verdict what has limited the throughput."""

import ipaddress
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import numpy as np

from naiad.tools.measure.intervals import Floats, Sample, histogram, latency, latency_without_times, rank
from naiad.tools.measure.result import ClientFigures, Errors, GeneratorFigures, Latency, Parts, Row, ServerFigures
from naiad.tools.perf.perf_exchange import WRONG_ANSWER
from naiad.tools.perf.perf_plan import (
    Concurrency,
    Intervals,
    Load,
    PeriodicConcurrency,
    Plan,
    Ramp,
    RequestRate,
    Schedule,
    Stop,
)
from naiad.tools.perf.records import GeneratorFacts, Measurement
from naiad.tools.perf.statistics import waits
from naiad.tools.perf.statistics.server_figures import metric_figures, server_figures
from naiad.tools.perf.statistics.stability import StabilityVerdict, judged_value, verdict
from naiad.tools.perf.statistics.timing import parts

if TYPE_CHECKING:
    from typing import Any

_TIMELINE_WINDOWS = 60
_SHORTEST_WINDOW_NS = 100_000_000


def row(plan: Plan, model_index: int, load: Load, measurement: Measurement) -> Row:
    """Figures of a model of the plan. Without successes all times and rates are 0."""
    model, measuring = plan.models[model_index], plan.measuring
    requests = _Requests(measurement, model_index, is_counted=measuring.stop is Stop.REQUEST_COUNT)
    latency_us = requests.times_us("intended_ns", "end_ns")
    total = requests.sample(latency_us)
    shown = waits.with_unended(total, measurement, model_index, is_closed=isinstance(load, Concurrency))
    service = latency(requests.sample(requests.times_us("sent_ns", "end_ns")), measuring.percentile)
    server = server_figures(measurement, model.name, model.version, plan.composing_models)
    client = _client(requests, service, server)
    facts = measurement.generator
    mode, value = mode_and_value(load)
    asked_per_s = 0.0 if isinstance(load, Concurrency | PeriodicConcurrency) else value
    shown_latency = latency(shown, measuring.percentile)
    failures = requests.errors()
    errors = [*waits.unanswered(measurement, model_index), *failures]
    limit = limited_by(
        facts, asked_per_s, requests.ended_per_s, service, client, is_remote(plan.service.url), shown_latency
    )
    if waits.is_server_silent(errors, len(latency_us)):
        limit = "server"
    is_good = latency_us <= (measuring.slo_us or np.inf)
    state = _state(plan, load, measurement, failures, len(latency_us))
    return Row(
        mode=mode,
        value=value,
        model=model.name,
        batch_size=model.batch_size,
        duration_s=requests.duration_s,
        request_count=len(latency_us),
        throughput=total.rate(),
        goodput=requests.sample(latency_us, is_good).rate(),
        response_throughput=requests.per_second(int(requests.column("responses").sum())),
        sequences_per_s=requests.per_second(int((requests.column("sequence_end") != 0).sum())),
        latency=shown_latency,
        service=service,
        first_response=requests.first_response(measuring.percentile),
        between_responses=requests.between_responses(measuring.percentile),
        client=client,
        server=server,
        generator=generator_figures(facts, limit),
        errors=errors,
        is_stable=state.is_done and state.is_stable,
        verdict=state.reason,
        windows=_timeline(requests, measuring.percentile),
        parts=requests.parts(measuring.percentile),
        metrics=metric_figures(measurement.metrics, measurement.begin_ns),
        histogram=histogram(latency_us),
        interrupted=measurement.interrupted,
    )


def mode_and_value(load: Load) -> tuple[str, float]:
    """Name of a kind of load and its number: requests outstanding, or the mean requests/s asked for."""
    match load:
        case Concurrency():
            return "concurrency", float(load.value)
        case PeriodicConcurrency():
            return "periodic_concurrency", float(load.end)
        case RequestRate():
            return "request_rate", load.per_s
        case Intervals():
            return "intervals", _mean_rate(len(load.gaps_ns), sum(load.gaps_ns) / 1e9)
        case Schedule():
            return "schedule", _mean_rate(len(load.offsets_ns), max(load.offsets_ns, default=0) / 1e9)
        case Ramp():
            count = sum(phase.duration_s * (phase.start_per_s + phase.end_per_s) / 2 for phase in load.phases)
            return "ramp", _mean_rate(count, sum(phase.duration_s for phase in load.phases))


def _mean_rate(count: float, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0


_WRONG = (WRONG_ANSWER, "validation")


def _state(
    plan: Plan, load: Load, measurement: Measurement, failures: Sequence[Errors], successes: int
) -> StabilityVerdict:
    """Return the verdict of a model's row. Figures are stable only with right answers."""
    begin_ns, end_ns = measurement.begin_ns, measurement.end_ns
    state = verdict(plan.measuring, measurement.columns, measurement.boundaries_ns, begin_ns, end_ns, load)
    if failures or not successes:
        state = _with_failures(state, failures, successes)
    waiting = waits.waiting_text(load, measurement)
    if waiting:
        state = StabilityVerdict(True, False, f"{waiting}; without them: {state.reason}")
    if measurement.interrupted:
        return StabilityVerdict(True, False, f"ended early ({measurement.interrupted}): {state.reason}")
    return state


def _with_failures(state: StabilityVerdict, failures: Sequence[Errors], successes: int) -> StabilityVerdict:
    """Return the verdict of a model with failures, or without any success."""
    failed = sum(each.count for each in failures)
    wrong = sum(each.count for each in failures if each.kind in _WRONG)
    if not failed:
        return StabilityVerdict(True, False, f"no request has ended: {state.reason}")
    if not successes:
        first = failures[0]
        return StabilityVerdict(
            True, False, f"each of {failed} requests failed, most of them with {first.kind}: {first.message}"
        )
    total = successes + failed
    if wrong:
        return StabilityVerdict(True, False, f"{wrong} of {total} answers were wrong; the rest: {state.reason}")
    reason = f"{failed} of {total} requests failed; the rest: {state.reason}"
    return StabilityVerdict(state.is_done, state.is_stable and failed <= successes, reason)


class _Requests:
    """The requests of a model that ended within a measurement."""

    def __init__(self, measurement: Measurement, model_index: int, *, is_counted: bool) -> None:
        self._columns = columns = measurement.columns
        self.boundaries_ns = measurement.boundaries_ns
        first, last = np.searchsorted(columns.end_ns, (measurement.begin_ns, measurement.end_ns), side="right")
        is_of_model = columns.model[first:last] == model_index
        places = np.flatnonzero(is_of_model) + first
        is_success = columns.failure[places] == 0
        self._successes, self._failures = places[is_success], places[~is_success]
        self.begin_ns, self.end_ns = measurement.begin_ns, measurement.end_ns
        if is_counted and last > first:
            self.end_ns = int(columns.end_ns[last - 1])
        self.duration_s = max((self.end_ns - self.begin_ns) / 1e9, 0.0)
        self.ends_ns = columns.end_ns[self._successes]
        self.ended_per_s = self.per_second(int(last - first))
        """Of all models."""

    def column(self, name: str) -> "np.ndarray[Any, Any]":
        """Of the successes."""
        values: np.ndarray[Any, Any] = getattr(self._columns, name)[self._successes]
        return values

    def times_us(self, begin: str, end: str) -> Floats:
        """From one moment of each success to another."""
        times: Floats = np.maximum(self.column(end) - self.column(begin), 0) / 1e3
        return times

    def sample(self, values: Floats, chosen: "np.ndarray[Any, Any] | None" = None) -> Sample:
        """Values of the successes, or of the chosen ones of them."""
        if chosen is None:
            return Sample(self.ends_ns, values, self.begin_ns, self.end_ns)
        return Sample(self.ends_ns[chosen], values[chosen], self.begin_ns, self.end_ns)

    def per_second(self, count: int) -> float:
        """A count as a rate."""
        return count / self.duration_s if self.duration_s else 0.0

    def first_response(self, percentile: int | None) -> Latency | None:
        """From the intended send; None where no request has several responses or an empty last one."""
        if not len(self._columns.gaps_ns) and not (self.column("responses") > 1).any():
            return None
        return latency(self.sample(self.times_us("intended_ns", "first_ns")), percentile)

    def between_responses(self, percentile: int | None) -> Latency | None:
        """Of all models together: gaps are not kept by model."""
        if not len(self._columns.gaps_ns):
            return None
        return latency_without_times(self._columns.gaps_ns, percentile)

    def parts(self, percentile: int | None) -> Parts | None:
        """The breakdown of the successes on one clock."""
        return parts(self._columns, self._successes, percentile)

    def errors(self) -> Sequence[Errors]:
        """By kind, most frequent first."""
        counts = np.bincount(self._columns.failure[self._failures])
        found = [(int(counts[number]), self._columns.failures[number - 1]) for number in np.flatnonzero(counts)]
        found.sort(key=lambda each: -each[0])
        return [Errors(failure.kind, count, failure.message) for count, failure in found]


def _client(requests: _Requests, service: Latency, server: ServerFigures | None) -> ClientFigures:
    receive_us = _mean(requests.times_us("first_ns", "end_ns"))
    in_server = 0.0
    if server is not None:
        in_server = server.queue_us + server.compute_input_us + server.compute_infer_us + server.compute_output_us
        in_server += server.cache_hit_us + server.cache_miss_us
    return ClientFigures(
        send_us=_mean(requests.times_us("start_ns", "sent_ns")),
        receive_us=receive_us,
        network_us=max(service.mean.value - receive_us - in_server, 0.0) if server is not None else 0.0,
    )


def _mean(values: Floats) -> float:
    return float(values.mean()) if len(values) else 0.0


def _timeline(requests: _Requests, percentile: int | None) -> Sequence[tuple[float, float, float]]:
    """The windows of the measurement, or up to 60 equal ones of at least 0.1 s where it has a single window."""
    edges = np.asarray(requests.boundaries_ns, dtype=np.float64)
    edges = edges[(edges >= requests.begin_ns) & (edges <= requests.end_ns)]
    span_ns = requests.end_ns - requests.begin_ns
    if span_ns <= 0:
        return ()
    if len(edges) <= 2:
        windows = min(max(span_ns // _SHORTEST_WINDOW_NS, 1), _TIMELINE_WINDOWS)
        edges = np.linspace(requests.begin_ns, requests.end_ns, windows + 1)
    places = np.searchsorted(requests.ends_ns, edges, side="right")
    latency_us = requests.times_us("intended_ns", "end_ns")
    timeline = []
    for number, (begin, end) in enumerate(pairwise(edges)):
        values = latency_us[places[number] : places[number + 1]]
        rate = len(values) / ((end - begin) / 1e9)
        timeline.append((float(begin - requests.begin_ns) / 1e9, rate, judged_value(percentile, values)))
    return timeline


# --- what has limited the throughput ------------------------------------------------------------------------------

_BUSY_CORE = 0.9
_NEAR_CEILING = 0.9
_LATE_NS = 1_000_000
_LATE_LATENCY_SHARE = 0.05
_NETWORK_SHARE = 0.5
_SERVED_SHARE = 0.98
_UNSENT_SHARE = 0.01


def generator_figures(facts: GeneratorFacts, limited_by: str) -> GeneratorFigures:
    """Lateness is 0 in a closed loop, where nothing is due at a moment."""
    late = np.sort(facts.late_ns)
    count = len(late)
    return GeneratorFigures(
        processes=facts.processes,
        cpu_share=facts.busiest_cpu_share,
        ceiling_per_s=facts.ceiling_per_s,
        late_p50_us=float(late[rank(count, 0.5)]) / 1e3 if count else 0.0,
        late_p99_us=float(late[rank(count, 0.99)]) / 1e3 if count else 0.0,
        late_share=float((late > _LATE_NS).mean()) if count else 0.0,
        limited_by=limited_by,
    )


def limited_by(
    facts: GeneratorFacts,
    asked_per_s: float,
    ended_per_s: float,
    service: Latency,
    client: ClientFigures,
    is_remote: bool,
    latency: Latency | None = None,
) -> str:
    """`generator`, `network`, `server` or `load`, in this order of precedence.

    generator: its busiest process used 0.9 of a core, or p50 or p99 of the lateness is over 1 ms and 5 % of the same
        percentile of `latency` (of the service time without it), or the rate reached 0.9 of its ceiling.
    load: an open loop was served in full: 98 % of the rate that was asked for (0 in a closed loop), less the
        deviation of random gaps, and 99 % had left at the end.
    network: over half of the service time on a way between hosts was spent outside the server's counters.
    server: the rest; what a closed loop measures.
    """
    if _is_generator(facts, ended_per_s, latency or service):
        return "generator"
    if asked_per_s and _is_served(facts, asked_per_s, ended_per_s):
        return "load"
    if is_remote and client.network_us > _NETWORK_SHARE * service.mean.value > 0:
        return "network"
    return "server"


def _is_generator(facts: GeneratorFacts, ended_per_s: float, latency: Latency) -> bool:
    late = np.sort(facts.late_ns)
    is_late = len(late) > 0 and any(
        late[rank(len(late), percent / 100)]
        > max(_LATE_NS, _LATE_LATENCY_SHARE * latency.percentiles[percent].value * 1e3)
        for percent in (50, 99)
    )
    is_near_ceiling = 0 < facts.ceiling_per_s * _NEAR_CEILING <= ended_per_s
    return facts.busiest_cpu_share >= _BUSY_CORE or bool(is_late) or is_near_ceiling


def _is_served(facts: GeneratorFacts, asked_per_s: float, ended_per_s: float) -> bool:
    due = asked_per_s * facts.wall_s
    served = ended_per_s * facts.wall_s
    return facts.unsent <= _UNSENT_SHARE * due and served >= _SERVED_SHARE * due - 2 * math.sqrt(due)


def is_remote(url: str) -> bool:
    """The server's address is not one of this host's loopback addresses, a Unix socket or a directory."""
    host = urlsplit(url if "//" in url else f"//{url}").hostname
    if not host or host == "localhost" or "unix" in urlsplit(url).scheme:
        return False
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return True
