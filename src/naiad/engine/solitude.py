"""Notices clients that send one request at a time to a model that batches."""

from naiad.config.model_config_pb2 import ModelConfig

ENOUGH = 1000
"""Batches of one request in a row, with nothing beside them, that are worth a hint."""


class Solitude:
    """Counts batches that had company in neither queue nor instances; tells once when there are many in a row."""

    __slots__ = ("_count",)

    def __init__(self) -> None:
        self._count = 0

    def observe(self, in_flight: int) -> bool:
        """Note a batch while so many requests wait or execute, its own included; True when it is the last of many."""
        # hot: once a batch
        if in_flight > 1:
            self._count = 0
            return False
        self._count += 1
        return self._count == ENOUGH


def watch_for_solitude(config: ModelConfig) -> Solitude | None:
    """Return what watches a model; None for one whose requests never share a batch, or whose batches stay open."""
    batches = config.HasField("dynamic_batching") and config.max_batch_size > 1
    return Solitude() if batches and not config.model_transaction_policy.decoupled else None


def solitude_hint(name: str) -> str:
    """Return what to tell about a model."""
    return (
        f"model '{name}' batches, but its last {ENOUGH} requests came one at a time: the next was sent after the "
        "answer. Nothing can batch then; send requests side by side (several connections, or asynchronous calls)"
    )
