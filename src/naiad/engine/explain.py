"""Collects the explanation of a version's scheduling."""

import time

from naiad.config.scheduling_rules import batching_hints, scheduler_kind, scheduling_rules
from naiad.engine.serving.served import Served
from naiad.telemetry.explanation import Explanation, ResourceUse


def explain(served: Served) -> Explanation:
    """Return the current state of `served`."""
    config = served.config
    return Explanation(
        name=served.name,
        version=served.version,
        scheduler=scheduler_kind(config),
        rules=scheduling_rules(config),
        hints=batching_hints(config),
        instance_count=len(served.instances),
        waiting=served.pending_count,
        in_flight=served.in_flight_count,
        counts=served.statistics.snapshot(),
        recent=served.statistics.recent_batches(),
        adaptive=served.adaptive_state,
        resources=[
            ResourceUse(usage.resource.name, usage.resource.device, usage.limit, usage.held, usage.waiting)
            for usage in served.resource_usage
        ],
        now_ns=time.monotonic_ns(),
    )
