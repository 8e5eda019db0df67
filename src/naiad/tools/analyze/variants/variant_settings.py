"""Settings of a variant, applied to a configuration in its JSON form.

A setting is a path of fields and a value: `max_batch_size`, `instance_group.count`, `parameters.KEY`,
`dynamic_batching.max_queue_delay_microseconds`. None removes the first field of the path.
"""

import copy
from collections.abc import Mapping
from typing import Any

import orjson

from naiad.config.forms.json_form import config_to_json, read_json
from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.naiad_parameters import SWITCH
from naiad.config.validate.model import validate
from naiad.tools.analyze.space import Variant
from naiad.tools.analyze.variants import dimensions as fields


class RefusedError(ValueError):
    """A combination of settings that makes no sense; the argument is the reason."""


def make_variant(config: ModelConfig, settings: Mapping[str, Any], name: str, model: str = "") -> Variant:
    """Return a variant of a complete configuration; without settings it is the one of the repository.

    `model` is the model that is searched, where `config` is that of another format of it. Raises RefusedError for
    settings that exclude each other, or that a server refuses.
    """
    source = config.name if model not in ("", config.name) else ""
    if not settings:
        return Variant(model or config.name, name, {}, source_model=source)
    changed, problems = read_json(orjson.dumps(apply(orjson.loads(config_to_json(config)), settings)))
    problems = problems or validate(changed)
    for problem in problems:
        if problem.is_error:
            raise RefusedError(problem.description)
    return Variant(model or config.name, name, dict(settings), config_to_json(changed).decode(), source)


def apply(config: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration in JSON form with settings; `config` is left as it is. Raises RefusedError."""
    changed = copy.deepcopy(dict(config))
    _check(changed, settings)
    for path, value in settings.items():
        first, _, rest = path.partition(".")
        if first == "parameters" and rest:
            _set_parameter(changed, rest, value)
        elif path in (fields.INSTANCE_COUNT, fields.INSTANCE_KIND):
            _set_group(changed, rest, value)
        elif value is None:
            changed.pop(first, None)
        else:
            _set(changed, path, value)
    _fit_batch(changed, keeps_preferred=not settings.keys().isdisjoint(("dynamic_batching", fields.PREFERRED)))
    if settings.get(fields.DELAY, 0) is None and fields.ADAPTIVE not in settings:
        _set_parameter(changed, SWITCH, None)
    return changed


def _check(config: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Raise RefusedError for a setting that has no effect: the same configuration would be measured twice."""
    largest = settings.get(fields.MAX_BATCH_SIZE, config.get("max_batch_size", 0))
    delay = settings.get(fields.DELAY, 0)
    is_adaptive = settings.get(fields.ADAPTIVE) == "true"
    preferred = settings.get(fields.PREFERRED)
    batcher = [value for path, value in settings.items() if path.startswith("dynamic_batching")]
    is_batcher_set = any(value is not None for value in batcher)
    if is_batcher_set and config.get("sequence_batching"):
        raise RefusedError("a model with sequence_batching has no dynamic_batching")
    if delay is None and (is_adaptive or preferred):
        raise RefusedError(
            "adaptive batching and preferred batch sizes have no effect without dynamic_batching; leave them out"
        )
    if largest == 0 and (is_batcher_set or is_adaptive):
        raise RefusedError("dynamic_batching has no effect with max_batch_size 0; use 1 or more")
    if fields.MAX_BATCH_SIZE in settings and largest == 1 and (delay or is_adaptive or preferred):
        raise RefusedError("a delay, preferred sizes and adaptive batching have no effect with max_batch_size 1")
    if is_adaptive and (delay or preferred):
        raise RefusedError("adaptive batching chooses the delay and the sizes of batches; leave them out")


def _set(config: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split(".")
    for name in parents:
        inner = config.setdefault(name, {})
        if not isinstance(inner, dict):
            raise RefusedError(f"'{path}': '{name}' is a list; give the whole list as the value of '{name}'")
        config = inner
    config[last] = value


def _set_parameter(config: dict[str, Any], key: str, value: Any) -> None:
    parameters = config.setdefault("parameters", {})
    if value is None or (key, value) == (SWITCH, "false"):
        parameters.pop(key, None)
    else:
        parameters[key] = {"string_value": str(value)}
    if key == SWITCH and value == "true":
        # The parameter requires the batcher, and replaces its delay.
        config.setdefault("dynamic_batching", {})


def _set_group(config: dict[str, Any], field: str, value: Any) -> None:
    groups = config.get("instance_group") or [{}]
    for group in groups:
        if field == "kind" and group.get("kind") != value:
            # A group without GPUs is on every GPU.
            group["gpus"] = []
            group.pop("name", None)
        group[field] = value
    config["instance_group"] = groups[:1] if field == "kind" else groups


def _fit_batch(config: dict[str, Any], *, keeps_preferred: bool) -> None:
    """Limit sizes that the repository's configuration has for a larger batch than the variant's."""
    largest = config.get("max_batch_size", 0)
    batching = config.get("dynamic_batching") or {}
    oldest = (config.get("sequence_batching") or {}).get("oldest") or {}
    for batcher in (oldest,) if keeps_preferred else (oldest, batching):
        if "preferred_batch_size" in batcher:
            batcher["preferred_batch_size"] = [size for size in batcher["preferred_batch_size"] if size <= largest]
    for sample in config.get("model_warmup") or ():
        sample["batch_size"] = min(sample.get("batch_size", 0), max(largest, 1))
