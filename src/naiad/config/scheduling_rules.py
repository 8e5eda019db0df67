"""Describes in words how a configuration schedules a request, and what prevents batching."""

from collections.abc import Iterator, Sequence

from naiad.config.model_config_pb2 import ModelConfig, ModelDynamicBatching, ModelQueuePolicy
from naiad.config.naiad_parameters import read_adaptive_batching
from naiad.config.tensors.padding import MAX_LENGTH, InputPadding, read_padding
from naiad.config.validate.ensemble import condition_of


def scheduler_kind(config: ModelConfig) -> str:
    """Return the kind of scheduler in a configuration."""
    if config.HasField("ensemble_scheduling"):
        return "ensemble"
    if config.HasField("sequence_batching"):
        return f"sequence, {'oldest' if config.sequence_batching.HasField('oldest') else 'direct'}"
    if not config.HasField("dynamic_batching"):
        return "default"
    return "dynamic" if read_adaptive_batching(config) is None else "adaptive"


def scheduling_rules(config: ModelConfig) -> Sequence[str]:
    """Return the rules for a request of the model, one or two sentences each, in order."""
    kind = scheduler_kind(config)
    if kind == "ensemble":
        return [*_cache_rules(config), *_ensemble_rules(config)]
    rules = {"default": _default_rules, "dynamic": _dynamic_rules, "adaptive": _dynamic_rules}
    own_rules = rules.get(kind, _sequence_rules)(config)
    return [*_cache_rules(config), *_padding_rules(config), *own_rules, *_resource_rules(config)]


def _cache_rules(config: ModelConfig) -> Iterator[str]:
    if config.response_cache.enable:
        yield "It is looked up in the response cache first. A hit returns at once, without an instance."


def _padding_rules(config: ModelConfig) -> Iterator[str]:
    padding = read_padding(config)
    for each in padding.inputs.values() if padding is not None else ():
        yield f"Its {each.name} is padded to {_lengths(each)}; longer inputs stay unchanged{_waste(each)}."
    for output, source in padding.outputs.items() if padding is not None else ():
        yield f"Output {output} of its response is cut to the length of input {source}."
    if padding is not None and padding.rows:
        yield f"Its batch is padded to {' or '.join(map(str, padding.rows))} rows."


def _lengths(padding: InputPadding) -> str:
    if padding.buckets:
        return "the next of " + ", ".join(map(str, padding.buckets))
    return f"the next multiple of {padding.multiple_of}" + (
        f", up to {padding.max_length}" if padding.max_length < MAX_LENGTH else ""
    )


def _waste(padding: InputPadding) -> str:
    return (
        f", and so do inputs that would be more than {padding.max_waste:.0%} padding" if padding.max_waste < 1 else ""
    )


def _resource_rules(config: ModelConfig) -> Iterator[str]:
    for number, group in enumerate(config.instance_group):
        needs = [
            f"{each.count} {each.name}{'' if getattr(each, 'global') else ' of its device'}"
            for each in group.rate_limiter.resources
            if each.count
        ]
        if not needs:
            continue
        which = "" if len(config.instance_group) == 1 else f" of {group.name or f'group {number}'}"
        yield (
            f"With --rate-limit=execution_count an instance{which} executes when {' and '.join(needs)} are free. "
            f"Waiting instances take turns; each execution costs {max(1, group.rate_limiter.priority)} turns."
        )


def _default_rules(config: ModelConfig) -> Iterator[str]:
    yield "It is executed alone, by the first free instance; until then it waits in order of arrival."
    if config.max_batch_size > 1:
        yield f"It may have up to {config.max_batch_size} rows; it never shares a batch with other requests."


def _dynamic_rules(config: ModelConfig) -> Iterator[str]:
    batching = config.dynamic_batching
    levels = batching.priority_levels
    if levels:
        yield (
            f"It joins the queue of its priority level, 1 to {levels}, default {batching.default_priority_level}; "
            "batches are filled from level 1 on."
        )
    yield from _policy_rules(batching.default_queue_policy, "" if not levels else " of its level")
    for priority, policy in sorted(batching.priority_queue_policy.items()):
        own = list(_policy_rules(policy, " of its level")) or ["The queue has no limit in time or number."]
        yield f"Otherwise with priority {priority}: {' '.join(own)}"
    yield (
        f"A free instance executes it with the requests around it, up to {max(1, config.max_batch_size)} rows, "
        f"not requests{_same_shapes(config)}."
    )
    preferred = sorted(set(batching.preferred_batch_size))
    if preferred:
        sizes = ", ".join(map(str, preferred))
        yield f"A batch of a preferred size ({sizes}) is sent at once; the largest possible size first."
    yield from _adaptive_rules(config) if read_adaptive_batching(config) else _delay_rules(config)
    yield "While every instance is busy it waits, and its batch grows."
    if batching.preserve_ordering:
        yield "Its response is sent after the responses to earlier requests."


def _same_shapes(config: ModelConfig) -> str:
    padding = read_padding(config)
    if padding is not None and padding.inputs:
        return ", of equal shapes once they are padded"
    if any(tensor.allow_ragged_batch for tensor in config.input):
        return ", of equal shapes except for ragged inputs"
    if any(dim < 0 for tensor in config.input for dim in tensor.dims):
        return ", of equal shapes"
    return ""


def _delay_rules(config: ModelConfig) -> Iterator[str]:
    delay_us = config.dynamic_batching.max_queue_delay_microseconds
    if delay_us:
        yield f"A batch that can still grow waits until its oldest request has waited {delay_us} us."
    else:
        yield "No batch waits: there is no max_queue_delay_microseconds, so it has the requests that are queued."


def _adaptive_rules(config: ModelConfig) -> Iterator[str]:
    adaptive = read_adaptive_batching(config)
    limit_us = config.dynamic_batching.max_queue_delay_microseconds or 1_000_000
    yield (
        "A batch that can still grow waits as long as this has paid off before: until its turn on a device "
        f"that instances share, or for the rest of a burst; at most {limit_us} us."
    )
    if adaptive is not None and adaptive.latency_goal_ns:
        goal_us = adaptive.latency_goal_ns // 1000
        yield f"It waits longer while its response surely stays within {goal_us} us and more requests are likely."


def _policy_rules(policy: ModelQueuePolicy, where: str) -> Iterator[str]:
    if policy.max_queue_size:
        yield f"It is rejected while {policy.max_queue_size} requests{where} wait."
    if policy.default_timeout_microseconds:
        after = f"When it has waited {policy.default_timeout_microseconds} us"
        own = " (or its own timeout, if that is shorter)" if policy.allow_timeout_override else ""
        is_delayed = policy.timeout_action == ModelQueuePolicy.TimeoutAction.DELAY
        yield f"{after}{own} it {'moves to the end of the queue' if is_delayed else 'fails with UNAVAILABLE'}."


def _sequence_rules(config: ModelConfig) -> Iterator[str]:
    batching = config.sequence_batching
    if batching.iterative_sequence:
        yield "It is a sequence of its own, and executes with other sequences repeatedly until the model ends it."
    else:
        yield "It must name its sequence; the first of a sequence is marked as its start, the last as its end."
    yield from _oldest_rules(config) if batching.HasField("oldest") else _direct_rules(config)
    yield "A sequence waits if all slots are in use."
    if not batching.iterative_sequence:
        idle_us = batching.max_sequence_idle_microseconds or 1_000_000
        yield f"A sequence ends after {idle_us} us without a request."


def _oldest_rules(config: ModelConfig) -> Iterator[str]:
    oldest, rows = config.sequence_batching.oldest, max(1, config.max_batch_size)
    yield (
        f"Each instance has up to {oldest.max_candidate_sequences or rows} live sequences and adds one request of "
        f"each to a batch of up to {rows}, in order of waiting time."
    )
    preferred = sorted(set(oldest.preferred_batch_size))
    if preferred:
        yield f"A batch of a preferred size ({', '.join(map(str, preferred))}) is sent at once."
    if oldest.max_queue_delay_microseconds:
        yield f"A batch that is not full waits up to {oldest.max_queue_delay_microseconds} us."


def _direct_rules(config: ModelConfig) -> Iterator[str]:
    direct, rows = config.sequence_batching.direct, max(1, config.max_batch_size)
    yield (
        f"Its sequence has a row of its own, of {rows}, on one instance, and a batch has the rows up to the last one "
        "that has a request."
    )
    delay_us, part = direct.max_queue_delay_microseconds, direct.minimum_slot_utilization
    if delay_us and part:
        yield f"A batch waits up to {delay_us} us until {part:.0%} of the rows have a request."
    elif delay_us:
        yield ("No batch waits: 'max_queue_delay_microseconds' needs 'minimum_slot_utilization'.")


def _ensemble_rules(config: ModelConfig) -> Iterator[str]:
    yield "It has no queue: each step sends a request to its member as soon as its input tensors exist."
    for step in config.ensemble_scheduling.step:
        version = "" if step.model_version < 0 else f" version {step.model_version}"
        reads, writes = (", ".join(sorted(tensors.values())) for tensors in (step.input_map, step.output_map))
        condition = condition_of(config, step)
        only = f", if {condition} is true" if condition else ""
        yield f"{step.model_name}{version}{only}: {reads} -> {writes}."
    limit = config.ensemble_scheduling.max_inflight_requests
    if limit:
        yield f"At most {limit} requests of one step execute at a time."


def batching_hints(config: ModelConfig) -> Sequence[str]:
    """Return why requests of a model never share a batch although its configuration suggests it, if so."""
    return list(_hints(config))


def _hints(config: ModelConfig) -> Iterator[str]:
    kind = scheduler_kind(config)
    rows = config.max_batch_size
    if kind in ("dynamic", "adaptive"):
        sizes = set(config.dynamic_batching.preferred_batch_size)
        if rows <= 1:
            yield f"'dynamic_batching' never batches: 'max_batch_size' is {rows}; raise it if the model can batch"
        elif sizes == {1} and not (kind == "dynamic" and config.dynamic_batching.max_queue_delay_microseconds):
            yield "'dynamic_batching' never batches: its only 'preferred_batch_size' is 1; leave the field out"
        elif _queue_holds_one(config.dynamic_batching):
            yield "'dynamic_batching' never batches: with 'max_queue_size' 1 only one request can wait; raise it"
    elif kind == "default" and rows > 1:
        yield f"requests are never batched, though 'max_batch_size' is {rows}: add 'dynamic_batching {{ }}' for that"
    elif kind == "sequence, oldest" and rows > 1 and config.sequence_batching.oldest.max_candidate_sequences == 1:
        yield "sequences are never batched: 'max_candidate_sequences' is 1; raise it to the number of live sequences"


def _queue_holds_one(batching: ModelDynamicBatching) -> bool:
    """Return whether at most one request ever waits; with several levels requests may share a batch."""
    return not batching.priority_levels and batching.default_queue_policy.max_queue_size == 1
