"""Creates instances from instance groups, passive instances included.

Passive instances are created and kept with a version, but get no requests. Triton: they are not warmed up.
"""

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from naiad.backend.api import Instance, InstanceSpec, Model
from naiad.backend.cores import running_on
from naiad.backend.load_stop import LoadStop
from naiad.config.model_config_pb2 import ModelConfig, ModelInstanceGroup
from naiad.options.host_policy import format_cores, policy_name

_log = logging.getLogger(__name__)

_CREATING_THREADS = 16
"""Maximum number of instances of one version that are created at the same time."""


def groups(config: ModelConfig, *, passive: bool = False) -> list[ModelInstanceGroup]:
    """Return the instance groups with active, or with passive, instances."""
    return [group for group in config.instance_group if group.passive is passive]


def instance_specs(config: ModelConfig, *, passive: bool = False) -> list[InstanceSpec]:
    """Return the instances of normalised instance groups: the active or the passive ones.

    The indexes of passive instances follow the indexes of the active ones.
    """
    first = len(instance_specs(config)) if passive else 0
    specs: list[InstanceSpec] = []
    for group in groups(config, passive=passive):
        kind = ModelInstanceGroup.Kind.Name(group.kind)
        for number in range(group.count):
            for device_id in group.gpus or (0,):
                name = f"{group.name}_{number}" + (f"_gpu{device_id}" if group.gpus else "")
                policy = policy_name(group, device_id)
                number_of_all = first + len(specs)
                specs.append(InstanceSpec(name, number_of_all, kind, device_id, policy, tuple(group.profile)))
    return specs


def groups_of_instances(config: ModelConfig) -> list[bytes]:
    """Return for each instance of `instance_specs` its group, serialized without name and count."""
    found: list[bytes] = []
    for group in groups(config):
        reduced = ModelInstanceGroup()
        reduced.CopyFrom(group)
        reduced.ClearField("name")
        reduced.ClearField("count")
        found += [reduced.SerializeToString(deterministic=True)] * (group.count * max(1, len(group.gpus)))
    return found


def create_instances(
    model: Model,
    specs: Sequence[InstanceSpec],
    warm_up: Callable[[Instance, InstanceSpec], None] | None,
    host_policies: Mapping[str, frozenset[int]],
    stop: LoadStop | None = None,
) -> list[Instance]:
    """Create instances, several at a time, each on the cores of its host policy, and warm each one up.

    If one fails, or the load has to end, all are closed. Raises InferError.
    """

    stop = stop or LoadStop()

    def create(spec: InstanceSpec) -> Instance:
        stop.check()
        cores = host_policies.get(spec.host_policy, frozenset())
        with running_on(cores):
            instance = model.create_instance(spec)
            if cores:
                instance.cores = cores
                text = "instance '%s' runs on cores %s, by host policy '%s'"
                _log.info(text, spec.name, format_cores(cores), spec.host_policy)
            return warmed_up(instance, spec)

    def warmed_up(instance: Instance, spec: InstanceSpec) -> Instance:
        if warm_up is not None:
            try:
                warm_up(instance, spec)
            except BaseException:
                instance.close()
                raise
            instance.warm_up_after_restart(functools.partial(warm_up, instance, spec))
        return instance

    if len(specs) <= 1:
        return [create(spec) for spec in specs]
    with ThreadPoolExecutor(min(len(specs), _CREATING_THREADS), thread_name_prefix="instance") as pool:
        futures = [pool.submit(create, spec) for spec in specs]
    failures = [error for future in futures if (error := future.exception()) is not None]
    if failures:
        for future in futures:
            if future.exception() is None:
                future.result().close()
        raise failures[0]
    return [future.result() for future in futures]
