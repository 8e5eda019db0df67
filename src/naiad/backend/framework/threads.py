"""Thread counts of frameworks, so that all instances of a model together do not exceed the usable cores."""

from naiad.backend.api import ModelContext
from naiad.backend.framework.parameters import Parameters
from naiad.config.model_config_pb2 import ModelConfig, ModelInstanceGroup


def cpu_instance_count(config: ModelConfig) -> int:
    """Return the number of instances on the CPU, at least 1."""
    groups = config.instance_group
    return max(1, sum(group.count for group in groups if group.kind != ModelInstanceGroup.KIND_GPU))


def threads_per_instance(context: ModelContext, parameters: Parameters, name: str) -> int:
    """Return the parameter `name`; without it, or at 0, an equal share of the usable cores, at least 1.

    Raises InferError(INVALID_ARG) for a parameter that is no count.
    """
    wanted = parameters.count(name)
    return wanted or max(1, context.usable_cores // cpu_instance_count(context.config))
