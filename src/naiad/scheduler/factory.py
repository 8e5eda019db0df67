"""From a model's configuration to its scheduler."""

from naiad.config.model_config_pb2 import ModelConfig
from naiad.scheduler.api import Scheduler
from naiad.scheduler.direct import DirectScheduler
from naiad.scheduler.dynamic import BatchStrategy, DynamicScheduler
from naiad.scheduler.queue import QueuePolicy


def create_scheduler(
    config: ModelConfig, *, delay_count: int = 0, strategy: BatchStrategy | None = None
) -> Scheduler:
    """Return the scheduler that a complete, valid configuration asks for.

    `delay_count` is the value of TRITONSERVER_DELAY_SCHEDULER: the dynamic batcher holds everything until that many
    requests wait, once. `strategy` is a custom rule of the dynamic batcher.
    """
    # Sequence batching gets schedulers of its own; the repository refuses configurations that ask for what is absent.
    if not config.HasField("dynamic_batching"):
        return DirectScheduler()
    batching = config.dynamic_batching
    return DynamicScheduler(
        max_batch_size=config.max_batch_size,
        preferred_batch_sizes=batching.preferred_batch_size,
        delay_ns=batching.max_queue_delay_microseconds * 1000,
        priority_levels=batching.priority_levels,
        default_priority_level=batching.default_priority_level,
        default_policy=QueuePolicy.from_config(batching.default_queue_policy),
        level_policies={
            level: QueuePolicy.from_config(policy) for level, policy in batching.priority_queue_policy.items()
        },
        strategy=strategy,
        delay_count=delay_count,
    )
