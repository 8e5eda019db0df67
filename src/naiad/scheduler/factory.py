"""Creates the scheduler of a model from its configuration."""

from typing import Any

from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.model_profile import ModelProfile
from naiad.config.naiad_parameters import read_adaptive_batching
from naiad.config.tensors.padding import read_padding
from naiad.options.artificial_delays import ArtificialDelays
from naiad.scheduler.adaptive import AdaptiveScheduler
from naiad.scheduler.api import Scheduler
from naiad.scheduler.direct import DirectScheduler
from naiad.scheduler.dynamic import BatchStrategy, DynamicScheduler
from naiad.scheduler.overload import OverloadPolicy
from naiad.scheduler.queue import QueueLimits

_NO_DELAYS = ArtificialDelays()


def create_scheduler(
    config: ModelConfig,
    *,
    instance_count: int = 1,
    delays: ArtificialDelays = _NO_DELAYS,
    strategy: BatchStrategy | None = None,
    overload: OverloadPolicy | None = None,
    profile: ModelProfile | None = None,
) -> Scheduler:
    """Return the scheduler for a complete, valid configuration.

    `strategy` is a custom rule of the dynamic batcher. Sequences have their slots on `instance_count` instances.
    `delays` hold requests back, for tests. `overload` is the server's policy for models without a queue policy in
    their configuration; it does not apply to sequences, nor to models with ordered responses. `profile`
    is where adaptive batching starts.
    """
    if config.HasField("sequence_batching"):
        return _create_sequence_scheduler(config, max(1, instance_count), delays)
    if not config.HasField("dynamic_batching"):
        return DirectScheduler(overload)
    if config.dynamic_batching.preserve_ordering:
        overload = None
    adaptive = read_adaptive_batching(config)
    delay_ns = config.dynamic_batching.max_queue_delay_microseconds * 1000
    options = _dynamic_options(config)
    options |= {"strategy": strategy, "delay_count": delays.scheduler_count, "overload": overload}
    if adaptive is None:
        return DynamicScheduler(delay_ns=delay_ns, **options)
    return AdaptiveScheduler(
        max_hold_ns=delay_ns,
        latency_goal_ns=adaptive.latency_goal_ns,
        instance_count=instance_count,
        profile=profile,
        **options,
    )


def _dynamic_options(config: ModelConfig) -> dict[str, Any]:
    """Return the arguments that all dynamic batchers share."""
    batching = config.dynamic_batching
    padding = read_padding(config)
    return {
        "max_batch_size": config.max_batch_size,
        "skips_shapes": padding is not None and bool(padding.inputs),
        "preferred_batch_sizes": batching.preferred_batch_size,
        "priority_levels": batching.priority_levels,
        "default_priority_level": batching.default_priority_level,
        "default_policy": (
            QueueLimits.from_config(batching.default_queue_policy)
            if batching.HasField("default_queue_policy")
            else None
        ),
        "level_policies": {
            level: QueueLimits.from_config(policy) for level, policy in batching.priority_queue_policy.items()
        },
    }


def _create_sequence_scheduler(config: ModelConfig, instance_count: int, delays: ArtificialDelays) -> Scheduler:
    # Most servers have no model with sequences.
    from naiad.scheduler.sequence.strategies import DirectSequenceScheduler, OldestSequenceScheduler

    batching = config.sequence_batching
    options: dict[str, Any] = {
        "model_name": config.name,
        "instance_count": instance_count,
        "max_batch_size": config.max_batch_size,
        # Triton: one second, unless the configuration has another value.
        "idle_ns": (batching.max_sequence_idle_microseconds or 1_000_000) * 1000,
        "is_decoupled": config.model_transaction_policy.decoupled,
        "is_iterative": batching.iterative_sequence,
        "delay_count": delays.scheduler_count,
    }
    if batching.HasField("oldest"):
        oldest = batching.oldest
        return OldestSequenceScheduler(
            max_candidate_sequences=oldest.max_candidate_sequences,
            preferred_batch_sizes=oldest.preferred_batch_size,
            delay_ns=oldest.max_queue_delay_microseconds * 1000,
            **options,
        )
    return DirectSequenceScheduler(
        delay_ns=batching.direct.max_queue_delay_microseconds * 1000,
        minimum_slot_utilization=batching.direct.minimum_slot_utilization,
        backlog_delay_count=delays.backlog_count,
        **options,
    )
