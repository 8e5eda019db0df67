"""Changes of a configuration: their description for the log, and whether they apply without a reload."""

from collections.abc import Iterator

import orjson

from naiad.config.forms.json_form import config_to_json
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import excerpt

_MAX_CHANGES = 10
_MAX_VALUE_CHARACTERS = 40
_IN_PLACE = ("instance_group", "version_policy")
"""Triton: changes of only these fields leave loaded versions in place."""


def config_changes(before: ModelConfig, after: ModelConfig) -> str:
    """Return the changed fields, as in `max_batch_size: 8 -> 16; input[0].dims: [3] -> [4]`, of bounded length."""
    flat_old, flat_new = (dict(_flat("", orjson.loads(config_to_json(config)))) for config in (before, after))
    names = [name for name in flat_old | flat_new if (flat_old.get(name) or None) != (flat_new.get(name) or None)]
    shown = [
        f"{excerpt(name)}: {_shown(flat_old.get(name))} -> {_shown(flat_new.get(name))}"
        for name in names[:_MAX_CHANGES]
    ]
    if len(names) > _MAX_CHANGES:
        shown.append(f"and {len(names) - _MAX_CHANGES} more fields")
    return "; ".join(shown) or "nothing"


def _flat(path: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield the path and the value of each field; a list of plain values is one field."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _flat(f"{path}.{name}" if path else name, inner)
    elif isinstance(value, list) and any(isinstance(inner, dict) for inner in value):
        for number, inner in enumerate(value):
            yield from _flat(f"{path}[{number}]", inner)
    else:
        yield path, value


def _shown(value: object) -> str:
    if value in (None, "", []):
        return "unset"
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    return excerpt(text if len(text) <= _MAX_VALUE_CHARACTERS else f"{text[:_MAX_VALUE_CHARACTERS]}...")


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
