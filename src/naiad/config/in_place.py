"""Which changes of a configuration a loaded version can take on without being loaded anew."""

from naiad.config.model_config_pb2 import ModelConfig

_IN_PLACE = ("instance_group", "version_policy")
"""Triton: a change of nothing but these leaves loaded versions where they are."""


def may_stay(before: ModelConfig, now: ModelConfig) -> bool:
    """Tell whether two planned configurations differ in nothing that a loaded version is made of.

    Never so for an ensemble: it is held against its members, which may have changed.
    """
    if now.HasField("ensemble_scheduling"):
        return False
    return _without(before) == _without(now)


def _without(config: ModelConfig) -> ModelConfig:
    reduced = ModelConfig()
    reduced.CopyFrom(config)
    for name in _IN_PLACE:
        reduced.ClearField(name)
    return reduced


def renewed(served: ModelConfig, planned: ModelConfig) -> ModelConfig:
    """Return the complete configuration of a served version with what `planned` changes in place."""
    config = ModelConfig()
    config.CopyFrom(served)
    for name in _IN_PLACE:
        config.ClearField(name)
    config.instance_group.extend(planned.instance_group)
    config.version_policy.CopyFrom(planned.version_policy)
    return config
