"""A rollout at one moment, for clients and logs."""

from dataclasses import dataclass
from typing import Any

from naiad.config.rollout.guard import SHADOW_RESULTS, RolloutCounts, SideCounts, quantile_ns
from naiad.config.rollout.rollout_declaration import FULL_PERCENT
from naiad.config.rollout.state import RolloutState, weights_left


@dataclass(frozen=True, slots=True)
class RolloutStatus:
    """The state of a model's rollout with its counts."""

    model: str
    state: RolloutState
    counts: RolloutCounts
    """Since the state was set."""
    age_s: float
    """Time since the state was set in this process."""
    record: str = ""
    """Path or URL of what is stored of it; empty if it ends with the server."""
    unstored: str = ""
    """Why the state could not be stored, so that the next start does not know it; empty if it is stored."""
    unshared: str = ""
    """Why other servers do not see the state, which is stored in this server's cache alone; empty if they do."""

    def as_tree(self) -> dict[str, Any]:
        """Return the document that clients get; `rollout` is None after the end of a rollout."""
        state, rollout = self.state, self.state.rollout
        tree: dict[str, Any] = {"model": self.model, "rollout": None if rollout is None else rollout.as_tree()}
        tree |= {"note": state.note, "revision": state.revision, "age_s": round(self.age_s, 3)}
        tree |= {
            "refused": {str(version): reason for version, reason in state.refused.items()},
            "record": self.record,
            "unstored": self.unstored,
            "unshared": self.unshared,
        }
        if rollout is None:
            return tree
        tree["previous"] = state.previous
        tree["step"] = None if state.step is None else state.step + 1
        tree["weights_left"] = list(weights_left(state))
        tree["stable"] = side_tree(rollout.stable, FULL_PERCENT - rollout.weight, self.counts.stable)
        if rollout.canary is not None:
            tree["canary"] = side_tree(rollout.canary, rollout.weight, self.counts.canary)
        if rollout.shadow:
            tree["shadow"] = {name: self.counts.shadow.get(name, 0) for name in SHADOW_RESULTS}
        return tree


def side_tree(version: int, percent: float, counts: SideCounts) -> dict[str, Any]:
    """Return the figures of one side; latencies are None without successful requests."""
    return {
        "version": version,
        "percent": percent,
        "requests": counts.requests,
        "errors": counts.errors,
        "error_rate": counts.error_rate,
        "p50_ms": _ms(quantile_ns(counts.latencies, 0.5)),
        "p99_ms": _ms(quantile_ns(counts.latencies, 0.99)),
    }


def _ms(duration_ns: int | None) -> float | None:
    return None if duration_ns is None else round(duration_ns / 1e6, 3)


def figures(state: RolloutState, counts: RolloutCounts) -> str:
    """Return the counts in one line for a log."""
    rollout = state.rollout
    if rollout is None:
        return "no rollout"
    parts = [_side_text("stable", rollout.stable, counts.stable)]
    if rollout.canary is not None:
        parts.append(_side_text("canary", rollout.canary, counts.canary))
    if counts.shadow and any(counts.shadow.values()):
        parts.append("shadow: " + ", ".join(f"{counts.shadow.get(name, 0)} {name}" for name in SHADOW_RESULTS))
    return "; ".join(parts)


def _side_text(role: str, version: int, counts: SideCounts) -> str:
    text = f"{role} {version}: {counts.requests} requests, {counts.errors} failed"
    p99_ns = quantile_ns(counts.latencies, 0.99)
    return text if p99_ns is None else f"{text}, p99 {p99_ns / 1e6:.2f} ms"
