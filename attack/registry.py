"""Names every attack, the protocols it speaks, and what it may cost the server."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from attack.target import Target

HTTP1, HTTP2, GRPC = "http1", "http2", "grpc"
PROTOCOLS = (HTTP1, HTTP2, GRPC)
"""HTTP/1.1, REST over HTTP/2, and gRPC."""

_SHORT_SHARE = 0.1
_SHORT_CPU_S = 1.0
_SHORT_CPU_FACTOR = 5.0
"""CI runs on slow, shared machines: the short form finds costs of another order of magnitude."""


@dataclass(frozen=True)
class Limits:
    """The most that an attack may cost; sizes in MiB of resident memory over all processes of the server."""

    cpu_s: float
    """CPU seconds of the server for the whole attack."""
    peak_mib: float = 64.0
    """Growth at the worst moment."""
    kept_mib: float = 20.0
    """Growth that is left once the attack is over."""
    block_ms: float = 50.0
    """CPU time that the event loop spends between a probe's request and its answer."""
    p99_ms: float = 100.0
    """99th percentile of the probes' response times."""

    def in_short_form(self) -> "Limits":
        """Return the limits for a tenth of the work on a machine that others use: no response times."""
        return Limits(
            cpu_s=_SHORT_CPU_FACTOR * (_SHORT_CPU_S + _SHORT_SHARE * self.cpu_s),
            peak_mib=self.peak_mib + 16.0,
            kept_mib=self.kept_mib + 16.0,
            block_ms=1000.0,
            p99_ms=float("inf"),
        )


Run: TypeAlias = Callable[[Target], None]


@dataclass(frozen=True)
class Attack:
    """One way to harm a server."""

    name: str
    what: str
    """One line for the table and for `--list`."""
    protocols: Sequence[str]
    limits: Limits
    run: Run


ATTACKS: dict[str, Attack] = {}


def attack(*protocols: str, limits: Limits) -> Callable[[Run], Run]:
    """Register a function as an attack; its name and the first line of its docstring describe it."""

    def register(run: Run) -> Run:
        name = run.__name__
        if name in ATTACKS:
            raise ValueError(f"two attacks are named {name}")
        ATTACKS[name] = Attack(name, (run.__doc__ or "").partition("\n")[0].rstrip("."), protocols, limits, run)
        return run

    return register
