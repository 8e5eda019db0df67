"""Figures of the load generator and its verdict: what limited the throughput."""

import ipaddress
import math
from urllib.parse import urlsplit

import numpy as np

from naiad.perf.records import GeneratorFacts
from naiad.perf.result import ClientFigures, GeneratorFigures, Latency
from naiad.perf.statistics.intervals import rank

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
) -> str:
    """`generator`, `network`, `server` or `load`, in this order of precedence.

    generator: its busiest process used 0.9 of a core, or 1 % of requests left later than both 1 ms and 5 % of the
        median service time, or the rate reached 0.9 of its ceiling.
    load: an open loop was served in full: 98 % of the rate that was asked for (0 in a closed loop), less the
        deviation of random gaps, and 99 % had left at the end.
    network: over half of the service time on a way between hosts was spent outside the server's counters.
    server: the rest; what a closed loop measures.
    """
    if _is_generator(facts, ended_per_s, service):
        return "generator"
    if asked_per_s and _is_served(facts, asked_per_s, ended_per_s):
        return "load"
    if is_remote and client.network_us > _NETWORK_SHARE * service.mean.value > 0:
        return "network"
    return "server"


def _is_generator(facts: GeneratorFacts, ended_per_s: float, service: Latency) -> bool:
    late = np.sort(facts.late_ns)
    limit_ns = max(_LATE_NS, _LATE_LATENCY_SHARE * service.percentiles[50].value * 1e3)
    is_late = len(late) > 0 and late[rank(len(late), 0.99)] > limit_ns
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
