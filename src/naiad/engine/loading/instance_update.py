"""Updates in place: another configuration of the instance groups of a version that serves.

Instances stay, are added, or are retired. Requests are not affected: the version owns the queue, and a retired
instance finishes its batch first.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from naiad.backend.api import Instance, InstanceSpec
from naiad.backend.load_stop import LoadStop
from naiad.config.model_config_pb2 import ModelConfig
from naiad.engine.instances.instances import create_instances, groups, groups_of_instances, instance_specs
from naiad.engine.serving.retirement import RetiredInstances
from naiad.engine.serving.served import Served
from naiad.engine.serving.served_model import ServedModel


class InstanceUpdate:
    """The instances of a version for another configuration; new instances are created but do not serve yet."""

    def __init__(
        self, served: Served, model: ServedModel, config: ModelConfig, kept: Sequence[Instance | None]
    ) -> None:
        """`served` is the engine's entry of `model`; `kept` has None for instances to create."""
        self._served = served
        self._model = model
        self._config = config
        self._instances = list(kept)
        self._created: list[Instance] = []
        self.written_config: ModelConfig | None = None
        """The configuration as its author wrote it, for `Served` if the update is committed."""

    def create(
        self,
        warm_up: Callable[[Instance, InstanceSpec], None] | None,
        host_policies: Mapping[str, frozenset[int]],
        stop: LoadStop | None = None,
    ) -> None:
        """Create and warm up the missing instances. Raises InferError; all new instances are closed then."""
        specs = instance_specs(self._config)
        missing = [spec for spec, instance in zip(specs, self._instances, strict=True) if instance is None]
        if not missing:
            return
        backend_model = self._model.backend_model
        backend_model.update_config(self._config)
        backend_model.stop = stop
        try:
            self._created = create_instances(backend_model, missing, warm_up, host_policies, stop)
        except BaseException:
            backend_model.update_config(self._model.config)
            raise

    def commit(self) -> RetiredInstances | None:
        """Activate the instances; return the retired ones, which the caller stops."""
        created = iter(self._created)
        instances = [next(created) if instance is None else instance for instance in self._instances]
        self._served.config = self._config
        self._served.written_config = self.written_config
        return self._model.change_instances(instances, self._config)

    def discard(self) -> None:
        """Close the created instances."""
        self._model.backend_model.update_config(self._model.config)
        for instance in self._created:
            instance.close()


def kept_instances(model: ServedModel, config: ModelConfig) -> list[Instance | None] | None:
    """Return for each instance of `config` the existing one, or None if it must be created.

    None as a whole if the version cannot be changed in place: ordered responses and shared resources belong to
    particular instances, and a model may not be on the requested devices.
    """
    if groups(model.config, passive=True) != groups(config, passive=True):
        return None
    there = dict(zip(_identities(model.config), model.instances, strict=True))
    wanted = _identities(config)
    if list(there) == wanted:
        return list(model.instances)
    devices = {(spec.kind, spec.device_id) for spec in instance_specs(model.config)}
    if not model.can_change_instances or any((s.kind, s.device_id) not in devices for s in instance_specs(config)):
        return None
    return [there.get(identity) for identity in wanted]


def _identities(config: ModelConfig) -> list[tuple[str, int, bytes, int]]:
    """Return the identities of the instances of a configuration.

    Triton: name and count of a group are no part of it. Equal instances are numbered.
    """
    alike: Counter[tuple[str, int, bytes]] = Counter()
    identities = []
    for spec, group in zip(instance_specs(config), groups_of_instances(config), strict=True):
        kind = (spec.kind, spec.device_id, group)
        identities.append((*kind, alike[kind]))
        alike[kind] += 1
    return identities
