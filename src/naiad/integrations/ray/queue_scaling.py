"""How many replicas the requests that wait in naiad's queues need. Serve's controller imports it."""

from typing import Any

PENDING = "naiad_pending_requests"
"""Name of the metric of a replica."""


class QueueScaling:
    """Serve calls it a few times a second; it applies least, most and delays of the deployment to the result."""

    def __init__(self, target_queue: float) -> None:
        """`target_queue` is the number of waiting requests that a replica should have, on average."""
        self._target_queue = target_queue

    def __call__(self, context: Any) -> tuple[float, dict[str, Any]]:
        """Return the wanted replicas for the metrics of an `AutoscalingContext`, and no state.

        The formula is that of the chart for Kubernetes: all waiting requests, divided by the target. A queue that is
        empty while requests are executed wants one replica less, not none.
        """
        now: int = context.current_num_replicas
        pending = (context.aggregated_metrics or {}).get(PENDING)
        if not pending:
            return context.target_num_replicas, {}
        wanted = sum(pending.values()) / self._target_queue
        if context.total_num_requests > 0:
            wanted = max(wanted, now - 1, 1)
        return wanted, {}
