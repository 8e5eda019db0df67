"""Ensembles: their members are varied, and the largest batch of an ensemble is the smallest of its members'."""

from collections.abc import Collection, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from naiad.config.forms.json_form import config_from_json
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import invalid_argument
from naiad.tools.analyze.space import Variant
from naiad.tools.analyze.variants.dimensions import MAX_BATCH_SIZE
from naiad.tools.analyze.variants.variant_settings import make_variant


def member_names(config: ModelConfig) -> tuple[str, ...]:
    """Return the models of the steps of an ensemble, each once; none for another model."""
    return tuple(dict.fromkeys(step.model_name for step in config.ensemble_scheduling.step))


def members_first(configs: Mapping[str, ModelConfig]) -> list[str]:
    """Return the models in an order in which ensembles follow their members. Raises InferError(INVALID_ARG)."""
    graph = {name: [each for each in member_names(config) if each in configs] for name, config in configs.items()}
    try:
        return list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        raise invalid_argument(f"ensembles contain each other: {' -> '.join(error.args[1])}") from None


def fit_ensembles(
    configs: Mapping[str, ModelConfig], variants: Sequence[Variant], above: Collection[str] = ()
) -> list[Variant]:
    """Return the variants, and variants of the ensembles above them, members first.

    `configs` are the complete configurations of the repository, of all models and members. An ensemble that the
    variants do not change is left out. The ensembles in `above` only shrink: they are not analysed, and some of their
    members may be unknown. Raises RefusedError.
    """
    chosen = {each.model: each for each in variants}
    limits = {name: config.max_batch_size for name, config in configs.items()}
    changed: set[str] = set()
    fitted: list[Variant] = []
    for name in members_first(configs):
        config, variant = configs[name], chosen.get(name)
        if variant is not None and variant.config_json:
            limits[name] = config_from_json(variant.config_json).max_batch_size
            changed.add(name)
        has_changed_members = not changed.isdisjoint(member_names(config))
        members = [limits[each] for each in member_names(config) if each in limits]
        members += [config.max_batch_size] if name in above else []
        # An ensemble that does not batch passes requests on as they are.
        if has_changed_members and config.max_batch_size > 0 and min(members) != limits[name]:
            limits[name] = min(members)
            changed.add(name)
            settings = {**(variant.settings if variant else {}), MAX_BATCH_SIZE: limits[name]}
            variant = make_variant(config, settings, variant.name if variant else f"{name}_config_fitted")
        if variant is not None:
            fitted.append(variant)
    return fitted + [each for each in variants if each.model not in configs]
