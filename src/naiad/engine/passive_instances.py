"""Passive instances: made and kept with a version, but given no requests."""

from collections.abc import Mapping, Sequence

from naiad.backend.api import Instance, InstanceSpec, Model
from naiad.config.model_config_pb2 import ModelConfig
from naiad.engine.instances import create_instances, instance_specs


class ModelWithPassiveInstances(Model):
    """A version whose passive instances live as long as it does."""

    def __init__(self, model: Model, instances: Sequence[Instance]) -> None:
        self._model = model
        self._instances = instances

    def create_instance(self, spec: InstanceSpec) -> Instance:
        """Create an instance that executes requests. Raises InferError."""
        return self._model.create_instance(spec)

    def update_config(self, config: ModelConfig) -> None:
        """Take note of other instance groups."""
        self._model.update_config(config)

    def close(self) -> None:
        """Close the passive instances, then the model."""
        for instance in self._instances:
            instance.close()
        self._model.close()


def with_passive_instances(model: Model, config: ModelConfig, host_policies: Mapping[str, frozenset[int]]) -> Model:
    """Return the model with the passive instances of its configuration. Raises InferError; none is left then.

    Triton: they are not warmed up.
    """
    specs = instance_specs(config, passive=True)
    if not specs:
        return model
    return ModelWithPassiveInstances(model, create_instances(model, specs, None, host_policies))
