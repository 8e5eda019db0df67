"""Decides which configuration changes apply to a loaded version without a reload."""

from naiad.config.model_config_pb2 import ModelConfig

_IN_PLACE = ("instance_group", "version_policy")
"""Triton: changes of only these fields leave loaded versions in place."""


def may_stay(before: ModelConfig, now: ModelConfig) -> bool:
    """Return whether two planned configurations differ only in fields that can change in place.

    Always False for an ensemble: it is checked against its members, which may have changed.
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
    """Return the complete configuration of a served version with the in-place changes of `planned`."""
    config = ModelConfig()
    config.CopyFrom(served)
    for name in _IN_PLACE:
        config.ClearField(name)
    config.instance_group.extend(planned.instance_group)
    config.version_policy.CopyFrom(planned.version_policy)
    return config
